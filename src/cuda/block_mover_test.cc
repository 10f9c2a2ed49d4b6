// The mover against a GPU in plain memory: what it copies and sums must be what gather_scatter does
// on the CPU, in whatever order the device gets to it, and whatever of it fails.
#include "cuda/block_mover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <new>

#include "testing/gpu/fake_gpu.h"
#include "testing/gpu/move_case.h"
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

  // Pinned apart, where there are several.
  void Pin(std::initializer_list<std::span<std::byte>> ranges) {
    for (const std::span<std::byte> range : ranges) pins_.Add(range);
    pins_.Use(std::make_unique<FakeGpu>(&log_, FakeGpuOptions{}));
    while (pins_.counts().pinned < ranges.size()) {
    }
  }

  FakeGpuLog log_;
  HostPins pins_;
  std::unique_ptr<BlockMover> mover_;
};

// A case with several blocks, whose slots lie side by side without a gap.
MoveCase DenseCase() {
  for (uint64_t seed = 0;; ++seed) {
    SeededRandom random(seed);
    MoveCase given = RandomMoveCase(&random);
    const bool whole = given.engine.heads.count() == given.layout.groups[0].kv_heads;
    if (whole && given.blocks >= 4 && given.block_bytes() % 4096 == 0) return given;
  }
}

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

// Both ways, by the copy engine and across the link.
TEST_F(BlockMoverTest, PinnedSlotsAreNotCopiedOnTheWay) {
  SeededRandom random(3);
  MoveCase given = RandomMoveCase(&random);
  Slots slots(given, kUntouched);
  Pin({slots.bytes});
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  Slots expected(given, kUntouched);
  std::vector<GatherOp> by_cpu = Gathers(given, &expected);
  Gather(tables.map, by_cpu);
  const Bytes arena = given.arena;
  for (const uint64_t seed : {1, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Start({.seed = seed});
    std::fill(slots.bytes.begin(), slots.bytes.end(), kUntouched);
    std::vector<GatherOp> gathers = Gathers(given, &slots);
    MoveBatch gather{.tables = &tables, .gathers = gathers};
    mover_->Begin(&gather);
    mover_->Wait(gather);
    ASSERT_EQ(slots.bytes, expected.bytes);

    Bytes scattered = arena;
    random.Fill(slots.bytes);
    std::vector<ScatterOp> by_hand = Scatters(given, slots);
    Scatter(given.MapAt(scattered.data()), Verify::kWhileCopying, by_hand);
    std::vector<ScatterOp> scatters = Scatters(given, slots);
    MoveBatch scatter{.tables = &tables, .scatters = scatters};
    mover_->Begin(&scatter);
    mover_->Wait(scatter);
    ASSERT_EQ(given.arena, scattered);
    for (const ScatterOp& op : scatters) ASSERT_TRUE(op.status.ok()) << op.status.ToString();

    EXPECT_EQ(mover_->counts().ringed_blocks, 0u);
    EXPECT_EQ(mover_->counts().direct_blocks, seed == 3 ? 2 * given.blocks : 0u);
    given.arena = arena;
  }
  pins_.Remove(slots.bytes);
}

// A driver copies within one pinned range, and not across two, though they touch.
TEST_F(BlockMoverTest, SlotsThatWerePinnedApartAreCopiedApart) {
  MoveCase given = DenseCase();
  Slots slots(given, kUntouched);
  ASSERT_EQ(slots.stride, given.block_bytes());
  const std::span<std::byte> all(slots.bytes);
  Pin({all.first(2 * slots.stride), all.subspan(2 * slots.stride)});
  const MoverOptions one_chunk{.chunk_bytes = slots.bytes.size(), .chunks = 1, .staged_bytes = 0};
  mover_ = *BlockMover::New(std::make_unique<FakeGpu>(&log_, FakeGpuOptions{}), &pins_, one_chunk);
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  Slots expected(given, kUntouched);
  std::vector<GatherOp> by_cpu = Gathers(given, &expected);
  Gather(tables.map, by_cpu);

  std::vector<GatherOp> gathers = Gathers(given, &slots);
  MoveBatch gather{.tables = &tables, .gathers = gathers};
  mover_->Begin(&gather);
  mover_->Wait(gather);
  EXPECT_EQ(slots.bytes, expected.bytes);
  const uint64_t copies = log_.copies;
  std::vector<ScatterOp> scatters = Scatters(given, slots);
  MoveBatch scatter{.tables = &tables, .scatters = scatters};
  mover_->Begin(&scatter);
  mover_->Wait(scatter);
  EXPECT_EQ(log_.copies - copies, 2u) << "as few as can be";
  EXPECT_EQ(mover_->counts().ringed_blocks, 0u);
}

// The device keeps tables of a few maps: none is freed that something under way uses, and those of
// maps that are not used any more do not stay.
TEST_F(BlockMoverTest, TablesOfManyMapsComeAndGo) {
  constexpr size_t kMaps = 30;
  constexpr uint64_t kMostTables = 8;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    MoveCase given = RandomMoveCase(&random);
    std::vector<MoveTables> tables;
    for (size_t i = 0; i < kMaps; ++i) {
      tables.push_back(MakeMoveTables(given.MapAt(given.arena.data())));
    }
    Slots expected(given, kUntouched);
    std::vector<GatherOp> by_cpu = Gathers(given, &expected);
    Gather(tables[0].map, by_cpu);
    Start({.seed = seed});
    const auto gather = [&](size_t first, size_t count) {
      std::deque<Slots> slots;
      std::deque<std::vector<GatherOp>> ops;
      std::vector<MoveBatch> batches;
      for (size_t i = 0; i < count; ++i) {
        ops.push_back(Gathers(given, &slots.emplace_back(given, kUntouched)));
        batches.push_back({.tables = &tables[first + i], .gathers = ops.back()});
      }
      for (MoveBatch& batch : batches) mover_->Begin(&batch);
      for (const MoveBatch& batch : batches) mover_->Wait(batch);
      for (const Slots& one : slots) ASSERT_EQ(one.bytes, expected.bytes);
    };
    gather(0, kMaps / 2);  // All at once,
    for (int i = 0; i < 3; ++i) gather(0, 1);
    const uint64_t before = log_.open_memory;
    for (size_t i = kMaps / 2; i < kMaps; ++i) gather(i, 1);  // and one at a time.
    EXPECT_LE(log_.open_memory, before + 2 * kMostTables);
    ASSERT_EQ(log_.mistake, "");
  }
}

TEST_F(BlockMoverTest, AMoverThatGoesWaitsForWhatIsUnderWay) {
  SeededRandom random(7);
  MoveCase given = RandomMoveCase(&random);
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  for (uint64_t seed = 1; seed < 20; ++seed) {
    Start({.seed = seed});
    Slots slots(given, kUntouched);
    std::vector<GatherOp> ops = Gathers(given, &slots);
    MoveBatch batch{.tables = &tables, .gathers = ops};
    mover_->Begin(&batch);
    ASSERT_GT(log_.queued, 0u);
    mover_.reset();
    ASSERT_EQ(log_.queued, 0u);
    ASSERT_EQ(log_.mistake, "");
  }
}

// As when the caller's memory runs out in mid-copy, wherever that is.
TEST_F(BlockMoverTest, AnAbandonedBatchIsNotTouchedAndThePathIsOff) {
  SeededRandom random(11);
  MoveCase given = RandomMoveCase(&random);
  const MoveTables tables = MakeMoveTables(given.MapAt(given.arena.data()));
  uint64_t thrown = 0;
  for (uint64_t call = 30; call < 400; ++call) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    log_.calls = 0;
    Start({.seed = call, .throw_call = call});
    Slots slots(given, kUntouched);
    std::vector<GatherOp> ops = Gathers(given, &slots);
    {
      MoveBatch batch{.tables = &tables, .gathers = ops};
      try {
        mover_->Begin(&batch);
        mover_->Wait(batch);
        break;
      } catch (const std::bad_alloc&) {
        ++thrown;
      }
      mover_->Abandon();
      ASSERT_EQ(log_.queued, 0u);
    }
    MoveBatch later{.tables = &tables, .gathers = ops};
    mover_->Begin(&later);
    ASSERT_TRUE(later.done());
    EXPECT_EQ(ops[0].status.code(), Code::kUnavailable);
    EXPECT_THAT(ops[0].status.message(), HasSubstr("the GPU path is off: this process was out"));
  }
  EXPECT_GT(thrown, 10u);
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
    ASSERT_EQ(log_.queued, 0u) << "the slots go back to the node now";
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
