#include "sim/fuzz/fuzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace aquifer {
namespace {

void AddTo(EngineCounts* sum, const EngineCounts& counts) {
  sum->block_operations += counts.block_operations;
  sum->requests += counts.requests;
  sum->hits_dram += counts.hits_dram;
  sum->hits_nvme += counts.hits_nvme;
  sum->hits_durable += counts.hits_durable;
  sum->misses += counts.misses;
  sum->late += counts.late;
  sum->corrupt += counts.corrupt;
  sum->failed += counts.failed;
  sum->stored += counts.stored;
  sum->refused += counts.refused;
  sum->being_filled += counts.being_filled;
  sum->voided += counts.voided;
  sum->flushed += counts.flushed;
  sum->evicted += counts.evicted;
  sum->advised = sum->advised + counts.advised;
}

}  // namespace

size_t FuzzReport::fault_kinds_seen() const {
  return static_cast<size_t>(
      std::count_if(faults.begin(), faults.end(), [](uint64_t count) { return count > 0; }));
}

FuzzReport Fuzz(const FuzzOptions& options, const std::function<bool(const FuzzReport&)>& go_on) {
  FuzzReport report;
  const int64_t start = SystemClock()->NowNanos();
  while (report.seeds < options.seeds) {
    const uint64_t seed = options.first_seed + report.seeds;
    RunOutcome outcome = RunScenario(MakeScenario(seed));
    ++report.seeds;
    report.steps += outcome.steps;
    report.simulated_seconds += static_cast<double>(outcome.simulated_nanos) / 1e9;
    AddTo(&report.counts, outcome.counts);
    for (size_t kind = 0; kind < kFaultKinds; ++kind) report.faults[kind] += outcome.faults[kind];
    report.seconds = static_cast<double>(SystemClock()->NowNanos() - start) / 1e9;
    if (!outcome.ok()) {
      report.failed_seed = seed;
      report.failure = std::move(outcome);
      break;
    }
    if (seed == UINT64_MAX) break;
    if (go_on && !go_on(report)) break;
    if (options.seconds > 0 && report.seconds >= options.seconds) break;
  }
  return report;
}

size_t PossibleFaultKinds(const FaultCounts& faults) {
  const bool stores = std::any_of(faults.begin() + kNodeFaultKinds, faults.end(),
                                  [](uint64_t count) { return count > 0; });
  return stores ? kFaultKinds : kNodeFaultKinds;
}

std::string TextOf(const FaultCounts& faults) {
  const size_t possible = PossibleFaultKinds(faults);
  std::string seen;
  std::string missing;
  size_t kinds = 0;
  for (size_t i = 0; i < possible; ++i) {
    const std::string_view name = FaultName(static_cast<FaultKind>(i));
    if (faults[i] == 0) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
      continue;
    }
    ++kinds;
    seen += fmt::format("{}{} {}", seen.empty() ? "" : ", ", name, faults[i]);
  }
  std::string text = fmt::format("{} of {} kinds of faults", kinds, possible);
  if (!seen.empty()) text += ": " + seen;
  if (!missing.empty()) text += "; not seen: " + missing;
  return text;
}

}  // namespace aquifer
