// The mover on a real GPU, against gather_scatter on the CPU. Skipped where there is none;
// tools/gpu-check runs it, and under compute-sanitizer too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda/block_mover.h"
#include "cuda/cuda_device.h"
#include "cuda/device_memory.h"
#include "testing/gpu/move_case.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0xee};

uint64_t Seeds() {
  const char* const given = std::getenv("AQUIFER_GPU_SEEDS");  // Few, where a checker slows it.
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 200;
}

// A case whose arena is also in the GPU's memory.
class OnGpu {
 public:
  explicit OnGpu(const MoveCase& given) : given_(given), device_(*NewCudaDevice(0)) {
    queue_ = *device_->NewQueue();
    memory_ = *device_->NewDeviceMemory(given.arena.size() + 16);
    Put(given.arena);
    tables_ = MakeMoveTables(given.MapAt(reinterpret_cast<std::byte*>(memory_)));
  }

  const MoveTables& tables() const { return tables_; }
  uint64_t memory() const { return memory_; }

  void Put(const Bytes& bytes) { Copy(bytes.size(), memory_, Staged(bytes)); }

  Bytes Get() {
    const std::span<std::byte> pinned = *device_->NewPinnedMemory(given_.arena.size());
    Copy(pinned.size(), reinterpret_cast<uint64_t>(pinned.data()), memory_);
    Bytes bytes(pinned.begin(), pinned.end());
    device_->FreePinnedMemory(pinned);
    return bytes;
  }

 private:
  uint64_t Staged(const Bytes& bytes) {
    const std::span<std::byte> pinned = *device_->NewPinnedMemory(bytes.size());
    std::memcpy(pinned.data(), bytes.data(), bytes.size());
    return reinterpret_cast<uint64_t>(pinned.data());
  }

  void Copy(uint64_t bytes, uint64_t to, uint64_t from) {
    const GpuCopy copy{.to = to, .from = from, .bytes = bytes};
    ASSERT_TRUE(device_->Copy(queue_, std::span(&copy, 1)).ok());
    device_->Drain();
  }

  const MoveCase& given_;
  std::unique_ptr<GpuDevice> device_;
  GpuDevice::Queue queue_ = 0;
  uint64_t memory_ = 0;
  MoveTables tables_;
};

struct Slots {
  Slots(const MoveCase& given, std::byte fill)
      : stride((given.block_bytes() + 4095) / 4096 * 4096), bytes(stride * given.blocks, fill) {}

  std::span<std::byte> Of(const MoveCase& given, uint32_t block) {
    return std::span(bytes).subspan(block * stride, given.block_bytes());
  }

  uint64_t stride;
  Bytes bytes;
};

std::vector<GatherOp> Gathers(const MoveCase& given, Slots* slots) {
  std::vector<GatherOp> ops(given.blocks);
  for (uint32_t i = 0; i < given.blocks; ++i) {
    ops[i].place = {given.pages, i};
    ops[i].slot = slots->Of(given, i);
  }
  return ops;
}

std::vector<ScatterOp> Scatters(const MoveCase& given, Slots* slots) {
  std::vector<ScatterOp> ops(given.blocks);
  for (uint32_t i = 0; i < given.blocks; ++i) {
    ops[i].place = {given.pages, i};
    ops[i].slot = slots->Of(given, i);
    ops[i].checksum = ChecksumOf(ops[i].slot);
  }
  return ops;
}

class GpuTest : public testing::Test {
 protected:
  // The context goes with its last user, and takes long to come.
  static void SetUpTestSuite() {
    Result<std::unique_ptr<GpuDevice>> device = NewCudaDevice(0);
    if (device.ok()) keeper_ = device->release();
  }
  static void TearDownTestSuite() { delete std::exchange(keeper_, nullptr); }

  void SetUp() override {
    const auto name = DescribeCudaDevice(0);
    if (!name.ok()) GTEST_SKIP() << name.status().message();
  }

  // Staged and across the link, in turn; small chunks, so that a batch takes several.
  std::unique_ptr<BlockMover> NewMover(uint64_t seed) {
    MoverOptions options{.chunk_bytes = 24 << 10, .chunks = 3, .staged_bytes = 0};
    if (seed % 3 == 0) options.staged_bytes = 1 << 20;
    return *BlockMover::New(*NewCudaDevice(0), &pins_, options);
  }

  static inline GpuDevice* keeper_ = nullptr;
  HostPins pins_;
};

TEST_F(GpuTest, GathersAndSumsWhatTheCpuDoes) {
  for (uint64_t seed = 0; seed < Seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    MoveCase given = RandomMoveCase(&random);
    Slots expected(given, kUntouched);
    std::vector<GatherOp> by_cpu = Gathers(given, &expected);
    Gather(given.MapAt(given.arena.data()), by_cpu);

    OnGpu gpu(given);
    Slots slots(given, kUntouched);
    std::vector<GatherOp> ops = Gathers(given, &slots);
    MoveBatch batch{.tables = &gpu.tables(), .gathers = ops};
    const auto mover = NewMover(seed);
    mover->Begin(&batch);
    mover->Wait(batch);
    ASSERT_EQ(slots.bytes, expected.bytes);
    for (uint32_t i = 0; i < given.blocks; ++i) {
      ASSERT_TRUE(ops[i].status.ok()) << ops[i].status.ToString();
      ASSERT_EQ(ops[i].sums, by_cpu[i].sums);
    }
  }
}

TEST_F(GpuTest, ScattersWhatTheCpuDoesAndFindsDamage) {
  for (uint64_t seed = 0; seed < Seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    MoveCase given = RandomMoveCase(&random);
    const auto verify = static_cast<Verify>(random.Below(3));
    Slots slots(given, kUntouched);
    random.Fill(slots.bytes);
    std::vector<ScatterOp> ops = Scatters(given, &slots);
    if (random.Below(2) == 0) {
      slots.Of(given, static_cast<uint32_t>(random.Below(given.blocks)))[0] ^= std::byte{1};
    }
    Bytes expected = given.arena;
    std::vector<ScatterOp> by_cpu = ops;
    Scatter(given.MapAt(expected.data()), verify, by_cpu);

    OnGpu gpu(given);
    MoveBatch batch{.tables = &gpu.tables(), .scatters = ops, .verify = verify};
    const auto mover = NewMover(seed);
    mover->Begin(&batch);
    mover->Wait(batch);
    ASSERT_EQ(gpu.Get(), expected);
    for (uint32_t i = 0; i < given.blocks; ++i) {
      ASSERT_EQ(ops[i].status.code(), by_cpu[i].status.code());
    }
  }
}

TEST_F(GpuTest, PinnedSlotsAreCopiedWhereTheyAre) {
  SeededRandom random(4);
  MoveCase given = RandomMoveCase(&random);
  OnGpu gpu(given);
  Slots slots(given, kUntouched);
  // Whole pages, which a vector's memory is not.
  void* memory = nullptr;
  ASSERT_EQ(::posix_memalign(&memory, 4096, slots.bytes.size()), 0);
  const std::span<std::byte> pinned(static_cast<std::byte*>(memory), slots.bytes.size());
  std::fill(pinned.begin(), pinned.end(), kUntouched);
  pins_.Add(pinned);
  pins_.Use(*NewCudaDevice(0));
  while (pins_.counts().waiting > 0) {
  }
  ASSERT_TRUE(pins_.failure().ok()) << pins_.failure().ToString();
  std::vector<GatherOp> by_cpu = Gathers(given, &slots);
  Gather(given.MapAt(given.arena.data()), by_cpu);
  for (const uint64_t seed : {0, 1}) {
    std::vector<GatherOp> ops = by_cpu;
    for (uint32_t i = 0; i < given.blocks; ++i) {
      ops[i].slot = pinned.subspan(i * slots.stride, given.block_bytes());
    }
    MoveBatch batch{.tables = &gpu.tables(), .gathers = ops};
    const auto mover = NewMover(seed);
    mover->Begin(&batch);
    mover->Wait(batch);
    EXPECT_EQ(mover->counts().ringed_blocks, 0u);
    EXPECT_TRUE(std::equal(pinned.begin(), pinned.end(), slots.bytes.begin()));
  }
  pins_.Remove(pinned);
  std::free(memory);
}

TEST_F(GpuTest, KnowsWhoseMemoryItIs) {
  SeededRandom random(4);
  const MoveCase given = RandomMoveCase(&random);
  const OnGpu gpu(given);
  const auto of_gpu = DeviceOfMemory(reinterpret_cast<const void*>(gpu.memory()));
  ASSERT_TRUE(of_gpu.ok()) << of_gpu.status().ToString();
  EXPECT_EQ(*of_gpu, 0);
  const auto of_host = DeviceOfMemory(&random);
  ASSERT_TRUE(of_host.ok()) << of_host.status().ToString();
  EXPECT_EQ(*of_host, kHostMemory);
}

TEST_F(GpuTest, ADeviceWithoutMemoryIsAStatus) {
  const auto device = *NewCudaDevice(0);
  EXPECT_EQ(device->NewDeviceMemory(uint64_t{1} << 50).status().code(), Code::kNoSpace);
}

// In a process of its own: a lost context stays lost.
int LoseTheContext() {
  SeededRandom random(4);
  const MoveCase given = RandomMoveCase(&random);
  const MoveTables nowhere = MakeMoveTables(given.MapAt(reinterpret_cast<std::byte*>(4096)));
  const HostPins pins;
  auto mover = BlockMover::New(*NewCudaDevice(0), &pins);
  Slots slots(given, kUntouched);
  std::vector<GatherOp> ops = Gathers(given, &slots);
  MoveBatch batch{.tables = &nowhere, .gathers = ops};
  (*mover)->Begin(&batch);
  (*mover)->Wait(batch);
  std::fprintf(stderr, "%s\n", ops[0].status.ToString().c_str());
  if (ops[0].status.code() != Code::kUnavailable) return 1;
  MoveBatch later{.tables = &nowhere, .gathers = ops};
  (*mover)->Begin(&later);
  return later.done() && !(*mover)->status().ok() ? 0 : 2;
}

TEST_F(GpuTest, ALostContextTurnsThePathOffAndNothingElse) {
  if (std::getenv("AQUIFER_GPU_SEEDS") != nullptr) GTEST_SKIP() << "a checker reports it";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(LoseTheContext()), testing::ExitedWithCode(0), "the GPU path is off");
}

}  // namespace
}  // namespace aquifer
