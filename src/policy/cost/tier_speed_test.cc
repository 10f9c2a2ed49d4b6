#include "policy/cost/tier_speed.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;
constexpr uint64_t kMebibyte = 1 << 20;

// A device that is exactly what the model says.
struct Device {
  double latency_ms = 0.1;
  double ms_per_mebibyte = 0.5;

  int64_t Nanos(uint64_t bytes, uint64_t queued_bytes = 0) const {
    const double mebibytes = static_cast<double>(bytes + queued_bytes) / kMebibyte;
    return static_cast<int64_t>((latency_ms + ms_per_mebibyte * mebibytes) * 1e6);
  }
};

TierSpeedOptions PlainOptions() {
  TierSpeedOptions options;
  options.prior_latency_nanos = kMs;
  options.prior_bytes_per_second = 1e9;
  options.op_overhead_bytes = 0;
  return options;
}

void Feed(TierSpeed* speed, int64_t now, uint64_t bytes, int64_t elapsed, uint64_t queued = 0) {
  speed->Submitted(now - elapsed, bytes, 1);
  speed->Completed(now,
                   {.bytes = bytes, .ops = 1, .queued_bytes = queued, .elapsed_nanos = elapsed});
}

double EstimateMs(const TierSpeed& speed, int64_t now, uint64_t bytes, uint64_t queued = 0) {
  return static_cast<double>(speed.EstimateNanos(now, bytes, 1, queued)) / 1e6;
}

TEST(TierSpeedTest, ThePriorAnswersBeforeAnythingWasSeen) {
  const TierSpeed speed(PlainOptions());
  EXPECT_NEAR(EstimateMs(speed, 0, 1'000'000), 2, 0.01);
  EXPECT_NEAR(EstimateMs(speed, 0, 1'000'000, 3'000'000), 5, 0.01);
}

TEST(TierSpeedTest, ATierThatNothingWasReadFromHasNoSpeedToReport) {
  TierSpeed speed(PlainOptions());
  speed.Submitted(0, kMebibyte, 1);
  speed.Failed(kMs, kMebibyte, 1);
  EXPECT_EQ(speed.BytesPerSecond(kMs), 0);
  EXPECT_EQ(speed.LatencyNanos(kMs), 0);
}

// A Redis on the same host: a quarter of a millisecond, more or less, for blocks of 64 KiB.
TEST(TierSpeedTest, LoadsOfOneSizeAreNeverTakenToBeFasterThanTheFastestOfThem) {
  for (const double noise : {0.0, 0.05, 0.5}) {
    TierSpeedOptions options;
    options.prior_latency_nanos = 10 * kMs;
    options.prior_bytes_per_second = 5e8;
    TierSpeed speed(options);
    SeededRandom random(3);
    int64_t now = 0;
    int64_t fastest = INT64_MAX;
    for (int i = 0; i < 200; ++i) {
      const double part = static_cast<double>(random.Below(1000)) / 1000;
      const auto elapsed = static_cast<int64_t>(kMs / 4 * (1 + noise * part));
      fastest = std::min(fastest, elapsed);
      now += 5 * kMs;
      Feed(&speed, now, 64 << 10, elapsed);
      const double counted = (64 << 10) + options.op_overhead_bytes;
      ASSERT_LE(speed.BytesPerSecond(now), 1.001 * counted / fastest * 1e9) << noise << " " << i;
    }
    EXPECT_NEAR(EstimateMs(speed, now, 64 << 10), 0.25 * (1 + noise / 2), 0.03);
  }
}

// What is queued ahead of a load may not matter to it: a line through that is flat.
TEST(TierSpeedTest, AStoreThatServesAllAtOnceIsNoFasterThanItsFastestLoad) {
  TierSpeed speed(PlainOptions());
  SeededRandom random(5);
  int64_t now = 0;
  double fastest = 0;
  for (int i = 0; i < 300; ++i) {
    const uint64_t queued = random.Below(8) * kMebibyte;
    const auto elapsed = static_cast<int64_t>((1 + random.Below(1000) / 1000.0) * kMs);
    fastest = std::max(
        fastest, static_cast<double>(kMebibyte + queued) / static_cast<double>(elapsed) * 1e9);
    now += 5 * kMs;
    Feed(&speed, now, kMebibyte, elapsed, queued);
    // By chance the noise looks like a slope now and then.
    ASSERT_LE(speed.BytesPerSecond(now), 3 * fastest) << i;
  }
}

TEST(TierSpeedTest, LoadsOfSeveralSizesTellTheFloorFromTheRate) {
  TierSpeed speed(PlainOptions());
  const Device device{.latency_ms = 20, .ms_per_mebibyte = 1};
  SeededRandom random(7);
  int64_t now = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t bytes = (1 + random.Below(16)) * kMebibyte;
    now += 50 * kMs;
    Feed(&speed, now, bytes, device.Nanos(bytes) + static_cast<int64_t>(random.Below(kMs)));
  }
  EXPECT_NEAR(EstimateMs(speed, now, 256 * kMebibyte), 276.5, 30);
  EXPECT_NEAR(static_cast<double>(speed.LatencyNanos(now)) / kMs, 20.5, 2);
}

TEST(TierSpeedTest, LearnsLatencyAndBandwidthFromVariedBatches) {
  TierSpeed speed(PlainOptions());
  const Device device{.latency_ms = 0.1, .ms_per_mebibyte = 0.2};
  SeededRandom random(1);
  int64_t now = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t bytes = (1 + random.Below(16)) * kMebibyte;
    const uint64_t queued = random.Below(32) * kMebibyte;
    now += 20 * kMs;
    Feed(&speed, now, bytes, device.Nanos(bytes, queued), queued);
  }
  EXPECT_NEAR(EstimateMs(speed, now, 8 * kMebibyte), 1.7, 0.1);
  EXPECT_NEAR(EstimateMs(speed, now, 8 * kMebibyte, 40 * kMebibyte), 9.7, 0.3);
}

TEST(TierSpeedTest, BatchesOfOneSizeTellOfOthersToo) {
  TierSpeed speed(PlainOptions());
  const Device device{.latency_ms = 0, .ms_per_mebibyte = 20};  // Twenty times slower.
  int64_t now = 0;
  for (int i = 0; i < 50; ++i) {
    now += 100 * kMs;
    Feed(&speed, now, 2 * kMebibyte, device.Nanos(2 * kMebibyte));
  }
  EXPECT_NEAR(EstimateMs(speed, now, 2 * kMebibyte), 40, 2);
  EXPECT_GT(EstimateMs(speed, now, 16 * kMebibyte), 150);
  EXPECT_LT(EstimateMs(speed, now, 16 * kMebibyte), 400);
}

TEST(TierSpeedTest, OneWildSampleMovesLittleAndALastingChangeMuch) {
  TierSpeed speed(PlainOptions());
  const Device device;
  int64_t now = 0;
  for (int i = 0; i < 100; ++i) {
    now += 50 * kMs;
    Feed(&speed, now, (1 + i % 8) * kMebibyte, device.Nanos((1 + i % 8) * kMebibyte));
  }
  const double before = EstimateMs(speed, now, 4 * kMebibyte);
  Feed(&speed, now, 4 * kMebibyte, 60 * kSecond);
  EXPECT_LT(EstimateMs(speed, now, 4 * kMebibyte), 1.3 * before);

  const Device slow{.latency_ms = 5, .ms_per_mebibyte = 25};
  for (int i = 0; i < 200; ++i) {
    now += 50 * kMs;
    Feed(&speed, now, (1 + i % 8) * kMebibyte, slow.Nanos((1 + i % 8) * kMebibyte));
  }
  EXPECT_NEAR(EstimateMs(speed, now, 4 * kMebibyte), 105, 15);
}

TEST(TierSpeedTest, ATierThatWasSlowForAWhileIsTriedAgain) {
  TierSpeed speed(PlainOptions());
  const Device device{.latency_ms = 1, .ms_per_mebibyte = 1};
  int64_t now = 0;
  for (int i = 0; i < 600; ++i) {  // Ten minutes.
    now += kSecond;
    Feed(&speed, now, 4 * kMebibyte, device.Nanos(4 * kMebibyte));
  }
  for (int i = 0; i < 10; ++i) {
    now += 500 * kMs;
    Feed(&speed, now, 4 * kMebibyte, 100 * device.Nanos(4 * kMebibyte));
  }
  EXPECT_GT(EstimateMs(speed, now, 4 * kMebibyte), 50);
  now += 60 * kSecond;  // Nobody asks it any more.
  EXPECT_LT(EstimateMs(speed, now, 4 * kMebibyte), 10);
}

TEST(TierSpeedTest, WhatWasLearnedOutlivesAQuietTime) {
  TierSpeed speed(PlainOptions());
  const Device device{.latency_ms = 10, .ms_per_mebibyte = 10};
  int64_t now = 0;
  for (int i = 0; i < 100; ++i) {
    now += kSecond;
    Feed(&speed, now, 4 * kMebibyte, device.Nanos(4 * kMebibyte));
  }
  now += 300 * kSecond;
  EXPECT_NEAR(EstimateMs(speed, now, 4 * kMebibyte), 50, 10);
}

TEST(TierSpeedTest, ASilentTierLooksSlowerEveryMoment) {
  TierSpeed speed(PlainOptions());
  speed.Submitted(0, 4 * kMebibyte, 4);
  EXPECT_EQ(speed.queued_bytes(), 4 * kMebibyte);
  const double at_first = EstimateMs(speed, kMs, kMebibyte);
  const double after_a_second = EstimateMs(speed, kSecond, kMebibyte);
  const double after_a_minute = EstimateMs(speed, 60 * kSecond, kMebibyte);
  EXPECT_LT(at_first, 3);
  EXPECT_GT(after_a_second, 900);
  EXPECT_GT(after_a_minute, 59'000);
  EXPECT_GT(speed.Cost(60 * kSecond).latency_ms, 59'000);

  speed.Completed(61 * kSecond, {.bytes = 4 * kMebibyte, .ops = 4, .elapsed_nanos = 5 * kMs});
  EXPECT_EQ(speed.queued_bytes(), 0u);
  EXPECT_EQ(speed.queued_ops(), 0u);
  EXPECT_LT(EstimateMs(speed, 100 * kSecond, kMebibyte), 10);
}

TEST(TierSpeedTest, AnIdleTierIsNotASilentOne) {
  TierSpeed speed(PlainOptions());
  Feed(&speed, kSecond, kMebibyte, 2 * kMs);
  EXPECT_LT(EstimateMs(speed, 1000 * kSecond, kMebibyte), 3);
  speed.Submitted(1000 * kSecond, kMebibyte, 1);
  EXPECT_LT(EstimateMs(speed, 1000 * kSecond, kMebibyte), 3);
}

TEST(TierSpeedTest, WhatCameLateTookAtLeastThatLong) {
  TierSpeed speed(PlainOptions());
  speed.Submitted(0, kMebibyte, 1);
  speed.Late(500 * kMs, {.bytes = kMebibyte, .ops = 1, .elapsed_nanos = 500 * kMs});
  EXPECT_GT(EstimateMs(speed, 500 * kMs, kMebibyte), 100);
  EXPECT_EQ(speed.queued_ops(), 0u);

  TierSpeed impatient(PlainOptions());
  impatient.Submitted(0, 100 * kMebibyte, 1);  // Given up before it could have been done.
  const double before = EstimateMs(impatient, 0, kMebibyte);
  impatient.Late(kMs, {.bytes = 100 * kMebibyte, .ops = 1, .elapsed_nanos = kMs});
  EXPECT_DOUBLE_EQ(EstimateMs(impatient, 0, kMebibyte), before);
}

TEST(TierSpeedTest, AFailureSaysNothingOfSpeed) {
  TierSpeed speed(PlainOptions());
  const double before = EstimateMs(speed, 0, kMebibyte);
  speed.Submitted(0, kMebibyte, 1);
  speed.Failed(1, kMebibyte, 1);
  EXPECT_DOUBLE_EQ(EstimateMs(speed, kSecond, kMebibyte), before);
}

TEST(TierSpeedTest, ManyOperationsCostMoreThanOne) {
  TierSpeedOptions options = PlainOptions();
  options.op_overhead_bytes = 1'000'000;
  const TierSpeed speed(options);
  EXPECT_NEAR(static_cast<double>(speed.EstimateNanos(0, 0, 10, 0)) / 1e6, 11, 0.1);
  EXPECT_NEAR(speed.Cost(0).ms_per_op, 1, 0.01);
}

TEST(TierSpeedTest, TheCostIsTheEstimateAsALine) {
  TierSpeed speed(PlainOptions());
  const Device device;
  for (int i = 1; i <= 20; ++i) {
    Feed(&speed, i * 10 * kMs, i * kMebibyte, device.Nanos(i * kMebibyte));
  }
  const int64_t now = 200 * kMs;
  speed.Submitted(now, 3 * kMebibyte, 1);
  const TierCost cost = speed.Cost(now);
  EXPECT_NEAR(cost.latency_ms + cost.ms_per_byte * 5 * kMebibyte + cost.ms_per_op,
              EstimateMs(speed, now, 5 * kMebibyte, speed.queued_bytes()), 0.01);
}

TEST(TierSpeedTest, EstimatesStayFiniteAndPositiveWhateverIsFed) {
  SeededRandom random(9);
  TierSpeed speed(PlainOptions());
  int64_t now = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += static_cast<int64_t>(random.Below(kSecond));
    const uint64_t bytes = random.Below(uint64_t{1} << random.Below(40));
    const auto elapsed = static_cast<int64_t>(random.Below(uint64_t{1} << random.Below(50)));
    Feed(&speed, now, bytes, elapsed, random.Below(1 << 30));
    const double estimate = EstimateMs(speed, now, kMebibyte);
    ASSERT_TRUE(std::isfinite(estimate) && estimate >= 0) << i;
    ASSERT_GT(speed.BytesPerSecond(now), 0) << i;
  }
}

}  // namespace
}  // namespace aquifer
