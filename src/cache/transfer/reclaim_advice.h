// What is kept of a segment that the NVMe tier reclaims: pins first, then what a tenant's floor
// protects, then what is worth most.
//
// Runs on the owner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "cache/residency/residency.h"
#include "tier/tier.h"

namespace aquifer {

class ReclaimAdvice {
 public:
  explicit ReclaimAdvice(const Residency* residency) : residency_(residency) {}

  // The tier is about to reclaim a segment.
  std::unique_ptr<ReclaimChoice> NewChoice() const;
  // Asked again for each block: other drives reclaim at the same time, and a segment takes a while.
  bool MayDrop(const BlockId& id);
  // The tier has dropped the blocks.
  void OnLost(std::span<const BlockId> ids);

  // Whether drives hold blocks whose tenants are not known yet; then nothing is reclaimed.
  std::function<bool()> tenants_unknown;
  // Whether an engine stores the block anew just now: nothing is more likely to be asked for.
  std::function<bool(const BlockName&)> being_stored;

 private:
  class Choice;

  // What the tenant has on NVMe above its floor, and not on its way out.
  uint64_t ToSpare(uint16_t tenant) const;

  // Blocks that the tier was told it may drop, and has not reported as lost yet: they do not count
  // towards their tenant's floor any more.
  struct Dropping {
    uint16_t tenant = 0;
    uint64_t bytes = 0;
  };

  const Residency* const residency_;
  std::map<BlockId, Dropping> dropping_;
  std::map<uint16_t, uint64_t> dropping_bytes_;  // By tenant.
};

}  // namespace aquifer
