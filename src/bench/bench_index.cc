// How fast the index matches chains, and what it needs a block.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "aquifer/key.h"
#include "base/check.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"
#include "index/index.h"

namespace aquifer {
namespace {

constexpr uint32_t kBlocks = 1'000'000;
constexpr size_t kSliceKeys = 512;  // The owner takes so many at once.
constexpr size_t kKeysPerRound = 2'000'000;

// A million blocks in chains of one length. Keys are as even as hashes; deriving them for real
// would only make the preparation longer.
struct FilledIndex {
  std::unique_ptr<Index> index;
  std::vector<Key> keys;  // Chain after chain.
  size_t chain_keys = 0;
};

Result<FilledIndex> Fill(size_t chain_keys) {
  FilledIndex filled;
  filled.chain_keys = chain_keys;
  const size_t chains = kBlocks / chain_keys;
  // Every chain has a root, for which the index keeps a placeholder.
  AQ_ASSIGN_OR_RETURN(filled.index,
                      Index::Create({.max_blocks = static_cast<uint32_t>(chains * (chain_keys + 1)),
                                     .hash_seed = 1}));
  filled.keys.resize(chains * chain_keys);
  FillFromSeed(std::as_writable_bytes(std::span(filled.keys)), 7);
  for (size_t chain = 0; chain < chains; ++chain) {
    Key parent;
    FillFromSeed(std::as_writable_bytes(std::span(&parent, 1)), ~uint64_t{chain});
    for (size_t i = 0; i < chain_keys; ++i) {
      const Key& key = filled.keys[chain * chain_keys + i];
      AQ_ASSIGN_OR_RETURN(
          const BlockRef ref,
          filled.index->Insert({.name = {.tenant = 1, .group = 0, .part = 0, .key = key},
                                .parent = parent,
                                .position = static_cast<uint32_t>(i),
                                .state = BlockState::kResident,
                                .checksum = {}}));
      filled.index->SetResident(ref, kTierDram, true);
      parent = key;
    }
  }
  return filled;
}

class MatchContest final : public Contest {
 public:
  explicit MatchContest(FilledIndex filled) : filled_(std::move(filled)) {}

  Result<double> Limit() override { return 5; }

  // Chains in a scattered order, so that each comes from memory and not from the processor's cache.
  Result<double> Ours() override {
    const size_t chains = filled_.keys.size() / filled_.chain_keys;
    constexpr size_t kStride = 7919;  // A prime: visits every chain before it repeats one.
    size_t matched = 0;
    const Stopwatch watch;
    while (matched < kKeysPerRound) {
      next_chain_ = (next_chain_ + kStride) % chains;
      const size_t chain_matched = MatchChain(
          std::span(filled_.keys).subspan(next_chain_ * filled_.chain_keys, filled_.chain_keys));
      AQ_CHECK(chain_matched == filled_.chain_keys);
      matched += chain_matched;
    }
    return static_cast<double>(matched) / 1e6 / watch.Seconds();
  }

 private:
  size_t MatchChain(std::span<const Key> chain) {
    refs_.resize(kSliceKeys);
    size_t matched = 0;
    MatchEnd end = MatchEnd::kSlice;
    while (end == MatchEnd::kSlice) {
      const MatchResult result = filled_.index->Match({.tenant = 1,
                                                       .tiers = TierBit(kTierDram),
                                                       .chain = chain,
                                                       .from = matched,
                                                       .max_steps = kSliceKeys},
                                                      refs_);
      matched += result.matched;
      end = result.end;
    }
    return matched;
  }

  FilledIndex filled_;
  std::vector<BlockRef> refs_;
  size_t next_chain_ = 0;
};

class BytesContest final : public Contest {
 public:
  explicit BytesContest(FilledIndex filled) : filled_(std::move(filled)) {}

  Result<double> Limit() override { return 150; }
  Result<double> Ours() override {
    return static_cast<double>(filled_.index->bytes()) / static_cast<double>(filled_.index->size());
  }

 private:
  const FilledIndex filled_;
};

constexpr size_t kShortChain = 1'000;
constexpr size_t kLongChain = 65'536;

template <class SomeContest, size_t chain_keys>
Result<std::unique_ptr<Contest>> Prepare(const BenchEnvironment& /*environment*/) {
  AQ_ASSIGN_OR_RETURN(FilledIndex filled, Fill(chain_keys));
  return std::unique_ptr<Contest>(std::make_unique<SomeContest>(std::move(filled)));
}

}  // namespace

void AddIndexRows(std::vector<Row>* rows) {
  const char* const match_limit = "the design's figure: 5 million keys a second on one core";
  rows->push_back({.name = "index.match",
                   .unit = "Mkeys/s",
                   .limit_is = match_limit,
                   .goal = 1,
                   .prepare = Prepare<MatchContest, kShortChain>});
  rows->push_back({.name = "index.match_65536",
                   .unit = "Mkeys/s",
                   .limit_is = match_limit,
                   .goal = 1,
                   .prepare = Prepare<MatchContest, kLongChain>});
  rows->push_back({.name = "index.bytes",
                   .unit = "bytes/block",
                   .limit_is = "the design's figure: 150 bytes a block, with a million blocks",
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = Prepare<BytesContest, kShortChain>,
                   .rounds = 1,
                   .quick_rounds = 1});
}

}  // namespace aquifer
