#include "metrics/prometheus_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

#include "base/text/utf8.h"

namespace aquifer {
namespace {

std::string_view KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "untyped";
}

void AppendValue(std::string_view value, std::string* text) {
  while (!value.empty()) {
    const size_t length = CharacterBytes(value);
    if (length == 0) {
      *text += "\xEF\xBF\xBD";
    } else if (value[0] == '\\') {
      *text += "\\\\";
    } else if (value[0] == '"') {
      *text += "\\\"";
    } else if (value[0] == '\n') {
      *text += "\\n";
    } else {
      *text += value.substr(0, length);
    }
    value.remove_prefix(length == 0 ? 1 : length);
  }
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

constexpr std::string_view kOpenMetricsType = "application/openmetrics-text";

}  // namespace

std::string_view ContentTypeOf(MetricsFormat format) {
  return format == MetricsFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

MetricsFormat FormatFor(std::string_view accept) {
  return accept.find(kOpenMetricsType) == std::string_view::npos ? MetricsFormat::kPrometheus
                                                                 : MetricsFormat::kOpenMetrics;
}

std::string PrometheusText::Take() {
  if (format_ == MetricsFormat::kOpenMetrics) text_ += "# EOF\n";
  return std::move(text_);
}

void PrometheusText::Family(std::string_view name, MetricKind kind, std::string_view help) {
  family_ = name;
  // OpenMetrics names a counter's family without the suffix that its samples have.
  constexpr std::string_view kTotal = "_total";
  const bool cut = format_ == MetricsFormat::kOpenMetrics && kind == MetricKind::kCounter &&
                   name.ends_with(kTotal);
  if (cut) name.remove_suffix(kTotal.size());
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, KindName(kind));
}

void PrometheusText::Line(std::string_view suffix, std::span<const MetricLabel> labels,
                          std::string_view upper, std::string_view value) {
  text_ += family_;
  text_ += suffix;
  char between = '{';
  const auto add = [this, &between](std::string_view name, std::string_view label) {
    text_ += between;
    text_ += name;
    text_ += "=\"";
    AppendValue(label, &text_);
    text_ += '"';
    between = ',';
  };
  for (const MetricLabel& label : labels) add(label.name, label.value);
  if (!upper.empty()) add("le", upper);
  if (between == ',') text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void PrometheusText::Sample(std::initializer_list<MetricLabel> labels, uint64_t value) {
  Line("", labels, "", fmt::format("{}", value));
}

void PrometheusText::Sample(std::initializer_list<MetricLabel> labels, double value) {
  Line("", labels, "", NumberText(value));
}

void PrometheusText::Histogram(std::initializer_list<MetricLabel> labels,
                               const TimeHistogram& histogram) {
  uint64_t below = 0;
  for (size_t bucket = 0; bucket < TimeHistogram::kBuckets; ++bucket) {
    below += histogram.in_bucket(bucket);
    Line("_bucket", labels,
         NumberText(static_cast<double>(TimeHistogram::UpperNanos(bucket)) / 1e9),
         fmt::format("{}", below));
  }
  Line("_bucket", labels, "+Inf", fmt::format("{}", histogram.count()));
  Line("_sum", labels, "", NumberText(histogram.sum_seconds()));
  Line("_count", labels, "", fmt::format("{}", histogram.count()));
}

}  // namespace aquifer
