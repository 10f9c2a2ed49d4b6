// The example of README.md, whole: stores one chain, opens the cache anew, and recalls it.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "aquifer/cache.h"

using namespace aquifer;  // NOLINT(google-build-using-namespace)

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : "aquifer-example";
  Layout layout;  // Llama-3-8B: 32 layers, 8 kv heads of 128, bf16.
  layout.groups = {{.layers = 32, .kv_heads = 8, .key_dim = 128, .value_dim = 128}};
  layout.kv_format = "example";
  layout.tokens_per_block = TokensPerBlock(layout);

  std::vector<uint32_t> tokens(4 * layout.tokens_per_block, 42);
  std::vector<Key> keys(4);
  const Key root =
      *DeriveRoot({.tenant = "local", .layout_fingerprint = LayoutFingerprint(layout)});
  if (!DeriveChain(root, tokens, layout.tokens_per_block, {}, keys).ok()) return 1;

  for (const char* run : {"first", "second"}) {
    // [readme]
    CacheOptions options;
    options.dram_bytes = 256 << 20;
    options.nvme_directories = {directory};
    options.nvme_bytes = uint64_t{1} << 30;
    auto cache = Open(options, {.tenant = "local"});
    if (!cache.ok()) return std::puts(cache.status().ToString().c_str()), 1;

    RegisterLayoutRequest registered;
    registered.layout = layout;
    (*cache)->RegisterLayout(&registered);
    (*cache)->Wait(registered);

    FetchRequest fetch;
    fetch.chain = {.layout = registered.handle, .keys = keys};
    (*cache)->Fetch(&fetch);
    (*cache)->Wait(fetch);  // fetch.ops[i].bytes is the block, in place; or why it is not there.
    // [/readme]
    size_t hits = 0;
    for (const FetchOp& op : fetch.ops) {
      if (!op.status.ok()) continue;
      ++hits;
      (*cache)->Release(std::vector<ReleaseOp>{{.lease = op.lease}});
    }
    std::printf("%s run: %zu of %zu blocks recalled\n", run, hits, keys.size());
    if (hits == keys.size()) return 0;

    ReserveRequest reserve;
    reserve.chain = fetch.chain;
    reserve.parent = root;
    (*cache)->Reserve(&reserve);
    (*cache)->Wait(reserve);
    CommitRequest commit;
    for (const ReserveOp& op : reserve.ops) {
      if (op.outcome != ReserveOutcome::kSlot) continue;
      std::memset(op.slot.data(), 7, op.slot.size());  // The engine's KV goes here.
      CommitOp written;
      written.reservation = op.reservation;
      written.sums = SumLanes(op.slot, 0);
      commit.ops.push_back(written);
    }
    (*cache)->Commit(&commit);
    (*cache)->Wait(commit);
    FlushRequest flush;
    (*cache)->Flush(&flush);
    (*cache)->Wait(flush);
    if (!flush.status.ok()) return std::puts(flush.status.ToString().c_str()), 1;
  }
  return 1;
}
