// In which order a tier gives up its blocks. One instance serves one tier; the cache tells it what
// happens and asks it for victims. It works on opaque refs (the index's) and knows no bytes.
//
// A victim is always a leaf (no child of it is in the tier, so that what remains is made of whole
// prefixes) that nothing holds. A block becomes one by SetLeaf(true) and by its last Unhold().
//
// A request's blocks are touched leaf first, so that of a chain the tail goes first: of two blocks
// that were touched at the same `now_nanos`, the one touched earlier is the less valuable.
//
// Single-threaded, like the cache. Deterministic: equal calls give equal victims.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "policy/block_features.h"

namespace aquifer {

inline constexpr uint32_t kNoVictim = UINT32_MAX;

class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;

  // A block that the tier did not have: a leaf, held by nobody. `ref` is below the max_blocks that
  // the order was made for.
  virtual void Add(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) = 0;

  // It was used. The tenant stays what it was.
  virtual void Touch(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) = 0;

  virtual void SetLeaf(uint32_t ref, bool leaf) = 0;

  // Leased, pinned or under I/O. Holds are counted.
  virtual void Hold(uint32_t ref) = 0;
  virtual void Unhold(uint32_t ref) = 0;

  // Held or not.
  virtual void Remove(uint32_t ref) = 0;

  virtual bool Contains(uint32_t ref) const = 0;

  // The least valuable unheld leaf of the tenant, or kNoVictim. It stays until it is removed.
  virtual uint32_t Victim(uint16_t tenant) const = 0;

  // The same over all tenants that `may_pay` accepts.
  virtual uint32_t Victim(const std::function<bool(uint16_t tenant)>& may_pay) const = 0;

  // Higher is more worth keeping. Comparable between blocks and tenants of one tier at one time, so
  // that extents and segments can be ranked by what they hold.
  virtual double Value(uint32_t ref) const = 0;

  // Blocks in the order.
  virtual uint32_t size() const = 0;
  // Memory in use.
  virtual uint64_t bytes() const = 0;
};

}  // namespace aquifer
