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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "policy/eviction/block_features.h"
#include "policy/eviction/block_weight.h"

namespace aquifer {

inline constexpr uint32_t kNoVictim = UINT32_MAX;

// A request for a chain of blocks, as far as an order cares: whether the tier has them or not.
struct AskedChain {
  uint32_t blocks = 0;
  uint32_t full_blocks = 0;  // The last one may be partly filled: it will never be asked for again.
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;  // 0: not known.
  SessionHint session = SessionHint::kNone;
  ChainSaving saving{};
  std::function<uint64_t(uint32_t position)> name;  // As in BlockFeatures.
};

// How far one request has been taken in. All zero at first.
struct AskProgress {
  bool begun = false;
  uint32_t left = 0;  // Blocks, from the first on.
  uint32_t known = 0;
  uint8_t turn = 0;
  int64_t gap_nanos = 0;       // Since the turn before.
  uint64_t tokens_before = 0;  // Of the turn before, and of its answer.
};

// Who decides, and what an order would have had if it were plain leaf-first LRU.
struct EvictionStats {
  uint64_t asked_blocks = 0;
  uint64_t hits = 0;      // Of those, from the first of a request on.
  uint64_t lru_hits = 0;  // What LRU would have had in as many bytes.
  // The same by what they save: in blocks, of which each saves as much as the mean one.
  double weighed_hits = 0;
  double weighed_lru_hits = 0;
  bool lru_decides = true;
  uint64_t takeovers = 0;  // How often LRU had to.
  uint64_t tables = 0;     // Of what blocks are worth: how many were learned, the first included.
};

class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;

  // Somebody asks for these blocks: what an order learns from, and may be left out. Takes up to
  // `max_blocks` of them, the last first; false when that was all. Whoever calls it then adds and
  // touches what it uses, as without it.
  virtual bool Ask(const AskedChain& /*chain*/, AskProgress* /*progress*/, size_t /*max_blocks*/,
                   int64_t /*now_nanos*/) {
    return false;
  }

  // A block that the tier did not have: a leaf, held by nobody. `ref` is below the max_blocks that
  // the order was made for.
  virtual void Add(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) = 0;

  // It was used. The tenant stays what it was.
  virtual void Touch(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) = 0;

  virtual void SetLeaf(uint32_t ref, bool leaf) = 0;

  // Leased, pinned or under I/O. Holds are counted.
  virtual void Hold(uint32_t ref) = 0;
  virtual void Unhold(uint32_t ref) = 0;

  // Not used, but what having it saves is another now. What changes by itself, as engines report
  // other times, counts from the next use on.
  virtual void Reweigh(uint32_t /*ref*/, const BlockFeatures& /*features*/) {}

  // Held or not.
  virtual void Remove(uint32_t ref) = 0;

  virtual bool Contains(uint32_t ref) const = 0;

  // The least valuable unheld leaf of the tenant, or kNoVictim. It stays until it is removed.
  virtual uint32_t Victim(uint16_t tenant) const = 0;

  // The same over all tenants that `may_pay` accepts.
  virtual uint32_t Victim(const std::function<bool(uint16_t tenant)>& may_pay) const = 0;

  // Higher is more worth keeping, by the byte. Comparable between blocks and tenants of one tier at
  // one time, so that extents and segments can be ranked by what they hold.
  virtual double Value(uint32_t ref) const = 0;

  // How likely it is that somebody asks again for the block of that name, which the tier may have
  // or not; nothing where nothing is known of it.
  virtual std::optional<double> ReuseProbability(uint64_t /*name*/) const { return std::nullopt; }

  // Of an order that hears of requests: plain LRU counts nothing.
  virtual EvictionStats stats() const { return {}; }

  // Blocks in the order.
  virtual uint32_t size() const = 0;
  // Memory in use.
  virtual uint64_t bytes() const = 0;
};

}  // namespace aquifer
