// What was given to a writer and is not at its tier yet, by tenant and in the order in which it
// came: what a flush waits for (flush_waits.h). And what a writer lost, which a flush tells each
// client once.
//
// Runs on the owner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "cache/residency/flush_waits.h"

namespace aquifer {

class Unwritten {
 public:
  // Sequences rise from 1 on.
  uint64_t NextSequence() { return next_++; }
  uint64_t last() const { return next_ - 1; }

  void Add(uint16_t tenant, uint64_t sequence) { of_[tenant].insert(sequence); }
  // It is at the tier, or will not get there.
  void Remove(uint16_t tenant, uint64_t sequence);

  // The first of a tenant's, or of FlushWaits::kEveryone's; where there is none, one that nothing
  // has yet.
  uint64_t Oldest(uint16_t of) const;
  // The first behind `sequence` that one of the flushes waits for and that is queued, not at the
  // tier already; 0: there is none.
  uint64_t NextFlushed(const FlushWaits& flushes, uint64_t sequence,
                       const std::function<bool(uint64_t)>& queued) const;

 private:
  std::map<uint16_t, std::set<uint64_t>> of_;  // By tenant; none is empty.
  uint64_t next_ = 1;
};

// `dropped` is, in all of these, how many of the tenant's blocks were lost before they were
// written.
class Losses {
 public:
  // The tier will never take one of the tenant's.
  void AddRefused(uint16_t tenant);
  // What was lost before it came is none of its business.
  void AddClient(uint32_t client, uint16_t tenant, uint64_t dropped);
  // How many the client has not been told of; it is now.
  uint64_t TellNew(uint32_t client, uint16_t tenant, uint64_t dropped);

 private:
  std::map<uint32_t, uint64_t> told_;     // By client.
  std::map<uint16_t, uint64_t> refused_;  // By tenant.
};

}  // namespace aquifer
