#include "sim/replay/replay_order.h"

#include <algorithm>
#include <utility>

#include "policy/admission/write_threshold.h"
#include "policy/eviction/eviction_order.h"
#include "policy/eviction/leaf_recency.h"
#include "policy/eviction/learned_order.h"

namespace aquifer {
namespace {

constexpr uint32_t kNoParent = UINT32_MAX;
constexpr size_t kMaxAsked = 256;  // A slice at a time, as a node does.

// Names like a cache's keys: well mixed, and never 0.
uint64_t NameOf(uint32_t block) {
  uint64_t z = (uint64_t{block} + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  return (z ^ (z >> 31)) | 1;
}

// One tier: an order, with the count of blocks below each block. Refs are the blocks' numbers.
class ReplayTier {
 public:
  ReplayTier(std::unique_ptr<EvictionOrder> order, const std::vector<uint32_t>* parents)
      : order_(std::move(order)), parents_(parents), children_(parents->size()) {}

  EvictionOrder& order() { return *order_; }
  bool Has(uint32_t block) const { return order_->Contains(block); }
  bool HasBelow(uint32_t block) const { return children_[block] > 0; }

  void Use(uint32_t block, uint32_t position, int64_t now) {
    BlockFeatures features;
    features.name = NameOf(block);
    features.position = position;
    if (Has(block)) {
      order_->Touch(block, features, now);
      return;
    }
    order_->Add(block, features, now);
    order_->SetLeaf(block, children_[block] == 0);
    CountChild((*parents_)[block], 1);
  }

  // Returns the evicted block, or kNoVictim if there is none.
  uint32_t EvictOne() {
    const uint32_t victim = order_->Victim(uint16_t{0});
    if (victim == kNoVictim) return kNoVictim;
    order_->Remove(victim);
    CountChild((*parents_)[victim], -1);
    return victim;
  }

 private:
  void CountChild(uint32_t parent, int by) {
    if (parent == kNoParent) return;
    const bool was_leaf = children_[parent] == 0;
    children_[parent] += static_cast<uint32_t>(by);
    const bool leaf = children_[parent] == 0;
    if (leaf != was_leaf && Has(parent)) order_->SetLeaf(parent, leaf);
  }

  const std::unique_ptr<EvictionOrder> order_;
  const std::vector<uint32_t>* const parents_;
  std::vector<uint32_t> children_;  // By block: how many of its children are there.
};

std::vector<uint32_t> ParentsOf(const ReplayTrace& trace) {
  std::vector<uint32_t> parents(trace.distinct, kNoParent);
  uint32_t seen = 0;
  for (const ReplayRequest& request : trace.requests) {
    const auto blocks = trace.BlocksOf(request);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] != seen) continue;
      ++seen;
      if (i > 0) parents[blocks[i]] = blocks[i - 1];
    }
  }
  return parents;
}

class OrderPolicy : public ReplayPolicy {
 public:
  OrderPolicy(const ReplayTrace& trace, ReplayOrderOptions options,
              std::unique_ptr<EvictionOrder> dram)
      : options_(std::move(options)),
        parents_(ParentsOf(trace)),
        dram_(std::move(dram), &parents_) {}

  uint32_t Use(const ReplayRequest& request, std::span<const uint32_t> blocks) override {
    uint32_t hits = 0;
    while (hits < blocks.size() && Has(blocks[hits])) ++hits;
    Ask(request, blocks);
    for (size_t i = blocks.size(); i-- > 0;) {
      UseBlock(blocks[i], static_cast<uint32_t>(i), request.at_nanos);
    }
    WriteDown(blocks, request.at_nanos);
    while (dram_.order().size() > options_.capacity_blocks) LeaveDram(dram_.EvictOne());
    ++requests_;
    return hits;
  }

 protected:
  virtual bool Has(uint32_t block) const { return dram_.Has(block); }
  virtual void UseBlock(uint32_t block, uint32_t position, int64_t now) {
    dram_.Use(block, position, now);
  }
  virtual void WriteDown(std::span<const uint32_t> /*blocks*/, int64_t /*now*/) {}
  virtual void LeaveDram(uint32_t /*block*/) {}
  virtual void Ask(const ReplayRequest& request, std::span<const uint32_t> blocks) {
    AskOrder(request, blocks, &dram_.order());
  }

  void AskOrder(const ReplayRequest& request, std::span<const uint32_t> blocks,
                EvictionOrder* order) {
    const AskedChain chain = {
        .blocks = request.blocks,
        .full_blocks = request.full_blocks,
        .input_tokens = request.input_tokens,
        .output_tokens = request.output_tokens,
        .session = options_.hints.empty() ? SessionHint::kNone : options_.hints[requests_],
        .name = [blocks](uint32_t position) { return NameOf(blocks[position]); }};
    AskProgress progress;
    while (order->Ask(chain, &progress, kMaxAsked, request.at_nanos)) {
    }
  }

  const ReplayOrderOptions options_;
  const std::vector<uint32_t> parents_;
  ReplayTier dram_;

 private:
  size_t requests_ = 0;
};

// DRAM above NVMe, as a node has them. A block's copy on NVMe stays when it is brought up again.
// All that is stored is written, or the part that is likeliest to return; the rest is set aside, in
// DRAM alone, until it is used again or a block that goes on from it is written
// (cache/transfer/set_aside.h).
class TwoTierPolicy final : public OrderPolicy {
 public:
  TwoTierPolicy(const ReplayTrace& trace, ReplayOrderOptions options,
                std::unique_ptr<EvictionOrder> dram, std::unique_ptr<EvictionOrder> nvme)
      : OrderPolicy(trace, std::move(options), std::move(dram)),
        nvme_(std::move(nvme), &parents_),
        threshold_({.written_part = options_.written_part}),
        aside_(trace.distinct) {}

  uint64_t writes() const override { return writes_; }

 private:
  bool Has(uint32_t block) const override { return dram_.Has(block) || nvme_.Has(block); }

  void Ask(const ReplayRequest& request, std::span<const uint32_t> blocks) override {
    OrderPolicy::Ask(request, blocks);
    AskOrder(request, blocks, &nvme_.order());
  }

  void UseBlock(uint32_t block, uint32_t position, int64_t now) override {
    dram_.Use(block, position, now);
    if (nvme_.Has(block)) nvme_.Use(block, position, now);
  }

  // Heads first, as they are committed.
  void WriteDown(std::span<const uint32_t> blocks, int64_t now) override {
    for (const uint32_t block : blocks) {
      if (nvme_.Has(block)) continue;
      const double reuse = nvme_.order().ReuseProbability(NameOf(block)).value_or(1);
      if (!aside_[block]) {
        aside_[block] = !nvme_.HasBelow(block) && !threshold_.Admit(reuse);
      } else if (options_.written_part < 1 && threshold_.Passes(reuse)) {
        aside_[block] = false;
        threshold_.Reverse();
      }
      if (!aside_[block]) WriteWithParents(block, now);
    }
    while (nvme_.order().size() > options_.nvme_blocks) {
      const uint32_t given_up = nvme_.EvictOne();
      if (dram_.Has(given_up)) aside_[given_up] = true;
    }
  }

  // Whole prefixes are written.
  void WriteWithParents(uint32_t block, int64_t now) {
    Write(block, now);
    for (uint32_t above = parents_[block]; above != kNoParent && aside_[above];
         above = parents_[above]) {
      aside_[above] = false;
      threshold_.Reverse();
      Write(above, now);
    }
  }

  void Write(uint32_t block, int64_t now) {
    nvme_.Use(block, 0, now);
    ++writes_;
  }

  // It is nowhere any more.
  void LeaveDram(uint32_t block) override { aside_[block] = false; }

  ReplayTier nvme_;
  WriteThreshold threshold_;
  std::vector<bool> aside_;  // By block: in DRAM alone.
  uint64_t writes_ = 0;
};

// As a node makes them.
Result<std::unique_ptr<EvictionOrder>> NewOrder(bool learned, uint32_t blocks, bool is_dram) {
  if (!learned) return NewLeafRecency({.max_blocks = std::max(blocks, 1u)});
  return NewLearnedOrder({.max_blocks = std::max(blocks, 1u), .compare_with_lru = is_dram});
}

}  // namespace

Result<std::unique_ptr<ReplayPolicy>> NewOrderPolicy(std::string_view name,
                                                     const ReplayTrace& trace,
                                                     ReplayOrderOptions options) {
  const bool learned = name == "learned";
  const bool two_tiers = options.nvme_blocks > 0;
  if (!learned && name != "lru-leaf" && !(two_tiers && name == "lru")) {
    return std::unique_ptr<ReplayPolicy>();
  }
  AQ_ASSIGN_OR_RETURN(auto dram, NewOrder(learned, trace.distinct, /*is_dram=*/true));
  if (!two_tiers) {
    return std::unique_ptr<ReplayPolicy>(
        std::make_unique<OrderPolicy>(trace, std::move(options), std::move(dram)));
  }
  AQ_ASSIGN_OR_RETURN(auto nvme, NewOrder(learned, trace.distinct, /*is_dram=*/false));
  return std::unique_ptr<ReplayPolicy>(
      std::make_unique<TwoTierPolicy>(trace, std::move(options), std::move(dram), std::move(nvme)));
}

}  // namespace aquifer
