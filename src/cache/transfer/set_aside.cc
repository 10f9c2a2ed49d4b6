#include "cache/transfer/set_aside.h"

#include <optional>

#include "cache/residency/flush_waits.h"

namespace aquifer {
namespace {

constexpr size_t kSpareBlocks = 4096;  // Beside twice what DRAM holds: they are gone.
constexpr size_t kTrimSlice = 8;       // For each that is added: faster than it grows.
constexpr size_t kClimbSlice = 64;
constexpr size_t kMostChildren = 64;  // That are looked at; with more, it is worth a write.

}  // namespace

// It was there before, and what goes on from it has stayed: if it went again, that would go too.
bool SetAside::HasChildOnNvme(BlockRef ref) const {
  const Index& index = parts_.residency->index();
  BlockRef child = index.FirstChild(ref);
  for (size_t step = 0; step < kMostChildren && child != kNoBlock; ++step) {
    if (index.at(child).in_tier(kTierNvme)) return true;
    child = index.at(child).next_sibling;
  }
  return child != kNoBlock;
}

bool SetAside::Admit(BlockRef ref, double affordable_part) {
  const Residency& residency = *parts_.residency;
  const BlockRef parent = residency.index().Parent(ref);
  const bool goes_on_from_aside = parent != kNoBlock && residency.set_aside(parent);
  bool admitted = true;
  if (residency.at(ref).pins == 0 && !residency.durable_wanted(ref) && !HasChildOnNvme(ref)) {
    // What nobody asked for yet is part of an answer, and fares as what it goes on from.
    const std::optional<double> reuse = residency.ReuseProbability(ref);
    admitted = reuse ? threshold_.Admit(*reuse, affordable_part) : !goes_on_from_aside;
  }
  ++(admitted ? stats_.admitted_blocks : stats_.set_aside_blocks);
  return admitted;
}

void SetAside::Add(BlockRef ref, uint64_t sequence) {
  const BlockEntry& entry = parts_.residency->at(ref);
  parts_.residency->SetAside(ref, true);
  parts_.unwritten->Add(entry.tenant, sequence);
  const auto known = blocks_.find({entry.tenant, ref});
  if (known != blocks_.end()) {  // Of a block that is gone.
    parts_.unwritten->Remove(entry.tenant, known->second.sequence);
    Erase(known);
  }
  const uint64_t name = parts_.residency->OrderName(ref);
  blocks_[{entry.tenant, ref}] = {.sequence = sequence, .name = name};
  by_age_[{entry.tenant, sequence}] = ref;
  if (blocks_.size() > 2 * parts_.residency->dram_blocks() + kSpareBlocks) TrimSome();
}

// One that was dropped and stored again may have its old ref, and is not set aside.
bool SetAside::IsThere(const Blocks::value_type& block) const {
  const BlockRef ref = block.first.second;
  return parts_.residency->IsStill(ref, block.second.name) && parts_.residency->set_aside(ref);
}

SetAside::Blocks::iterator SetAside::Erase(Blocks::iterator block) {
  by_age_.erase({block->first.first, block->second.sequence});
  return blocks_.erase(block);
}

void SetAside::TakeBack(Blocks::iterator block) {
  const auto [tenant, ref] = block->first;
  const uint64_t sequence = block->second.sequence;
  const bool there = IsThere(*block);
  Erase(block);
  if (there) {
    ++stats_.taken_back_blocks;
    parts_.residency->SetAside(ref, false);
    parts_.take_back(ref, sequence);
  } else {
    parts_.unwritten->Remove(tenant, sequence);
  }
}

size_t SetAside::TakeBack(uint16_t of, uint64_t last_sequence, size_t max) {
  const bool all = of == FlushWaits::kEveryone;
  size_t taken = 0;
  auto next = all ? by_age_.begin() : by_age_.lower_bound({of, 0});
  while (taken < max && next != by_age_.end() && (all || next->first.first == of)) {
    const auto [tenant, sequence] = next->first;
    if (sequence > last_sequence) {
      next = by_age_.lower_bound({static_cast<uint16_t>(tenant + 1), 0});
      continue;
    }
    TakeBack(blocks_.find({tenant, next->second}));
    next = by_age_.lower_bound({tenant, sequence});
    ++taken;
  }
  return taken;
}

void SetAside::OnUsed(BlockRef ref) {
  if (!parts_.residency->set_aside(ref)) return;
  const std::optional<double> reuse = parts_.residency->ReuseProbability(ref);
  if (reuse && threshold_.Passes(*reuse)) Want(ref);
}

void SetAside::Want(BlockRef ref) {
  if (!parts_.residency->set_aside(ref)) return;
  if (wanted_.empty()) ClimbSoon();
  wanted_.insert(ref);
}

void SetAside::ClimbSoon() {
  tasks_.Post([this] { ClimbSome(); });
}

// A ref may name another block by now: then that is written, which does no harm.
void SetAside::ClimbSome() {
  const Residency& residency = *parts_.residency;
  for (size_t step = 0; step < kClimbSlice && !wanted_.empty(); ++step) {
    const BlockRef ref = *wanted_.begin();
    wanted_.erase(wanted_.begin());
    if (!residency.index().Exists(ref) || !residency.set_aside(ref)) continue;
    const BlockRef parent = residency.index().Parent(ref);
    const auto block = blocks_.find({residency.at(ref).tenant, ref});
    if (block == blocks_.end()) continue;  // It is gone, and somebody still uses it.
    TakeBack(block);
    threshold_.Reverse();
    if (parent != kNoBlock && residency.set_aside(parent)) wanted_.insert(parent);
  }
  if (!wanted_.empty()) return ClimbSoon();
  parts_.on_taken_back();
}

void SetAside::TrimSome() {
  auto next = blocks_.lower_bound(trim_cursor_);
  for (size_t step = 0; step < kTrimSlice && next != blocks_.end(); ++step) {
    if (IsThere(*next)) {
      ++next;
      continue;
    }
    parts_.unwritten->Remove(next->first.first, next->second.sequence);
    next = Erase(next);
  }
  trim_cursor_ = next == blocks_.end() ? Place{} : next->first;
}

}  // namespace aquifer
