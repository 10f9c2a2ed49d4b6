#include "node/local/storage_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aquifer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

DriveStats Drive(const std::string& directory) { return {.directory = directory}; }

DriveStats Out(const std::string& directory, const std::string& why) {
  return {.directory = directory, .in_service = false, .writable = false, .why = why};
}

TEST(DriveChangesTest, ADriveThatIsFineIsNotSpokenOf) {
  EXPECT_THAT(DriveChanges({}, {Drive("/a"), Drive("/b")}), IsEmpty());
}

TEST(DriveChangesTest, OneThatCannotBeUsedIsToldOnceWithTheReason) {
  EXPECT_THAT(DriveChanges({}, {Drive("/a"), Out("/b", "no such device")}),
              ElementsAre("drive /b: out of service: no such device"));
  EXPECT_THAT(DriveChanges({Out("/b", "x")}, {Out("/b", "x")}), IsEmpty());
}

TEST(DriveChangesTest, OneThatIsBackIsTold) {
  EXPECT_THAT(DriveChanges({Out("/b", "x")}, {Drive("/b")}), ElementsAre("drive /b: in service"));
}

TEST(DriveChangesTest, WhatCouldNotBeReadIsToldOfADriveInService) {
  DriveStats drive = Drive("/a");
  drive.why = "one file is foreign";
  EXPECT_THAT(DriveChanges({}, {drive}), ElementsAre("drive /a: in service: one file is foreign"));
}

TEST(DriveChangesTest, OneThatCanOnlyBeReadIsTold) {
  DriveStats drive = Drive("/a");
  drive.writable = false;
  drive.why = "no space";
  EXPECT_THAT(DriveChanges({Drive("/a")}, {drive}),
              ElementsAre("drive /a: in service, but nothing can be written to it: no space"));
}

DurableStats Tier(bool in_service, uint64_t times_left, const std::string& why = "") {
  DurableStats tier;
  tier.name = "far";
  tier.in_service = in_service;
  tier.why = why;
  tier.counters = {{"late", 7}, {"times_left", times_left}};
  return tier;
}

TEST(TierChangesTest, OneThatIsFineIsNotSpokenOf) {
  EXPECT_THAT(TierChanges({}, {Tier(true, 0)}), IsEmpty());
  EXPECT_THAT(TierChanges({Tier(true, 0)}, {Tier(true, 0)}), IsEmpty());
}

TEST(TierChangesTest, OneThatLeavesServiceIsToldOnceWithTheReasonAndWhatToDo) {
  EXPECT_THAT(TierChanges({}, {Tier(false, 1, "no bucket; next step: make it")}),
              ElementsAre("tier far: out of service: no bucket; next step: make it"));
  EXPECT_THAT(TierChanges({Tier(true, 0)}, {Tier(false, 1, "silent for 5.0 s")}),
              ElementsAre("tier far: out of service: silent for 5.0 s; next step: aquifer ctl "
                          "tiers test far"));
  // What becomes of it is in aquifer ctl tiers.
  EXPECT_THAT(TierChanges({Tier(false, 1, "silent")}, {Tier(false, 1, "refused")}), IsEmpty());
}

TEST(TierChangesTest, OneThatIsBackIsTold) {
  EXPECT_THAT(TierChanges({Tier(false, 1, "silent")}, {Tier(true, 1, "silent")}),
              ElementsAre("tier far: in service again"));
}

TEST(TierChangesTest, WhatWasAwayBetweenTwoLooksIsToldToo) {
  EXPECT_THAT(
      TierChanges({Tier(true, 1, "old")}, {Tier(true, 2, "new; next step: x")}),
      ElementsAre("tier far: out of service: new; next step: x", "tier far: in service again"));
  EXPECT_THAT(TierChanges({Tier(false, 1, "old")}, {Tier(false, 2, "new; next step: x")}),
              ElementsAre("tier far: out of service: new; next step: x"));
}

}  // namespace
}  // namespace aquifer
