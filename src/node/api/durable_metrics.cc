#include "node/api/durable_metrics.h"

#include <algorithm>
#include <string_view>

#include "node/api/metric_rows.h"

namespace aquifer {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

template <auto kMember>
double Of(const DurableStats& tier) {
  return static_cast<double>(tier.*kMember);
}
template <auto kMember>
double Used(const DurableStats& tier) {
  return static_cast<double>(tier.usage.*kMember);
}
double LatencySeconds(const DurableStats& tier) { return tier.latency_ms / 1e3; }

using D = DurableStats;
constexpr MetricRow<DurableStats> kRows[] = {
    {"aquifer_durable_in_service", kGauge, "", "", &Of<&D::in_service>, "1: the tier can be used"},
    {"aquifer_durable_capacity_bytes", kGauge, "", "", &Used<&TierUsage::capacity_bytes>,
     "The cap of all who share it; 0: none is known"},
    {"aquifer_durable_used_bytes", kGauge, "", "", &Used<&TierUsage::used_bytes>,
     "Used by all who share it, as far as known"},
    {"aquifer_durable_latency_seconds", kGauge, "", "", &LatencySeconds,
     "Of a read, as Match weighs it"},
    {"aquifer_durable_read_bytes_per_second", kGauge, "", "", &Of<&D::bytes_per_second>,
     "As Match weighs it"},
    {"aquifer_durable_looks_total", kCounter, "outcome", "found", &Of<&D::looks_found>,
     "Questions whether a block is there, by the answer; where the tier could not say, that is "
     "not_found too"},
    {"aquifer_durable_looks_total", kCounter, "outcome", "not_found",
     [](const D& tier) {
       return static_cast<double>(tier.looks - std::min(tier.looks, tier.looks_found));
     },
     ""},
    {"aquifer_durable_loaded_blocks_total", kCounter, "", "", &Of<&D::loaded_blocks>,
     "Blocks read from the tier to DRAM"},
    {"aquifer_durable_loaded_bytes_total", kCounter, "", "", &Of<&D::loaded_bytes>,
     "Bytes of these"},
    {"aquifer_durable_failed_loads_total", kCounter, "", "", &Of<&D::failed_loads>,
     "Blocks that were not there, damaged, late or refused"},
    {"aquifer_durable_written_blocks_total", kCounter, "", "", &Of<&D::written_blocks>,
     "Blocks written to the tier"},
    {"aquifer_durable_written_bytes_total", kCounter, "", "", &Of<&D::written_bytes>,
     "Bytes of these"},
    {"aquifer_durable_failed_writes_total", kCounter, "", "", &Of<&D::failed_writes>,
     "Writes that failed, and are tried again"},
    {"aquifer_durable_waiting_blocks", kGauge, "for", "load", &Of<&D::waiting_loads>,
     "Blocks that wait for the tier"},
    {"aquifer_durable_waiting_blocks", kGauge, "for", "write", &Of<&D::waiting_writes>, ""},
    {"aquifer_durable_waiting_blocks", kGauge, "for", "erasure", &Of<&D::waiting_erasures>, ""},
    {"aquifer_durable_unswept_tenants", kGauge, "", "", &Of<&D::unswept_tenants>,
     "Tenants that were deleted and of which something, which nobody can read, may be left there"},
    {"aquifer_durable_oldest_unprotected_seconds", kGauge, "", "",
     &Of<&D::oldest_unprotected_seconds>,
     "How long the block that is to be durable has waited that has waited longest"},
};

}  // namespace

void WriteDurableMetrics(std::span<const DurableStats> tiers, PrometheusText* text) {
  const auto name = [](const DurableStats& tier) { return std::string_view(tier.name); };
  WriteMetricRows<DurableStats>(kRows, tiers, "tier", name, text);
  text->Family(
      "aquifer_durable_events_total", kCounter,
      "What the tier itself counted, by its own names, and with store_ before them what its store "
      "did");
  for (const DurableStats& tier : tiers) {
    for (const auto& [name, value] : tier.counters) {
      text->Sample({{"tier", tier.name}, {"event", name}}, value);
    }
  }
}

void WriteKeyMetrics(const std::optional<KeyFigures>& keys, PrometheusText* text) {
  const KeyFigures figures = keys.value_or(KeyFigures{});
  text->Family("aquifer_encryption", kGauge, "1: what leaves DRAM is encrypted");
  text->Sample({}, uint64_t{keys.has_value()});
  text->Family("aquifer_data_keys", kGauge, "Data keys of tenants, in memory and asked for");
  text->Sample({{"state", "known"}}, uint64_t{figures.known});
  text->Sample({{"state", "wanted"}}, uint64_t{figures.wanted});
  text->Family("aquifer_data_keys_forgotten_total", kCounter,
               "Data keys that were destroyed, here or elsewhere");
  text->Sample({}, figures.forgotten);
  text->Family("aquifer_data_key_failures_total", kCounter,
               "Times that the key store could not be read or written");
  text->Sample({}, figures.failures);
  text->Family("aquifer_data_keys_read_time_seconds", kGauge,
               "When all known data keys were last read again, in Unix time; 0: not yet");
  text->Sample({}, static_cast<uint64_t>(std::max<int64_t>(figures.refreshed_unix, 0)));
}

}  // namespace aquifer
