#include "metrics/time_histogram.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

TEST(TimeHistogramTest, ATimeIsInTheFirstBucketThatDoesNotEndBeforeIt) {
  for (size_t bucket = 0; bucket < TimeHistogram::kBuckets; ++bucket) {
    TimeHistogram histogram;
    histogram.Add(TimeHistogram::UpperNanos(bucket));
    EXPECT_EQ(histogram.in_bucket(bucket), 1u) << bucket;
    histogram.Add(TimeHistogram::UpperNanos(bucket) + 1);
    EXPECT_EQ(histogram.in_bucket(bucket), 1u) << bucket;
    EXPECT_EQ(histogram.in_bucket(bucket + 1), 1u) << bucket;
  }
}

TEST(TimeHistogramTest, NothingIsTooShortOrTooLong) {
  TimeHistogram histogram;
  histogram.Add(0);
  histogram.Add(-5);
  histogram.Add(INT64_MAX / 4);
  EXPECT_EQ(histogram.in_bucket(0), 2u);
  EXPECT_EQ(histogram.in_bucket(TimeHistogram::kBuckets), 1u);
  EXPECT_EQ(histogram.count(), 3u);
}

TEST(TimeHistogramTest, TheSumIsOfWhatWasAdded) {
  TimeHistogram histogram;
  histogram.Add(1'500'000'000);
  histogram.Add(500'000'000);
  EXPECT_DOUBLE_EQ(histogram.sum_seconds(), 2);
}

TEST(TimeHistogramTest, AQuantileIsTheEndOfItsBucket) {
  TimeHistogram histogram;
  EXPECT_EQ(histogram.QuantileSeconds(0.5), 0);
  for (int i = 0; i < 99; ++i) histogram.Add(1'000);
  histogram.Add(1'000'000'000);
  EXPECT_DOUBLE_EQ(histogram.QuantileSeconds(0.5), 1024e-9);
  EXPECT_DOUBLE_EQ(histogram.QuantileSeconds(0.99), 1024e-9);
  EXPECT_DOUBLE_EQ(histogram.QuantileSeconds(1), (int64_t{1} << 30) / 1e9);
}

}  // namespace
}  // namespace aquifer
