// A program of its own, because it replaces operator new, which sanitizers do too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "block/tensor/gather_scatter.h"
#include "testing/counted_heap.h"

namespace aquifer {
namespace {

TEST(GatherScatterHeapTest, CopiesTakeNothingFromTheHeap) {
  Layout layout;
  layout.kv_format = "test/1";
  layout.tokens_per_block = 32;
  KvGroup group;
  group.layers = 1;
  group.kv_heads = 4;
  group.key_dim = group.value_dim = 64;
  layout.groups = {group};
  // K in NHD and V in HND order: short runs, and some of 2 KiB.
  constexpr uint64_t kPlaneBytes = 4 * 16 * 4 * 128;
  std::vector<std::byte> arena(2 * kPlaneBytes);
  EngineLayout engine;
  engine.heads = {0, 4};
  engine.pages = 4;
  engine.page_tokens = 16;
  engine.planes = {{arena.data(), kPlaneBytes, 8192, 128, 512},
                   {arena.data() + kPlaneBytes, kPlaneBytes, 8192, 2048, 128}};
  const auto map = CompileEngineLayout(layout, 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  std::vector<std::byte> slot(map->block_bytes);
  const std::vector<uint32_t> table = {3, 0, 2, 1};
  GatherOp gather;
  gather.place = {table, 0};
  gather.slot = slot;
  ScatterOp scatter;
  scatter.place = {table, 1};
  scatter.slot = slot;

  const uint64_t before = heap_allocations;
  for (int round = 0; round < 100; ++round) {
    Gather(*map, {&gather, 1});
    scatter.checksum = FinishChecksum(gather.sums, slot.size());
    Scatter(*map, Verify::kWhileCopying, {&scatter, 1});
    Scatter(*map, Verify::kFirst, {&scatter, 1});
    if (!gather.status.ok() || !scatter.status.ok()) std::abort();
    scatter.checksum.low ^= 1;
    Scatter(*map, Verify::kWhileCopying, {&scatter, 1});
    if (scatter.status.code() != Code::kCorrupt) std::abort();
  }
  EXPECT_EQ(heap_allocations - before, 0u);
}

}  // namespace
}  // namespace aquifer
