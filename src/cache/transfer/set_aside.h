// Which of the blocks that are stored are worth a write to NVMe, where not all can be written; and
// the others, which are set aside: in DRAM alone, where they may be evicted. So is what NVMe had to
// give up. One that is set aside
// is taken back when it is wanted: somebody asks for it again and it is likely enough to return by
// then, a block that goes on from it is written, or a flush, a drain or a pin says so. What it goes
// on from is taken back with it: what is on NVMe is made of whole prefixes.
//
// What is set aside counts as unwritten, so that a flush waits for it. A block that is gone is
// forgotten when it is come across, or where there are many of those. What is wanted is no more
// than what is set aside.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/residency.h"
#include "cache/transfer/unwritten.h"
#include "policy/admission/write_threshold.h"

namespace aquifer {

struct SetAsideParts {
  Residency* residency = nullptr;
  Unwritten* unwritten = nullptr;
  Executor* executor = nullptr;
  // It is to be written, in the place that its sequence gives it.
  std::function<void(BlockRef, uint64_t sequence)> take_back;
  // What was wanted has been taken back, in a task of its own.
  std::function<void()> on_taken_back;
};

// Of the blocks that were offered.
struct SetAsideStats {
  uint64_t admitted_blocks = 0;
  uint64_t set_aside_blocks = 0;
  uint64_t taken_back_blocks = 0;  // Of those.
};

class SetAside {
 public:
  SetAside(const WriteThresholdOptions& admission, SetAsideParts parts)
      : parts_(std::move(parts)), threshold_(admission) {}

  // Whether a block that was just stored is worth a write, where so much of what is stored can be
  // written at the moment. Else it is to be added here.
  [[nodiscard]] bool Admit(BlockRef ref, double affordable_part);
  void Add(BlockRef ref, uint64_t sequence);

  // It was used: it may be worth a write by now.
  void OnUsed(BlockRef ref);
  // Somebody wants it on NVMe. Of a block that is not set aside nothing happens.
  void Want(BlockRef ref);
  // At once, of a tenant's or of FlushWaits::kEveryone's, up to `max`, the oldest first and none
  // later than `last_sequence`. How many that were, some of which may be gone.
  size_t TakeBack(uint16_t of, uint64_t last_sequence, size_t max);

  bool empty() const { return blocks_.empty(); }
  size_t size() const { return blocks_.size(); }  // Some may be gone.
  const SetAsideStats& stats() const { return stats_; }

 private:
  using Place = std::pair<uint16_t, BlockRef>;  // Of a tenant.
  struct Block {
    uint64_t sequence = 0;  // From 1 on.
    uint64_t name = 0;      // OrderName(): whether the ref still names that block.
  };
  using Blocks = std::map<Place, Block>;
  using Age = std::pair<uint16_t, uint64_t>;  // A tenant's, by sequence.

  bool HasChildOnNvme(BlockRef ref) const;
  bool IsThere(const Blocks::value_type& block) const;
  void TakeBack(Blocks::iterator block);
  // It is not here any more. The next one.
  Blocks::iterator Erase(Blocks::iterator block);
  // Up the chains of what is wanted, as far as they were set aside.
  void ClimbSome();
  void ClimbSoon();
  void TrimSome();

  const SetAsideParts parts_;
  WriteThreshold threshold_;
  Blocks blocks_;
  std::map<Age, BlockRef> by_age_;  // Each of blocks_ once.
  Place trim_cursor_;               // Up to here it has been looked at for blocks that are gone.
  std::set<BlockRef> wanted_;       // While there are any, ClimbSome() is posted.
  SetAsideStats stats_;
  TaskScope tasks_{parts_.executor};
};

}  // namespace aquifer
