#include "policy/admission.h"

#include "gtest/gtest.h"

namespace aquifer {
namespace {

WriteDownCase BlockUsed(uint32_t turns) {
  WriteDownCase block;
  block.features.turns = turns;
  block.features.position = 10;
  block.features.bytes = 2 << 20;
  return block;
}

TEST(AdmissionTest, EverythingIsWrittenDownToBeginWith) {
  EXPECT_TRUE(ShouldWriteDown({}, BlockUsed(0)));
}

TEST(AdmissionTest, DurabilityOverridesEveryRule) {
  WriteDownCase block = BlockUsed(0);
  block.durable_wanted = true;
  block.features.session = SessionHint::kEnded;
  for (const auto rule : {WriteDownRule::kAlways, WriteDownRule::kNever,
                          WriteDownRule::kSecondTouch, WriteDownRule::kWorth}) {
    EXPECT_TRUE(ShouldWriteDown({.rule = rule}, block));
  }
}

TEST(AdmissionTest, NeverMeansNever) {
  EXPECT_FALSE(ShouldWriteDown({.rule = WriteDownRule::kNever}, BlockUsed(9)));
}

TEST(AdmissionTest, ASecondTouchWritesABlockDown) {
  WriteDownOptions options{.rule = WriteDownRule::kSecondTouch};
  EXPECT_FALSE(ShouldWriteDown(options, BlockUsed(0)));
  EXPECT_TRUE(ShouldWriteDown(options, BlockUsed(1)));
  options.always_below_position = 11;
  EXPECT_TRUE(ShouldWriteDown(options, BlockUsed(0)));
  options.always_below_position = 10;
  EXPECT_FALSE(ShouldWriteDown(options, BlockUsed(0)));
}

TEST(AdmissionTest, WhatEndedIsWrittenOnlyByTheRuleThatWritesEverything) {
  WriteDownCase block = BlockUsed(5);
  block.features.session = SessionHint::kEnded;
  EXPECT_FALSE(ShouldWriteDown({.rule = WriteDownRule::kSecondTouch}, block));
  EXPECT_TRUE(ShouldWriteDown({}, block));
}

TEST(AdmissionTest, WorthIsSavedTimeForEachByte) {
  const WriteDownOptions options{.rule = WriteDownRule::kWorth, .min_saved_ms_per_mebibyte = 1};
  WriteDownCase block = BlockUsed(0);            // 2 MiB.
  EXPECT_TRUE(ShouldWriteDown(options, block));  // Unknown.
  block.recompute_ms = 5;
  EXPECT_TRUE(ShouldWriteDown(options, block));  // Half unknown.
  block.load_ms = 3;
  EXPECT_TRUE(ShouldWriteDown(options, block));
  block.load_ms = 3.1;
  EXPECT_FALSE(ShouldWriteDown(options, block));
  block.load_ms = 6;
  EXPECT_FALSE(
      ShouldWriteDown({.rule = WriteDownRule::kWorth, .min_saved_ms_per_mebibyte = 0}, block));
}

TEST(AdmissionTest, WhatWasFetchedStaysByRule) {
  BlockFeatures once;
  once.turns = 1;
  BlockFeatures twice;
  twice.turns = 2;
  EXPECT_TRUE(ShouldKeepInDram({}, once, false));
  EXPECT_FALSE(ShouldKeepInDram({.rule = RechargeRule::kNever}, twice, true));
  const RechargeOptions second{.rule = RechargeRule::kSecondTouch};
  EXPECT_FALSE(ShouldKeepInDram(second, once, false));
  EXPECT_TRUE(ShouldKeepInDram(second, once, true));
  EXPECT_TRUE(ShouldKeepInDram(second, twice, false));
}

}  // namespace
}  // namespace aquifer
