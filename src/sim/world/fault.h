// What can go wrong, when a seed lets it go wrong, and how often each kind was seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "testing/seeded_random.h"

namespace aquifer {

enum class FaultKind : uint8_t {
  kCrash,          // The process dies; writes on their way are torn.
  kPowerLoss,      // The machine dies; writes since the last sync are lost in any order.
  kFailedWrites,   // Some writes fail, and leave torn bytes behind.
  kFailedReads,    // Some reads fail,
  kFailedSyncs,    // or some syncs,
  kFailedCreates,  // or making files.
  kSlowDrive,      // Every request takes longer, for a while.
  kHangingDrive,   // No request completes, for seconds or minutes.
  kReadOnlyDrive,  // Writes, creates and removes fail, for a while.
  kFullDrive,      // The file system has no room for another segment.
  kUnopenable,     // A crash, and then no drive can be opened for a while.
  kBitFlip,        // Anywhere on a drive.
  kFooterFlip,     // In every footer of a drive, and then a crash: the log has it all twice.
  kClientDeath,    // In mid-store, in mid-fetch, or idle.
  kNoMemory,       // Making extents fails.
  kMemoryShort,    // The host takes memory back, for a while.
  kSuspend,        // The host sleeps for seconds to hours.
  kCalendarJump,   // The calendar is set, forwards or backwards.
  // Only where there are durable tiers.
  kHostReplaced,   // The machine dies, and another one with empty drives takes its place.
  kSlowStore,      // Every request takes longer, for a while.
  kHangingStore,   // No request completes, for seconds or minutes.
  kFailingStore,   // Some requests fail, or all of them for a while.
  kLostAnswers,    // Some changes are made, but answered as failed.
  kFullStore,      // Nothing more can be written, for a while.
  kDamagedBlob,    // One byte of it changes, or it is cut short.
  kEmptiedStore,   // An administrator removes everything.
  kKeysAway,       // The key store cannot be reached, for a while.
  kTenantDeleted,  // An administrator destroys a tenant's data key.
  kLast = kTenantDeleted,
};
inline constexpr size_t kFaultKinds = static_cast<size_t>(FaultKind::kLast) + 1;
// Those of a node without durable tiers: the kinds before it.
inline constexpr size_t kNodeFaultKinds = static_cast<size_t>(FaultKind::kHostReplaced);

std::string_view FaultName(FaultKind kind);

struct Fault {
  uint64_t step = 0;  // When.
  FaultKind kind = FaultKind::kCrash;
  uint64_t draw = 0;  // Decides the rest: which drive, how long, how much.
};

struct FaultScheduleOptions {
  uint64_t seed = 1;
  uint64_t steps = 0;
  size_t count = 0;
  std::vector<FaultKind> kinds;  // Those that may come.
};

// In the order of their steps.
std::vector<Fault> MakeFaultSchedule(const FaultScheduleOptions& options);
void SortFaults(std::vector<Fault>* faults);

using FaultCounts = std::array<uint64_t, kFaultKinds>;

}  // namespace aquifer
