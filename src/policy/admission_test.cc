#include "policy/admission.h"

#include "gtest/gtest.h"

namespace aquifer {
namespace {

BlockFeatures BlockUsed(uint32_t turns) {
  BlockFeatures block;
  block.turns = turns;
  block.position = 10;
  block.bytes = 2 << 20;
  return block;
}

TEST(AdmissionTest, EverythingIsWrittenDownToBeginWith) {
  EXPECT_TRUE(ShouldWriteDown({}, BlockUsed(0)));
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
  BlockFeatures block = BlockUsed(5);
  block.session = SessionHint::kEnded;
  EXPECT_FALSE(ShouldWriteDown({.rule = WriteDownRule::kSecondTouch}, block));
  EXPECT_TRUE(ShouldWriteDown({}, block));
}

}  // namespace
}  // namespace aquifer
