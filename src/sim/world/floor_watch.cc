#include "sim/world/floor_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace aquifer {
namespace {

// What was asked for before is over by then: writes at the lowest budget and slices of emptying.
constexpr int64_t kSettledNanos = int64_t{3} * 1'000'000'000;

}  // namespace

std::string FloorWatch::See(uint32_t tenant, int64_t quiet_since_nanos, int64_t now_nanos,
                            const TenantHoldings& has) {
  Watched& watched = watched_[tenant];
  if (watched.quiet_since_nanos != quiet_since_nanos) {
    watched = {.quiet_since_nanos = quiet_since_nanos, .had = {}};
  }
  if (now_nanos < quiet_since_nanos + kSettledNanos) return "";
  if (watched.had.orphaned != has.orphaned) watched.had = has;
  watched.had.dram_bytes = std::max(watched.had.dram_bytes, has.dram_bytes);
  watched.had.nvme_bytes = std::max(watched.had.nvme_bytes, has.nvme_bytes);
  const auto below = [tenant](const char* tier, uint64_t floor, uint64_t had, uint64_t now) {
    if (now >= std::min(floor, had)) return std::string();
    return fmt::format(
        "tenant {} asked for nothing, and has {} of the {} bytes that it had in {}, "
        "below its floor of {}",
        tenant, now, had, tier, floor);
  };
  const TenantFloors& floors = floors_[tenant];
  std::string wrong = below("DRAM", floors.dram_bytes, watched.had.dram_bytes, has.dram_bytes);
  if (!wrong.empty()) return wrong;
  return below("NVMe", floors.nvme_bytes, watched.had.nvme_bytes, has.nvme_bytes);
}

}  // namespace aquifer
