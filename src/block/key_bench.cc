// How fast prompts become keys: 16, 64 and 256 tokens a block, and the parts around it.
#include <benchmark/benchmark.h>

#include <vector>

#include "aquifer/key.h"
#include "aquifer/layout.h"
#include "base/check.h"
#include "base/crypto/sha256.h"
#include "block/block_id.h"

namespace aquifer {
namespace {

constexpr size_t kPromptTokens = 131'072;

void BM_DeriveChain(benchmark::State& state) {
  const auto tokens_per_block = static_cast<uint32_t>(state.range(0));
  std::vector<uint32_t> tokens(kPromptTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 7919 % 128'256);
  std::vector<Key> keys(tokens.size() / tokens_per_block);
  for (auto _ : state) {
    AQ_CHECK(DeriveChain(Key(), tokens, tokens_per_block, {}, keys).ok());
    benchmark::DoNotOptimize(keys.data());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * keys.size()));
  state.SetLabel("keys; a prompt of 128K tokens");
}
BENCHMARK(BM_DeriveChain)->Arg(16)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

// The limit: a digest of a message as long as that of a key.
void BM_Sha256(benchmark::State& state) {
  const std::vector<std::byte> message(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(Sha256Of(message));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK(BM_Sha256)->Arg(112)->Arg(304)->Arg(1072);

void BM_DeriveRoot(benchmark::State& state) {
  const ChainRoot root = {
      .tenant = "acme", .layout_fingerprint = {}, .adapter_digest = {}, .cache_salt = "user 17"};
  for (auto _ : state) benchmark::DoNotOptimize(DeriveRoot(root));
}
BENCHMARK(BM_DeriveRoot);

void BM_TenantIdOf(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(TenantIdOf("acme"));
}
BENCHMARK(BM_TenantIdOf);

void BM_KeyToAndFromHex(benchmark::State& state) {
  const Key key = {Sha256Of({})};
  for (auto _ : state) benchmark::DoNotOptimize(KeyFromHex(key.ToHex()));
}
BENCHMARK(BM_KeyToAndFromHex);

}  // namespace
}  // namespace aquifer
