#include "cache/residency/fill_table.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/planted_bug.h"

namespace aquifer {
namespace {

constexpr size_t kOverdueSlice = 1024;

}  // namespace

void FillTable::Begin(BlockRef ref, uint32_t engine) {
  uint32_t number = 0;
  if (free_.empty()) {
    number = static_cast<uint32_t>(fills_.size());
    fills_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Fill& fill = fills_[number];
  fill.ref = ref;
  fill.engine = engine;
  fill.sums = {};
  fill.covered_heads = 0;
  fill.ranges.clear();
  fill.since_nanos = clock_->NowNanos();
  residency_->SetOwnerData(ref, number + 1);
}

const Fill* FillTable::Find(const BlockName& name) const {
  const BlockRef ref = residency_->index().Find(name);
  if (ref == kNoBlock || residency_->at(ref).state != BlockState::kFilling) return nullptr;
  return &fills_[residency_->at(ref).owner_data - 1];
}

double FillTable::WaitMs(const Fill& fill) const {
  const double elapsed_ms = static_cast<double>(clock_->NowNanos() - fill.since_nanos) / 1e6;
  return std::max(1.0, average_fill_ms_ - elapsed_ms);
}

Status FillTable::Cover(BlockRef ref, uint32_t heads, const CommitOp& op, bool* complete) {
  Fill& fill = at(ref);
  const uint32_t begin = op.head_begin;
  const uint32_t end = op.head_begin == 0 && op.head_end == 0 ? heads : op.head_end;
  if (begin >= end || end > heads) {
    return Status(Code::kInvalid, "head_begin and head_end are not a range of the block's " +
                                      std::to_string(heads) + " heads");
  }
  const std::pair range(begin, end);
  const auto after = std::upper_bound(fill.ranges.begin(), fill.ranges.end(), range);
  const bool overlaps_after = after != fill.ranges.end() && after->first < end;
  const bool overlaps_before = after != fill.ranges.begin() && std::prev(after)->second > begin;
  if (overlaps_after || overlaps_before) {
    return Status(Code::kInvalid, "some of these heads were committed already");
  }
  fill.covered_heads += end - begin;
  fill.sums = fill.sums + op.sums;
  *complete = fill.covered_heads == heads || Planted(PlantedBug::kRankNotAwaited);
  if (!*complete) fill.ranges.insert(after, range);
  fill.touched_nanos = clock_->NowNanos();
  return Status();
}

void FillTable::Publish(BlockRef ref, uint64_t block_bytes) {
  const Fill& fill = at(ref);
  const double fill_ms = static_cast<double>(clock_->NowNanos() - fill.since_nanos) / 1e6;
  average_fill_ms_ += (fill_ms - average_fill_ms_) / 16;
  const Checksum checksum = FinishChecksum(fill.sums, block_bytes);
  End(ref);
  residency_->Publish(ref, checksum);
}

void FillTable::End(BlockRef ref) {
  at(ref).ref = kNoBlock;
  free_.push_back(residency_->at(ref).owner_data - 1);
  residency_->SetOwnerData(ref, 0);
  if (on_ended) on_ended(residency_->NameOf(ref));
}

void FillTable::Void(BlockRef ref) {
  End(ref);
  residency_->Drop(ref, Leave::kAsked);
}

void FillTable::VoidOverdue(int64_t untouched_since_nanos, size_t* max) {
  for (size_t step = 0; step < std::min(kOverdueSlice, fills_.size()) && *max > 0; ++step) {
    overdue_cursor_ = (overdue_cursor_ + 1) % fills_.size();
    const Fill& fill = fills_[overdue_cursor_];
    if (fill.ref == kNoBlock || fill.touched_nanos > untouched_since_nanos) continue;
    if (on_overdue) on_overdue(fill.ref);
    Void(fill.ref);
    --*max;
  }
}

}  // namespace aquifer
