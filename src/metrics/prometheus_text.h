// Writes the text that Prometheus reads, in its exposition format 0.0.4 or as OpenMetrics 1.0. One
// thread at a time.
//
//     PrometheusText text(MetricsFormat::kPrometheus);
//     text.Family("aquifer_fetch_hits_total", MetricKind::kCounter, "Blocks that were there");
//     text.Sample({{"tier", "dram"}}, uint64_t{7});
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "metrics/time_histogram.h"

namespace aquifer {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

struct MetricLabel {
  std::string_view name;
  std::string_view value;  // Any bytes: what would end it is escaped, what is no UTF-8 replaced.
};

enum class MetricsFormat : uint8_t { kPrometheus, kOpenMetrics };

// For the Content-Type of an answer.
std::string_view ContentTypeOf(MetricsFormat format);

// The format that a scraper asks for with this Accept header.
MetricsFormat FormatFor(std::string_view accept);

class PrometheusText {
 public:
  explicit PrometheusText(MetricsFormat format = MetricsFormat::kPrometheus) : format_(format) {}

  // Names the family of the samples that follow. A name comes once.
  void Family(std::string_view name, MetricKind kind, std::string_view help);
  void Sample(std::initializer_list<MetricLabel> labels, uint64_t value);
  void Sample(std::initializer_list<MetricLabel> labels, double value);
  void Histogram(std::initializer_list<MetricLabel> labels, const TimeHistogram& histogram);

  std::string Take();

 private:
  void Line(std::string_view suffix, std::span<const MetricLabel> labels, std::string_view upper,
            std::string_view value);

  const MetricsFormat format_;
  std::string family_;
  std::string text_;
};

}  // namespace aquifer
