#include "policy/admission/write_threshold.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

double Drawn(SeededRandom* random) { return static_cast<double>(random->Below(1000)) / 1000; }

TEST(WriteThresholdTest, WritesTheGivenPartAndThoseMostLikelyToReturn) {
  WriteThreshold threshold({.written_part = 0.25});
  SeededRandom random(1);
  uint64_t admitted = 0, unlikely = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double reuse = Drawn(&random);
    if (!threshold.Admit(reuse) || i < 10'000) continue;
    ++admitted;
    unlikely += reuse < 0.7 ? 1 : 0;
  }
  EXPECT_GE(admitted, 2'400u);
  EXPECT_LE(admitted, 2'600u);
  EXPECT_EQ(unlikely, 0u);
}

TEST(WriteThresholdTest, WhatCanBeAffordedCountsWhereItIsLess) {
  WriteThreshold threshold({.written_part = 0.5});
  SeededRandom random(2);
  uint64_t admitted = 0;
  for (int i = 0; i < 20'000; ++i) {
    const bool yes = threshold.Admit(Drawn(&random), i < 10'000 ? 0.1 : 1);
    if ((i >= 5'000 && i < 10'000) || i >= 15'000) admitted += yes ? 1 : 0;
    if (i == 9'999) {
      EXPECT_GE(admitted, 450u);
      EXPECT_LE(admitted, 550u);
      admitted = 0;
    }
  }
  EXPECT_GE(admitted, 2'400u);
  EXPECT_LE(admitted, 2'600u);
}

// Each tenth block is likely enough, and then the nine before it are written for its sake.
TEST(WriteThresholdTest, WhatIsWrittenForAnothersSakeIsPartOfThePart) {
  WriteThreshold threshold({.written_part = 0.25});
  SeededRandom random(3);
  uint64_t written = 0;
  for (int chain = 0; chain < 4'000; ++chain) {
    const double last = Drawn(&random);
    uint64_t refused = 0;
    for (int i = 0; i < 10; ++i) {
      if (!threshold.Admit(i == 9 ? last : 0)) {
        ++refused;
        continue;
      }
      if (i == 9) {
        for (uint64_t other = 0; other < refused; ++other) threshold.Reverse();
      }
      if (chain >= 2'000) written += i == 9 ? 1 + refused : 1;
    }
  }
  EXPECT_GE(written, 4'700u);
  EXPECT_LE(written, 5'300u);
}

TEST(WriteThresholdTest, WhereAllIsToBeWrittenAllIs) {
  WriteThreshold threshold({.written_part = 1});
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(threshold.Admit(0));
}

TEST(AffordablePartTest, FallsFromAllToNothingAsMoreWaits) {
  EXPECT_EQ(AffordablePart(0, 800), 1);
  EXPECT_EQ(AffordablePart(100, 800), 1);
  EXPECT_EQ(AffordablePart(450, 800), 0.5);
  EXPECT_EQ(AffordablePart(800, 800), 0);
  EXPECT_EQ(AffordablePart(5000, 800), 0);
  EXPECT_EQ(AffordablePart(1, 0), 0);
}

}  // namespace
}  // namespace aquifer
