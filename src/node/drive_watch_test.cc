#include "node/drive_watch.h"

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

}  // namespace
}  // namespace aquifer
