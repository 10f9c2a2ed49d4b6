#include "policy/eviction/block_history.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr int kMaxGhostSteps = 64;  // Over blocks that the tier has.
constexpr int kMaxRecentSteps = 512;

uint16_t PagesOf(uint64_t bytes) {
  constexpr uint64_t kPageBytes = BlockHistory::kPageBytes;
  const uint64_t pages = bytes / kPageBytes + (bytes % kPageBytes == 0 ? 0 : 1);
  return static_cast<uint16_t>(std::clamp<uint64_t>(pages, 1, UINT16_MAX));
}

}  // namespace

BlockHistory::BlockHistory() {
  oldest_in_.fill(kNoRecord);
  hash_.push_back(std::make_unique_for_overwrite<uint32_t[]>(kHashChunk));
  std::fill_n(hash_.back().get(), kHashChunk, kNoRecord);
}

// --- By name

uint32_t BlockHistory::SlotOf(uint64_t name) const {
  const auto wide = static_cast<uint32_t>(name & (2 * uint64_t{slots_before_} - 1));
  return wide < slots_ ? wide : wide & (slots_before_ - 1);
}

uint32_t BlockHistory::Find(uint64_t name) const {
  const uint32_t index = SlotOf(name);
  uint32_t record = hash_[index / kHashChunk][index % kHashChunk];
  while (record != kNoRecord && at(record).name != name) record = at(record).hash_next;
  return record;
}

void BlockHistory::SplitSlot() {
  if (slots_ == hash_.size() * kHashChunk) {
    hash_.push_back(std::make_unique_for_overwrite<uint32_t[]>(kHashChunk));
    std::fill_n(hash_.back().get(), kHashChunk, kNoRecord);
  }
  uint32_t record = slot(slots_ - slots_before_);
  slot(slots_ - slots_before_) = kNoRecord;
  ++slots_;
  while (record != kNoRecord) {
    BlockRecord& moved = at(record);
    const uint32_t next = moved.hash_next;
    uint32_t& target = slot(SlotOf(moved.name));
    moved.hash_next = target;
    target = record;
    record = next;
  }
  if (slots_ == 2 * slots_before_) slots_before_ = slots_;
}

uint32_t BlockHistory::Add(uint64_t name, uint64_t bytes, int64_t now_nanos) {
  uint32_t record = free_;
  if (record != kNoRecord) {
    free_ = at(record).newer;
  } else {
    if (used_chunks_end_ == chunks_.size() * kChunk) {
      chunks_.push_back(std::make_unique<BlockRecord[]>(kChunk));
    }
    record = used_chunks_end_++;
  }
  BlockRecord& added = at(record);
  added = {};
  added.name = name;
  added.pages = PagesOf(bytes);
  if (name != 0) {
    uint32_t& head = slot(SlotOf(name));
    added.hash_next = head;
    head = record;
  }
  ++size_;
  if (size_ > slots_) SplitSlot();
  Link(record, now_nanos);
  return record;
}

void BlockHistory::Remove(uint32_t record) {
  BlockRecord& removed = at(record);
  Unlink(record);
  if (removed.name != 0) {
    uint32_t* link = &slot(SlotOf(removed.name));
    while (*link != record) link = &at(*link).hash_next;
    *link = removed.hash_next;
  }
  removed.newer = free_;
  free_ = record;
  --size_;
}

// --- By last use

void BlockHistory::Link(uint32_t record, int64_t now_nanos) {
  BlockRecord& linked = at(record);
  last_used_nanos_ = std::max(last_used_nanos_ + 1, now_nanos);
  linked.used_nanos = last_used_nanos_;
  linked.bucket = 0;
  linked.newer = kNoRecord;
  linked.older = newest_;
  if (newest_ != kNoRecord) at(newest_).newer = record;
  newest_ = record;
  if (oldest_in_[0] == kNoRecord) oldest_in_[0] = record;
  linked.in_recent = true;
  recent_pages_ += linked.pages;
  if (oldest_recent_ == kNoRecord) oldest_recent_ = record;
}

void BlockHistory::Unlink(uint32_t record) {
  BlockRecord& linked = at(record);
  if (oldest_in_[linked.bucket] == record) {
    const bool more = linked.newer != kNoRecord && at(linked.newer).bucket == linked.bucket;
    oldest_in_[linked.bucket] = more ? linked.newer : kNoRecord;
  }
  if (linked.in_recent) {
    if (linked.missed()) --missed_blocks_;
    recent_pages_ -= linked.pages;
    if (oldest_recent_ == record) oldest_recent_ = linked.newer;
  }
  if (ghost_cursor_ == record) ghost_cursor_ = linked.newer;
  if (linked.newer != kNoRecord) at(linked.newer).older = linked.older;
  if (linked.older != kNoRecord) at(linked.older).newer = linked.newer;
  if (newest_ == record) newest_ = linked.older;
}

void BlockHistory::Use(uint32_t record, int64_t now_nanos) {
  Unlink(record);
  Link(record, now_nanos);
  if (at(record).missed()) ++missed_blocks_;
}

void BlockHistory::Ask(uint32_t record, int64_t now_nanos) {
  Unlink(record);
  at(record).evicted = false;
  Link(record, now_nanos);
}

uint32_t BlockHistory::GrowOlder(int64_t now_nanos) {
  for (; growing_ + 1 < kAgeBuckets; ++growing_) {
    const uint32_t record = oldest_in_[growing_];
    if (record == kNoRecord || now_nanos - at(record).used_nanos < AgeBucketEnd(growing_)) continue;
    BlockRecord& older = at(record);
    const bool more = older.newer != kNoRecord && at(older.newer).bucket == growing_;
    oldest_in_[growing_] = more ? older.newer : kNoRecord;
    ++older.bucket;
    if (oldest_in_[older.bucket] == kNoRecord) oldest_in_[older.bucket] = record;
    return record;
  }
  growing_ = 0;
  return kNoRecord;
}

void BlockHistory::NoteGhost(uint32_t record) {
  if (ghost_cursor_ == kNoRecord || at(record).used_nanos < at(ghost_cursor_).used_nanos) {
    ghost_cursor_ = record;
  }
}

void BlockHistory::Admit(uint32_t record, uint32_t ref) {
  if (at(record).missed()) --missed_blocks_;
  at(record).ref = ref;
}

void BlockHistory::GiveUp(uint32_t record) {
  at(record).ref = kNoRecord;
  at(record).evicted = true;
  if (at(record).missed()) ++missed_blocks_;
  NoteGhost(record);
}

uint32_t BlockHistory::OldestGhost() {
  for (int step = 0; step < kMaxGhostSteps && ghost_cursor_ != kNoRecord; ++step) {
    if (at(ghost_cursor_).ghost()) return ghost_cursor_;
    ghost_cursor_ = at(ghost_cursor_).newer;
  }
  return kNoRecord;
}

uint64_t BlockHistory::SetRecent(uint64_t pages) {
  int steps = 0;
  uint64_t rightly = 0;
  for (; recent_pages_ > pages && steps < kMaxRecentSteps; ++steps) {
    BlockRecord& out = at(oldest_recent_);
    if (out.missed()) {
      --missed_blocks_;
      ++rightly;
    }
    out.in_recent = false;
    oldest_recent_ = out.newer;
    recent_pages_ -= out.pages;
  }
  for (; recent_pages_ < pages && steps < kMaxRecentSteps; ++steps) {
    const uint32_t next = oldest_recent_ == kNoRecord ? newest_ : at(oldest_recent_).older;
    if (next == kNoRecord || recent_pages_ + at(next).pages > pages) break;
    at(next).in_recent = true;
    if (at(next).missed()) ++missed_blocks_;
    oldest_recent_ = next;
    recent_pages_ += at(next).pages;
  }
  return rightly;
}

uint64_t BlockHistory::bytes() const {
  return chunks_.size() * kChunk * sizeof(BlockRecord) +
         hash_.size() * kHashChunk * sizeof(uint32_t);
}

}  // namespace aquifer
