// A program of its own, because it replaces operator new, which sanitizers do too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "testing/counted_heap.h"
#include "testing/manual_clock.h"
#include "testing/seeded_random.h"
#include "tier/packing/packer.h"
#include "tier/packing/scratch_pool.h"
#include "tier/test_block.h"

namespace aquifer {
namespace {

TEST(PackerHeapTest, PackingAndUnpackingTakeNothingFromTheHeapOnceWarm) {
  ManualClock clock;
  SeededRandom random(1);
  Packer packer({}, &clock, &random);
  auto key = std::make_shared<DataKey>();
  random.Fill(key->id);
  const TestBlock block = TestBlock::OfBFloat16(1, 300'000);
  TestBlock target(1, 300'000);
  ScratchPool pool(1 << 20);
  uint64_t before = 0;
  for (int round = 0; round < 20; ++round) {
    if (round == 2) before = heap_allocations;
    ScratchPool::Buffer scratch = pool.Take(Packer::ScratchBytes(300'000, true, true));
    PackJob job{.meta = block.meta(),
                .source = block.ToWrite().source,
                .dtype = DType::kBFloat16,
                .lossless = true,
                .key = key,
                .scratch = scratch.bytes(),
                .status = {},
                .stored = {}};
    packer.Pack(&job);
    std::memcpy(target.memory().data(), job.stored.data(), job.stored.size());
    UnpackJob back{.meta = job.meta, .target = target.memory(), .key = key, .status = {}};
    packer.Unpack(&back);
    if (!job.status.ok() || !back.status.ok()) std::abort();
  }
  EXPECT_EQ(heap_allocations - before, 0u);
}

}  // namespace
}  // namespace aquifer
