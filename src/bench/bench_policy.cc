// The memory that the learned eviction order takes for a block, and its speed.
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash_mix.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"
#include "policy/eviction/learned_order.h"

namespace aquifer {
namespace {

constexpr uint32_t kBlocks = 200'000;
constexpr uint32_t kChainBlocks = 24;
constexpr uint32_t kRounds = 6;  // By then there are as many ghosts as it keeps.

// A full tier, of which the oldest blocks make room for what is asked for next: chains that are
// never asked for again, the most that there is to remember.
class FullTier {
 public:
  static Result<std::unique_ptr<FullTier>> New() {
    AQ_ASSIGN_OR_RETURN(auto order, NewLearnedOrder({.max_blocks = kBlocks}));
    auto tier = std::make_unique<FullTier>(std::move(order));
    for (uint32_t i = 0; i < kRounds * kBlocks / kChainBlocks; ++i) tier->AskNew();
    return tier;
  }

  explicit FullTier(std::unique_ptr<EvictionOrder> order) : order_(std::move(order)) {}

  const EvictionOrder& order() const { return *order_; }

  // A chain of blocks that nobody asked for before.
  void AskNew() {
    now_nanos_ += 200'000'000;
    for (uint64_t& name : names_) name = SplitMix(&seed_) | 1;
    const AskedChain chain = {.blocks = kChainBlocks,
                              .full_blocks = kChainBlocks,
                              .input_tokens = 512 * kChainBlocks,
                              .name = [this](uint32_t i) { return names_[i]; }};
    AskProgress progress;
    while (order_->Ask(chain, &progress, kChainBlocks, now_nanos_)) {
    }
    for (uint32_t i = kChainBlocks; i-- > 0;) {
      const uint32_t ref = TakeRef();
      BlockFeatures features;
      features.name = names_[i];
      features.position = i;
      order_->Add(ref, features, now_nanos_);
    }
  }

 private:
  uint32_t TakeRef() {
    if (order_->size() < kBlocks) return order_->size();
    const uint32_t victim = order_->Victim(uint16_t{0});
    AQ_CHECK(victim != kNoVictim);
    order_->Remove(victim);
    return victim;
  }

  const std::unique_ptr<EvictionOrder> order_;
  std::array<uint64_t, kChainBlocks> names_{};
  uint64_t seed_ = 1;
  int64_t now_nanos_ = 0;
};

class BytesContest final : public Contest {
 public:
  explicit BytesContest(std::unique_ptr<FullTier> tier) : tier_(std::move(tier)) {}

  Result<double> Limit() override { return 350; }
  Result<double> Ours() override {
    return static_cast<double>(tier_->order().bytes()) / static_cast<double>(tier_->order().size());
  }

 private:
  const std::unique_ptr<FullTier> tier_;
};

class BlocksContest final : public Contest {
 public:
  explicit BlocksContest(std::unique_ptr<FullTier> tier) : tier_(std::move(tier)) {}

  Result<double> Limit() override { return 0.25; }
  Result<double> Ours() override {
    constexpr uint32_t kChains = 5'000;
    const Stopwatch watch;
    for (uint32_t i = 0; i < kChains; ++i) tier_->AskNew();
    return kChains * kChainBlocks / 1e6 / watch.Seconds();
  }

 private:
  const std::unique_ptr<FullTier> tier_;
};

template <class SomeContest>
Result<std::unique_ptr<Contest>> Prepare(const BenchEnvironment& /*environment*/) {
  AQ_ASSIGN_OR_RETURN(auto tier, FullTier::New());
  return std::unique_ptr<Contest>(std::make_unique<SomeContest>(std::move(tier)));
}

}  // namespace

void AddPolicyRows(std::vector<Row>* rows) {
  rows->push_back({.name = "policy.blocks",
                   .unit = "Mblocks/s",
                   .limit_is =
                       "the design's figure: 250 000 blocks asked for, stored and evicted a "
                       "second on one core, tables included",
                   .goal = 1,
                   .prepare = Prepare<BlocksContest>});
  rows->push_back({.name = "policy.bytes",
                   .unit = "bytes/block",
                   .limit_is = "the design's figure: 350 bytes a block, with its ghosts",
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = Prepare<BytesContest>,
                   .rounds = 1,
                   .quick_rounds = 1});
}

}  // namespace aquifer
