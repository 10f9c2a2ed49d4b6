#include "metrics/prometheus_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace aquifer {
namespace {

using testing::HasSubstr;

std::string Labelled(std::string_view value) {
  PrometheusText text;
  text.Family("x", MetricKind::kGauge, "An x");
  text.Sample({{"l", value}}, uint64_t{1});
  return text.Take();
}

TEST(PrometheusTextTest, AFamilyIsItsHelpItsTypeAndItsSamples) {
  PrometheusText text;
  text.Family("hits_total", MetricKind::kCounter, "Blocks that were there");
  text.Sample({{"tier", "dram"}, {"tenant", "a"}}, uint64_t{18'446'744'073'709'551'615u});
  text.Sample({}, 0.5);
  EXPECT_EQ(text.Take(),
            "# HELP hits_total Blocks that were there\n"
            "# TYPE hits_total counter\n"
            "hits_total{tier=\"dram\",tenant=\"a\"} 18446744073709551615\n"
            "hits_total 0.5\n");
}

TEST(PrometheusTextTest, CharactersThatWouldEndALabelAreEscaped) {
  EXPECT_THAT(Labelled("a\"b\\c\nd"), HasSubstr("x{l=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST(PrometheusTextTest, BytesThatAreNoTextAreReplaced) {
  EXPECT_THAT(Labelled("\xC3\xBC \xF0\x9F\x98\x80"), HasSubstr("\"\xC3\xBC \xF0\x9F\x98\x80\""));
  for (const std::string_view bad :
       {"\xFF", "\xC3", "\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_THAT(Labelled(bad), HasSubstr("\"\xEF\xBF\xBD")) << bad;
  }
}

TEST(PrometheusTextTest, NumbersThatAreNoneHaveNames) {
  PrometheusText text;
  text.Family("x", MetricKind::kGauge, "An x");
  text.Sample({}, std::numeric_limits<double>::infinity());
  text.Sample({}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(text.Take(), HasSubstr("x +Inf\nx NaN\n"));
}

TEST(PrometheusTextTest, BucketsAddUp) {
  TimeHistogram histogram;
  histogram.Add(1'000);
  histogram.Add(2'000);
  histogram.Add(int64_t{1} << 40);
  PrometheusText text;
  text.Family("t", MetricKind::kHistogram, "A time");
  text.Histogram({{"of", "it"}}, histogram);
  const std::string written = text.Take();
  EXPECT_THAT(written, HasSubstr("t_bucket{of=\"it\",le=\"1.024e-06\"} 1\n"));
  EXPECT_THAT(written, HasSubstr("t_bucket{of=\"it\",le=\"2.048e-06\"} 2\n"));
  EXPECT_THAT(written, HasSubstr("t_bucket{of=\"it\",le=\"68.719476736\"} 2\n"));
  EXPECT_THAT(written, HasSubstr("t_bucket{of=\"it\",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(written, HasSubstr("t_count{of=\"it\"} 3\n"));
}

}  // namespace
}  // namespace aquifer
