// Lookups in an index of a million blocks: the budget is 5 million keys a second on one core, at a
// cost that does not grow with the chain.
#include <algorithm>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "index/index.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr uint32_t kBlocks = 1'000'000;
constexpr size_t kSlice = 512;

struct Filled {
  std::unique_ptr<Index> index;
  std::vector<std::vector<Key>> chains;
  uint32_t max_blocks = 0;
};

// Chains of one length, stored interleaved as many sessions at once would, so that neighbours in a
// chain are not neighbours in memory.
Filled Fill(size_t chain_blocks) {
  Filled filled;
  const size_t chain_count = kBlocks / chain_blocks;
  filled.max_blocks = static_cast<uint32_t>(chain_count * (chain_blocks + 1));
  filled.index = *Index::Create({.max_blocks = filled.max_blocks, .hash_seed = 1});
  SeededRandom random(chain_blocks);
  filled.chains.resize(chain_count);
  std::vector<Key> roots(chain_count);
  for (Key& root : roots) random.Fill(root.bytes);
  std::vector<uint32_t> order;
  for (uint32_t chain = 0; chain < chain_count; ++chain) {
    order.insert(order.end(), chain_blocks, chain);
    filled.chains[chain].reserve(chain_blocks);
  }
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  for (const uint32_t at : order) {
    std::vector<Key>& chain = filled.chains[at];
    NewBlock block;
    random.Fill(block.name.key.bytes);
    block.parent = chain.empty() ? roots[at] : chain.back();
    block.position = static_cast<uint32_t>(chain.size());
    block.state = BlockState::kResident;
    const BlockRef ref = *filled.index->Insert(block);
    filled.index->SetResident(ref, kTierDram, true);
    chain.push_back(block.name.key);
  }
  return filled;
}

void BM_Match(benchmark::State& state) {
  const Filled filled = Fill(static_cast<size_t>(state.range(0)));
  std::vector<BlockRef> refs(kSlice);
  SeededRandom random(1);
  int64_t keys = 0;
  for (auto unused : state) {
    const std::vector<Key>& chain = filled.chains[random.Below(filled.chains.size())];
    MatchQuery query{.chain = chain, .max_steps = kSlice};
    MatchResult result;
    do {
      result = filled.index->Match(query, refs);
      query.from += result.matched;
    } while (result.end == MatchEnd::kSlice);
    if (query.from != chain.size()) state.SkipWithError("a resident chain did not match");
    keys += static_cast<int64_t>(chain.size());
  }
  state.SetItemsProcessed(keys);
  state.counters["bytes_per_block"] =
      static_cast<double>(filled.index->bytes()) / filled.index->size();
}
BENCHMARK(BM_Match)->Arg(16)->Arg(128)->Arg(1'000)->Arg(8'192)->Arg(65'536);

// The longest that one slice of a match keeps the owner.
void BM_MatchSlice(benchmark::State& state) {
  const Filled filled = Fill(65'536);
  std::vector<BlockRef> refs(kSlice);
  SeededRandom random(1);
  for (auto unused : state) {
    const std::vector<Key>& chain = filled.chains[random.Below(filled.chains.size())];
    const MatchQuery query{
        .chain = chain, .from = random.Below(chain.size() - kSlice), .max_steps = kSlice};
    benchmark::DoNotOptimize(filled.index->Match(query, refs));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kSlice));
}
BENCHMARK(BM_MatchSlice);

void BM_Miss(benchmark::State& state) {
  const Filled filled = Fill(1'000);
  std::vector<Key> chain(1'000);
  SeededRandom random(99);
  for (Key& key : chain) random.Fill(key.bytes);
  std::vector<BlockRef> refs(chain.size());
  for (auto unused : state) {
    random.Fill(chain[0].bytes);
    const MatchQuery query{.chain = chain, .max_steps = kSlice};
    benchmark::DoNotOptimize(filled.index->Match(query, refs));
  }
}
BENCHMARK(BM_Miss);

void BM_FindMany(benchmark::State& state) {
  const Filled filled = Fill(1'000);
  SeededRandom random(5);
  std::vector<Key> keys(100'000);
  for (Key& key : keys) {
    const std::vector<Key>& chain = filled.chains[random.Below(filled.chains.size())];
    key = chain[random.Below(chain.size())];
  }
  std::vector<BlockRef> refs(kSlice);
  size_t at = 0;
  for (auto unused : state) {
    if (at + kSlice > keys.size()) at = 0;
    filled.index->FindMany(0, 0, 0, std::span(keys).subspan(at, kSlice), refs);
    at += kSlice;
    benchmark::DoNotOptimize(refs.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kSlice));
}
BENCHMARK(BM_FindMany);

void BM_FindOne(benchmark::State& state) {
  const Filled filled = Fill(1'000);
  SeededRandom random(5);
  for (auto unused : state) {
    const std::vector<Key>& chain = filled.chains[random.Below(filled.chains.size())];
    BlockName name;
    name.key = chain[random.Below(chain.size())];
    benchmark::DoNotOptimize(filled.index->Find(name));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_FindOne);

// A block takes another's place: what every store does in a full cache.
void BM_InsertAndRemove(benchmark::State& state) {
  Filled filled = Fill(1'000);
  SeededRandom random(11);
  for (auto unused : state) {
    std::vector<Key>& chain = filled.chains[random.Below(filled.chains.size())];
    BlockName last;
    last.key = chain.back();
    const BlockRef old = filled.index->Find(last);
    filled.index->SetResident(old, kTierDram, false);
    filled.index->Remove(old);
    chain.pop_back();
    NewBlock block;
    random.Fill(block.name.key.bytes);
    block.parent = chain.back();
    block.position = static_cast<uint32_t>(chain.size());
    block.state = BlockState::kResident;
    filled.index->SetResident(*filled.index->Insert(block), kTierDram, true);
    chain.push_back(block.name.key);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_InsertAndRemove);

}  // namespace
}  // namespace aquifer
