#include "cache/residency/chain_walk.h"

#include <utility>

namespace aquifer {
namespace {

constexpr size_t kMaxLookedAtBelow = 64;

}  // namespace

bool ChainWalk::Up(size_t max, BlockName* next, const Visit& visit) const {
  const Index& index = residency_->index();
  for (size_t step = 0; step < max; ++step) {
    const BlockRef ref = index.Find(*next);
    const LostLink* const gone = ref == kNoBlock ? residency_->LinkAbove(*next) : nullptr;
    if (ref == kNoBlock && gone == nullptr) return false;
    const uint32_t position = gone == nullptr ? index.at(ref).position : gone->position;
    const Key key = std::exchange(next->key, gone == nullptr ? index.ParentKey(ref) : gone->parent);
    visit(ref, key, position);
    if (!IsBefore(*next, position)) return false;
  }
  return true;
}

bool ChainWalk::Keys(size_t max, BlockName* next, std::vector<Key>* keys, bool* whole) const {
  *whole = false;
  return Up(max, next, [&](BlockRef, const Key& key, uint32_t position) {
    keys->push_back(key);
    *whole = position == 0;
  });
}

bool ChainWalk::IsBefore(const BlockName& above, uint32_t position) const {
  if (position == 0) return false;
  const Index& index = residency_->index();
  const BlockRef ref = index.Find(above);
  if (ref != kNoBlock) return index.at(ref).position < position;
  const LostLink* const gone = residency_->LinkAbove(above);
  return gone == nullptr || gone->position < position;
}

std::optional<bool> ChainWalk::HasOtherBelow(const BlockName& name, std::optional<Key> own) const {
  const Index& index = residency_->index();
  BlockRef child = index.FirstChildOf(name);
  for (size_t looked = 0; child != kNoBlock && looked < kMaxLookedAtBelow; ++looked) {
    const BlockEntry& entry = index.at(child);
    child = entry.next_sibling;
    if (entry.state == BlockState::kGone) continue;
    if (!own) own = entry.key;
    if (entry.key != *own) return true;
  }
  if (child != kNoBlock) return std::nullopt;
  for (const Key& key : residency_->DurableBelow(name, 2)) {
    if (!own) own = key;
    if (key != *own) return true;
  }
  return false;
}

NotedBlock ChainWalk::Note(BlockRef ref) const {
  const BlockEntry& entry = residency_->at(ref);
  return {.ref = ref, .tenant = entry.tenant, .key_bits = entry.key.Prefix64()};
}

bool ChainWalk::Holds(const NotedBlock& noted) const {
  if (!residency_->index().Exists(noted.ref)) return false;
  const BlockEntry& entry = residency_->at(noted.ref);
  return entry.state == BlockState::kResident && entry.tenant == noted.tenant &&
         entry.key.Prefix64() == noted.key_bits;
}

}  // namespace aquifer
