#include "sim/world/fault.h"

#include <algorithm>
#include <utility>

namespace aquifer {
namespace {

constexpr auto kNames = std::to_array<std::string_view>(
    {"crash",          "power-loss",    "failed-writes", "failed-reads",    "failed-syncs",
     "failed-creates", "slow-drive",    "hanging-drive", "read-only-drive", "full-drive",
     "unopenable",     "bit-flip",      "footer-flip",   "client-death",    "no-memory",
     "memory-short",   "suspend",       "calendar-jump", "host-replaced",   "slow-store",
     "hanging-store",  "failing-store", "lost-answers",  "full-store",      "damaged-blob",
     "emptied-store",  "keys-away",     "tenant-deleted"});
static_assert(kNames.size() == kFaultKinds);

}  // namespace

std::string_view FaultName(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::vector<Fault> MakeFaultSchedule(const FaultScheduleOptions& options) {
  SeededRandom random(options.seed);
  std::vector<Fault> faults;
  for (size_t i = 0; i < options.count && !options.kinds.empty(); ++i) {
    Fault fault;
    fault.step = random.Below(options.steps);
    fault.kind = options.kinds[random.Below(options.kinds.size())];
    fault.draw = random.Next();
    faults.push_back(fault);
  }
  SortFaults(&faults);
  return faults;
}

void SortFaults(std::vector<Fault>* faults) {
  std::sort(faults->begin(), faults->end(), [](const Fault& a, const Fault& b) {
    return std::pair(a.step, a.draw) < std::pair(b.step, b.draw);
  });
}

}  // namespace aquifer
