// Blocks that are being written, each by the ranks of one engine: which heads are there, and since
// when. A block's entry in the index has the number of its fill as owner data.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/checksum.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "cache/residency/residency.h"

namespace aquifer {

struct Fill {
  BlockRef ref = kNoBlock;  // kNoBlock: the fill is free.
  uint32_t engine = 0;
  LaneSums sums;
  uint32_t covered_heads = 0;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // Sorted, disjoint.
  int64_t since_nanos = 0;
  int64_t touched_nanos = 0;  // When a rank last took or gave back a part of it.
};

class FillTable {
 public:
  FillTable(Residency* residency, Clock* clock) : residency_(residency), clock_(clock) {}

  // The block was just added to the index for the engine to fill.
  void Begin(BlockRef ref, uint32_t engine);
  // The fill of a block whose state is kFilling.
  Fill& at(BlockRef ref) { return fills_[residency_->at(ref).owner_data - 1]; }
  // The fill under way of the block; null: there is none.
  const Fill* Find(const BlockName& name) const;
  // A rank takes or gives back a part of it.
  void Touch(BlockRef ref) { at(ref).touched_nanos = clock_->NowNanos(); }
  // About how long it will take still, by what others took.
  double WaitMs(const Fill& fill) const;

  // Adds the op's heads to the block's. Sets `*complete` if every head is there.
  Status Cover(BlockRef ref, uint32_t heads, const CommitOp& op, bool* complete);
  // Every head is there: ends the fill and publishes the block.
  void Publish(BlockRef ref, uint64_t block_bytes);
  // Nobody will publish the block. Its slot stays in quarantine until every rank has let go.
  void Void(BlockRef ref);
  // Voids up to `*max` fills that nobody has touched since then, and takes those off `*max`. Looks
  // at a slice of the table.
  void VoidOverdue(int64_t untouched_since_nanos, size_t* max);

  // Called with a block whose fill is being voided because it is overdue.
  std::function<void(BlockRef)> on_overdue;
  // Called when a fill has ended either way: the block is nobody's to write any more.
  std::function<void(const BlockName&)> on_ended;

 private:
  void End(BlockRef ref);

  Residency* const residency_;
  Clock* const clock_;
  std::deque<Fill> fills_;  // Grows without moving what is there.
  std::vector<uint32_t> free_;
  size_t overdue_cursor_ = 0;
  double average_fill_ms_ = 20;
};

}  // namespace aquifer
