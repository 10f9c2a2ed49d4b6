// Bugs that tests plant in the real code, one at a time, to see whether the simulator finds them.
// Only testing/plant_bug.h can plant one; in the product there never is any, and asking costs one
// branch that is always predicted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aquifer {

enum class PlantedBug : uint8_t {
  kNone,
  kLeaseNotTaken,        // A fetched block is lent without a lease.
  kCommitBeforeWrite,    // A record counts before its page is on the drive.
  kChecksumNotVerified,  // Bytes read from a drive are taken as they are.
  kLeasedEvicted,        // Eviction takes blocks that someone reads.
  kQuarantineIgnored,    // The slot of a dropped block is free while someone still reads it.
  kCapOffByOne,          // One segment more than the cap allows.
  kTombstoneForgotten,   // A start does not look at the deletion map.
  kFooterTrusted,        // A footer page counts without its checksum.
  kWrongTenantCharged,   // All memory is charged to the first tenant.
  kDeadlineIgnored,      // A fetch waits for as long as it takes.
  kHintedTtlIgnored,     // A block lives on after the time that a hint gave it.
  kPinIgnored,           // A pin is acknowledged and forgotten.
  kRankNotAwaited,       // A block is served when the first rank has committed its heads.
  kFloorIgnored,         // One tenant's needs take what another's floor promises it.
  kFailedWriteCounts,    // A write that a store refused counts as durable.
  kStoreExpiryIgnored,   // A block from a durable tier comes without its time to live.
  kStoreDeletionLost,    // A deletion is acknowledged that no store was asked for.
  kLast = kStoreDeletionLost,
};
inline constexpr size_t kPlantedBugs = static_cast<size_t>(PlantedBug::kLast);

class BugPlot {
 private:
  friend class PlantBug;  // testing/plant_bug.h
  friend bool Planted(PlantedBug bug);
  static inline std::atomic<PlantedBug> planted = PlantedBug::kNone;
};

inline bool Planted(PlantedBug bug) {
  return BugPlot::planted.load(std::memory_order_relaxed) == bug;
}

}  // namespace aquifer
