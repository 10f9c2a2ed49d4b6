// Walks up the chains of blocks that are here, through blocks that are gone where it is remembered
// what came before them. A session is a block and all that comes before it.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "aquifer/key.h"
#include "cache/residency/residency.h"

namespace aquifer {

// A block that a job will come back to, by when the ref may name another.
struct NotedBlock {
  BlockRef ref = kNoBlock;
  uint16_t tenant = 0;
  uint64_t key_bits = 0;
};

class ChainWalk {
 public:
  explicit ChainWalk(const Residency* residency) : residency_(residency) {}

  // A block of a chain; kNoBlock: the block is gone, and only known by its key.
  using Visit = std::function<void(BlockRef ref, const Key& key, uint32_t position)>;
  // Calls `visit` with up to `max` blocks from `*next` up its chain, deepest first. Returns true if
  // there may be more: the walk goes on at `*next`.
  bool Up(size_t max, BlockName* next, const Visit& visit) const;
  // The same, adding the keys. When that was all, `*whole` says whether the first block was
  // reached.
  bool Keys(size_t max, BlockName* next, std::vector<Key>* keys, bool* whole) const;
  // Returns true if a walk may go on there from a block at that position: whoever makes keys up may
  // have made a circle of them.
  bool IsBefore(const BlockName& above, uint32_t position) const;
  // Returns true if blocks other than `own` hang below the block, which may itself be gone; without
  // `own`, if more than one does. Blocks that durable tiers alone have count as far as they are
  // known; blocks that are gone and only still lent do not. Nothing: those are too many to tell.
  std::optional<bool> HasOtherBelow(const BlockName& name, std::optional<Key> own) const;

  NotedBlock Note(BlockRef ref) const;
  // Returns true if the block is there, complete, and still the same.
  bool Holds(const NotedBlock& noted) const;

 private:
  const Residency* const residency_;
};

}  // namespace aquifer
