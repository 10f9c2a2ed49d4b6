#include "plan/learned_tier.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash_mix.h"

namespace aquifer {
namespace {

constexpr size_t kMaxAsked = 256;  // As a node does it: a slice at a time.
constexpr uint64_t kMaxChain = 65'536;

}  // namespace

Result<std::unique_ptr<LearnedTier>> LearnedTier::New(const LearnedTierOptions& options) {
  LearnedTierOptions bounded = options;
  bounded.capacity_blocks = std::min(options.capacity_blocks, options.max_references);
  // A new chain comes in before an old one goes.
  const auto refs = static_cast<uint32_t>(bounded.capacity_blocks + kMaxChain);
  AQ_ASSIGN_OR_RETURN(auto order, NewLearnedOrder({.max_blocks = refs}));
  return std::unique_ptr<LearnedTier>(new LearnedTier(bounded, std::move(order)));
}

uint32_t LearnedTier::Find(uint64_t block) const {
  const auto found = refs_.find(block);
  return found == refs_.end() ? kNone : found->second;
}

// As a cache's keys would give them: well mixed, and never 0.
uint64_t LearnedTier::NameOf(uint64_t block) const {
  const auto found = renamed_.find(block);
  uint64_t state = found == renamed_.end() ? block : found->second;
  return SplitMix(&state) | 1;
}

void LearnedTier::Rename(uint64_t from, uint64_t to) {
  if (!runs()) return;
  renamed_[to] = from;
  const auto found = refs_.find(from);
  if (found == refs_.end()) return;
  const uint32_t ref = found->second;
  refs_.erase(found);
  refs_[to] = ref;
  residents_[ref].block = to;
}

// Makes the block known; whoever calls adds it to the order.
uint32_t LearnedTier::Place(uint64_t block, uint32_t parent) {
  uint32_t ref = static_cast<uint32_t>(residents_.size());
  if (free_.empty()) {
    residents_.emplace_back();
  } else {
    ref = free_.back();
    free_.pop_back();
  }
  residents_[ref] = {.block = block, .name = NameOf(block), .parent = parent, .children = 0};
  refs_[block] = ref;
  if (parent != kNone) ++residents_[parent].children;
  return ref;
}

void LearnedTier::Use(uint32_t ref, uint32_t position, int64_t now_nanos) {
  BlockFeatures features;
  features.name = residents_[ref].name;
  features.position = position;
  if (order_->Contains(ref)) {
    order_->Touch(ref, features, now_nanos);
    return;
  }
  order_->Add(ref, features, now_nanos);
  order_->SetLeaf(ref, residents_[ref].children == 0);
}

void LearnedTier::EvictOne() {
  const uint32_t victim = order_->Victim(uint16_t{0});
  AQ_CHECK(victim != kNoVictim);  // Nothing is held, and something is always a leaf.
  order_->Remove(victim);
  const Resident& gone = residents_[victim];
  refs_.erase(gone.block);
  if (gone.parent != kNone && --residents_[gone.parent].children == 0) {
    order_->SetLeaf(gone.parent, true);
  }
  free_.push_back(victim);
}

void LearnedTier::Ask(const TraceRequest& request, std::span<const uint64_t> used) {
  if (!runs()) return;
  used = used.first(std::min<size_t>(used.size(), kMaxChain));
  const size_t prompt = std::min(request.block_ids.size(), used.size());
  const auto now = static_cast<int64_t>(request.timestamp_ms) * 1'000'000;
  size_t hits = 0;
  while (hits < prompt && Find(used[hits]) != kNone) ++hits;
  hits_ += hits;
  references_ += prompt;

  const AskedChain asked{
      .blocks = static_cast<uint32_t>(prompt),
      .full_blocks = static_cast<uint32_t>(
          std::min<uint64_t>(prompt, request.input_tokens / options_.block_tokens)),
      .input_tokens = request.input_tokens,
      .output_tokens = request.output_tokens,
      .session = SessionHint::kNone,
      .name = [this, used](uint32_t position) { return NameOf(used[position]); }};
  AskProgress progress;
  while (order_->Ask(asked, &progress, kMaxAsked, now)) {
  }

  chain_.clear();
  for (const uint64_t block : used) {
    const uint32_t parent = chain_.empty() ? kNone : chain_.back();
    uint32_t ref = Find(block);
    if (ref == kNone) {
      ref = Place(block, parent);
      if (parent != kNone && order_->Contains(parent)) order_->SetLeaf(parent, false);
    }
    chain_.push_back(ref);
  }
  for (size_t i = chain_.size(); i-- > 0;) Use(chain_[i], static_cast<uint32_t>(i), now);
  while (order_->size() > options_.capacity_blocks) EvictOne();
}

}  // namespace aquifer
