// The mover against a GPU in plain memory: what it copies and sums must be what gather_scatter does
// on the CPU, in whatever order the device gets to it, and whatever of it fails.
#include "cuda/block_mover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/fake_gpu.h"
#include "testing/move_case.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0xee};

// A few small chunks, so that a batch takes several.
constexpr MoverOptions kSmall{.chunk_bytes = 24 << 10, .chunks = 3, .staged_bytes = 0};

// Slots side by side, as in an extent.
struct Slots {
  Slots(const MoveCase& given, std::byte fill)
      : stride((given.block_bytes() + 4095) / 4096 * 4096), bytes(stride * given.blocks, fill) {
    for (uint32_t i = 0; i < given.blocks; ++i) {
      spans.push_back(std::span(bytes).subspan(i * stride, given.block_bytes()));
    }
  }

  uint64_t stride;
  Bytes bytes;
  std::vector<std::span<std::byte>> spans;
};

std::vector<GatherOp> Gathers(const MoveCase& given, Slots* slots) {
  std::vector<GatherOp> ops(given.blocks);
  for (uint32_t i = 0; i < given.blocks; ++i) {
    ops[i].place = {given.pages, i};
    ops[i].slot = slots->spans[i];
  }
  return ops;
}

std::vector<ScatterOp> Scatters(const MoveCase& given, const Slots& slots) {
  std::vector<ScatterOp> ops(given.blocks);
  for (uint32_t i = 0; i < given.blocks; ++i) {
    ops[i].place = {given.pages, i};
    ops[i].slot = slots.spans[i];
    ops[i].checksum = ChecksumOf(slots.spans[i]);
  }
  return ops;
}

class BlockMoverTest : public testing::Test {
 protected:
  ~BlockMoverTest() override {
    mover_.reset();
    EXPECT_EQ(log_.mistake, "");
    EXPECT_EQ(log_.open_memory, 0u);
  }

  void Start(const FakeGpuOptions& options = {}) {
    MoverOptions small = kSmall;
    if (options.seed % 3 == 0) small.staged_bytes = 1 << 20;  // Across the link.
    auto mover = BlockMover::New(std::make_unique<FakeGpu>(&log_, options), &pins_, small);
    ASSERT_TRUE(mover.ok()) << mover.status().ToString();
    mover_ = *std::move(mover);
  }

  FakeGpuLog log_;
  HostPins pins_;
  std::unique_ptr<BlockMover> mover_;
};

TEST_F(BlockMoverTest, GathersWhatTheCpuGathers) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    MoveCase given = RandomMoveCase(&random);
    const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
    Slots expected(given, kUntouched);
    std::vector<GatherOp> by_cpu = Gathers(given, &expected);
    Gather(tables.map, by_cpu);

    Start({.seed = seed});
    Slots slots(given, kUntouched);
    std::vector<GatherOp> ops = Gathers(given, &slots);
    MoveBatch batch{.tables = &tables, .gathers = ops};
    mover_->Begin(&batch);
    mover_->Wait(batch);

    ASSERT_EQ(slots.bytes, expected.bytes);
    for (uint32_t i = 0; i < given.blocks; ++i) {
      ASSERT_TRUE(ops[i].status.ok()) << ops[i].status.ToString();
      ASSERT_EQ(ops[i].sums, by_cpu[i].sums);
    }
  }
}

TEST_F(BlockMoverTest, ScattersWhatTheCpuScatters) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    MoveCase given = RandomMoveCase(&random);
    const auto verify = static_cast<Verify>(random.Below(3));
    Slots slots(given, kUntouched);
    random.Fill(slots.bytes);
    Bytes expected = given.arena;
    std::vector<ScatterOp> by_cpu = Scatters(given, slots);
    Scatter(given.MapAt(expected.data()), verify, by_cpu);

    Start({.seed = seed});
    const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
    std::vector<ScatterOp> ops = Scatters(given, slots);
    MoveBatch batch{.tables = &tables, .scatters = ops, .verify = verify};
    mover_->Begin(&batch);
    mover_->Wait(batch);

    ASSERT_EQ(given.arena, expected);
    for (uint32_t i = 0; i < given.blocks; ++i) {
      ASSERT_TRUE(ops[i].status.ok()) << ops[i].status.ToString();
      if (verify == Verify::kNever) {
        ASSERT_EQ(ops[i].sums, by_cpu[i].sums);
      }
    }
  }
}

TEST_F(BlockMoverTest, ADamagedBlockIsFoundAndCheckedFirstItChangesNothing) {
  for (const Verify verify : {Verify::kWhileCopying, Verify::kFirst}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      SeededRandom random(seed);
      MoveCase given = RandomMoveCase(&random);
      Slots slots(given, kUntouched);
      random.Fill(slots.bytes);
      std::vector<ScatterOp> ops = Scatters(given, slots);
      const size_t bad = random.Below(given.blocks);
      slots.spans[bad][random.Below(given.block_bytes())] ^= std::byte{4};
      Bytes expected = given.arena;
      std::vector<ScatterOp> by_cpu = ops;
      Scatter(given.MapAt(expected.data()), verify, by_cpu);

      Start({.seed = seed});
      const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
      MoveBatch batch{.tables = &tables, .scatters = ops, .verify = verify};
      mover_->Begin(&batch);
      mover_->Wait(batch);
      for (uint32_t i = 0; i < given.blocks; ++i) {
        ASSERT_EQ(ops[i].status.code(), i == bad ? Code::kCorrupt : Code::kOk) << i;
      }
      ASSERT_EQ(given.arena, expected);
    }
  }
}

TEST_F(BlockMoverTest, PinnedSlotsAreNotCopiedOnTheWay) {
  SeededRandom random(3);
  MoveCase given = RandomMoveCase(&random);
  Slots slots(given, kUntouched);
  auto pinning = std::make_unique<FakeGpu>(&log_, FakeGpuOptions{});
  pins_.Add(slots.bytes);
  pins_.Use(std::move(pinning));
  while (pins_.counts().pinned == 0) {
  }
  auto device = std::make_unique<FakeGpu>(&log_, FakeGpuOptions{});
  ASSERT_TRUE(device->Pin(slots.bytes).ok());  // One table for all, on a real one.
  mover_ = *BlockMover::New(std::move(device), &pins_, kSmall);
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  std::vector<GatherOp> ops = Gathers(given, &slots);
  MoveBatch batch{.tables = &tables, .gathers = ops};
  mover_->Begin(&batch);
  mover_->Wait(batch);
  EXPECT_EQ(mover_->counts().ringed_blocks, 0u);
  Slots expected(given, kUntouched);
  std::vector<GatherOp> by_cpu = Gathers(given, &expected);
  Gather(tables.map, by_cpu);
  EXPECT_EQ(slots.bytes, expected.bytes);
  pins_.Remove(slots.bytes);
}

TEST_F(BlockMoverTest, AWrongBlockIsItsOwnFailure) {
  Start();
  SeededRandom random(5);
  MoveCase given = RandomMoveCase(&random);
  given.blocks = std::max(given.blocks, 1u);
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  Slots slots(given, kUntouched);
  std::vector<GatherOp> ops = Gathers(given, &slots);
  ops.push_back(ops.back());
  ops.back().place.index = 1000;
  std::vector<uint32_t> pages = given.pages;
  pages[0] = 1'000'000;
  ops.push_back(ops.front());
  ops.back().place.page_table = pages;
  MoveBatch batch{.tables = &tables, .gathers = ops};
  mover_->Begin(&batch);
  mover_->Wait(batch);
  for (uint32_t i = 0; i < given.blocks; ++i) EXPECT_TRUE(ops[i].status.ok());
  EXPECT_THAT(ops[given.blocks].status.message(), HasSubstr("whole blocks"));
  EXPECT_THAT(ops[given.blocks + 1].status.message(), HasSubstr("1000000"));
  EXPECT_TRUE(mover_->status().ok());
}

// Whichever call fails: every block has an answer, the path is off, and nothing is under way.
TEST_F(BlockMoverTest, AfterAFailureEverythingIsAnsweredAndThePathIsOff) {
  SeededRandom random(11);
  MoveCase given = RandomMoveCase(&random);
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  uint64_t failures = 0;
  for (uint64_t fail = 1; fail < 400; ++fail) {
    SCOPED_TRACE(testing::Message() << "call " << fail);
    log_.calls = 0;
    auto made = BlockMover::New(
        std::make_unique<FakeGpu>(&log_, FakeGpuOptions{.seed = fail, .fail_call = fail}), &pins_,
        kSmall);
    if (!made.ok()) {
      ++failures;
      continue;
    }
    Slots slots(given, kUntouched);
    std::vector<GatherOp> gathers = Gathers(given, &slots);
    std::vector<ScatterOp> scatters = Scatters(given, slots);
    MoveBatch first{.tables = &tables, .gathers = gathers};
    MoveBatch second{.tables = &tables, .scatters = scatters, .verify = Verify::kNever};
    (*made)->Begin(&first);
    (*made)->Begin(&second);
    (*made)->Wait(first);
    (*made)->Wait(second);
    if ((*made)->status().ok()) break;
    ++failures;
    EXPECT_EQ(scatters.back().status.code(), Code::kUnavailable);
    EXPECT_THAT(scatters.back().status.message(), HasSubstr("the GPU path is off: the fake GPU"));
    for (const GatherOp& op : gathers) {
      ASSERT_TRUE(op.status.ok() || op.status.code() == Code::kUnavailable);
    }
    MoveBatch third{.tables = &tables, .gathers = gathers};
    (*made)->Begin(&third);
    EXPECT_TRUE(third.done());
    EXPECT_EQ(gathers.front().status.code(), Code::kUnavailable);
  }
  EXPECT_GT(failures, 40u);
}

TEST(MoveTablesTest, DividersDivide) {
  SeededRandom random(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto by = static_cast<uint32_t>(1 + random.Below(uint64_t{1} << (1 + random.Below(31))));
    const auto n = static_cast<uint32_t>(random.Below(uint64_t{1} << (1 + random.Below(31))));
    ASSERT_EQ(Quotient(n, DivideBy(by)), n / by) << n << " / " << by;
  }
}

}  // namespace
}  // namespace aquifer
