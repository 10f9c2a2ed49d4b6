// The packer and what it stands on: the choice of a codec, its budget, and scratch memory.
#include "tier/packing/packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "testing/manual_clock.h"
#include "testing/seeded_random.h"
#include "tier/packing/scratch_pool.h"
#include "tier/test_block.h"

namespace aquifer {
namespace {

// ---- Whether it pays ----

TEST(CodecChoiceTest, ItPaysWhereTheStoreIsTheSlowest) {
  CodecPace pace{.store_bytes_per_second = 200e6,
                 .encode_bytes_per_second = 1.4e9,
                 .decode_bytes_per_second = 3.3e9,
                 .ratio = 0.68};
  EXPECT_TRUE(LosslessPays(pace));
  pace.store_bytes_per_second = 1.2e9;  // Encoding still keeps up.
  EXPECT_TRUE(LosslessPays(pace));
  pace.store_bytes_per_second = 1.4e9;  // As fast as the encoder: nothing is won.
  EXPECT_FALSE(LosslessPays(pace));
  pace.store_bytes_per_second = 6e9;
  EXPECT_FALSE(LosslessPays(pace));
}

TEST(CodecChoiceTest, WhatDoesNotBecomeSmallerDoesNotPay) {
  CodecPace pace{.store_bytes_per_second = 100e6,
                 .encode_bytes_per_second = 1.4e9,
                 .decode_bytes_per_second = 3.3e9,
                 .ratio = 1.0};
  EXPECT_FALSE(LosslessPays(pace));
  pace.ratio = 0.94;
  EXPECT_TRUE(LosslessPays(pace));
}

TEST(CodecChoiceTest, ASlowDecoderCountsAsMuchAsASlowEncoder) {
  const CodecPace pace{.store_bytes_per_second = 1e9,
                       .encode_bytes_per_second = 5e9,
                       .decode_bytes_per_second = 0.9e9,
                       .ratio = 0.68};
  EXPECT_FALSE(LosslessPays(pace));
}

TEST(CodecChoiceTest, WhatIsNotMeasuredIsTried) {
  EXPECT_TRUE(LosslessPays({}));
  EXPECT_TRUE(LosslessPays({.store_bytes_per_second = 1e9}));
}

TEST(CpuBudgetTest, WhatIsSpentComesBackAtTheGivenRate) {
  CpuBudget budget(0.5);
  EXPECT_TRUE(budget.MaySpend(1'000));
  budget.Spend(150'000'000);  // 50 ms were saved: 100 ms are owed.
  EXPECT_FALSE(budget.MaySpend(1'000));
  EXPECT_FALSE(budget.MaySpend(200'000'000));
  EXPECT_TRUE(budget.MaySpend(200'010'000));
  // What is not used does not add up for ever.
  EXPECT_TRUE(budget.MaySpend(1'000'000'000'000));
  budget.Spend(50'000'001);
  EXPECT_FALSE(budget.MaySpend(1'000'000'000'000));
}

// ---- Scratch memory ----

TEST(ScratchPoolTest, ItIsBoundedAndUsedAgain) {
  ScratchPool pool(64 << 10);
  ScratchPool::Buffer first = pool.Take(30'000);
  ScratchPool::Buffer second = pool.Take(30'000);
  ASSERT_GE(first.bytes().size(), 30'000u);
  ASSERT_GE(second.bytes().size(), 30'000u);
  EXPECT_NE(first.bytes().data(), second.bytes().data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.bytes().data()) % 4096, 0u);
  EXPECT_TRUE(pool.Take(4096).bytes().empty());
  const std::byte* const at = first.bytes().data();
  first.Release();
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_EQ(pool.Take(30'000).bytes().data(), at);
  second.Release();
  EXPECT_EQ(pool.used_bytes(), 0u);
  // Another size makes room for itself.
  EXPECT_GE(pool.Take(60'000).bytes().size(), 60'000u);
}

TEST(ScratchPoolTest, WhatIsLargerThanThePoolIsGivenAlone) {
  ScratchPool pool(8192);
  ScratchPool::Buffer small = pool.Take(4096);
  EXPECT_TRUE(pool.Take(100'000).bytes().empty());
  small.Release();
  const ScratchPool::Buffer large = pool.Take(100'000);
  EXPECT_GE(large.bytes().size(), 100'000u);
  EXPECT_TRUE(pool.Take(4096).bytes().empty());
}

TEST(ScratchPoolTest, ABufferMayOutliveItsPool) {
  auto pool = std::make_unique<ScratchPool>(1 << 20);
  ScratchPool::Buffer buffer = pool->Take(5000);
  pool.reset();
  std::ranges::fill(buffer.bytes(), std::byte{1});
  buffer.Release();
}

// ---- The packer ----

class PackerTest : public testing::TestWithParam<std::pair<bool, bool>> {
 protected:
  static bool lossless() { return GetParam().first; }
  SharedDataKey key() const { return GetParam().second ? key_ : nullptr; }

  static SharedDataKey MakeKey(uint64_t seed) {
    SeededRandom random(seed);
    auto key = std::make_shared<DataKey>();
    random.Fill(key->id);
    random.Fill(key->secret.writable());
    return key;
  }

  PackJob Pack(const TestBlock& block) {
    PackJob job{.meta = block.meta(),
                .source = block.ToWrite().source,
                .dtype = DType::kBFloat16,
                .lossless = lossless(),
                .key = key(),
                .scratch = {},
                .status = {},
                .stored = {}};
    scratch_ = pool_.Take(std::max<size_t>(
        1, Packer::ScratchBytes(block.meta().raw_bytes, lossless(), job.key != nullptr)));
    job.scratch = scratch_.bytes();
    packer_.Pack(&job);
    return job;
  }

  // What a store would bring back of it.
  UnpackJob Unpack(const PackJob& job, TestBlock* target) {
    std::ranges::copy(job.stored, target->memory().begin());
    UnpackJob back{.meta = job.meta, .target = target->memory(), .key = key(), .status = {}};
    packer_.Unpack(&back);
    return back;
  }

  ManualClock clock_;
  SeededRandom random_{3};
  const SharedDataKey key_ = MakeKey(1);
  Packer packer_{{}, &clock_, &random_};
  ScratchPool pool_{64 << 20};
  ScratchPool::Buffer scratch_;
};

TEST_P(PackerTest, WhatIsPackedIsUnpackedBitForBit) {
  for (const uint64_t bytes :
       {uint64_t{512}, uint64_t{4096}, uint64_t{70'000}, uint64_t{2} << 20}) {
    const TestBlock block = TestBlock::OfBFloat16(bytes, bytes);
    const PackJob job = Pack(block);
    ASSERT_TRUE(job.status.ok()) << job.status.ToString();
    EXPECT_EQ(job.stored.size() % 4096, 0u);
    EXPECT_EQ(job.meta.raw_bytes, bytes);
    if (lossless() && bytes >= 70'000) {
      EXPECT_EQ(job.meta.codec, Codec::kLossless);
      EXPECT_LT(job.meta.stored_bytes, bytes * 3 / 4);
    }
    if (!lossless() && key() == nullptr) {
      EXPECT_EQ(job.stored.data(), block.ToWrite().source.data()) << "it was copied";
    }
    TestBlock target(1, bytes);
    const UnpackJob back = Unpack(job, &target);
    EXPECT_TRUE(back.status.ok()) << back.status.ToString();
    EXPECT_TRUE(std::ranges::equal(target.raw(), block.raw())) << bytes;
  }
}

TEST_P(PackerTest, ASourceThatIsNotWhatItsSumSaysIsRefused) {
  TestBlock block = TestBlock::OfBFloat16(1, 8192);
  block.memory()[5000] ^= std::byte{4};
  EXPECT_EQ(Pack(block).status.code(), Code::kCorrupt);
}

TEST_P(PackerTest, EveryFlippedBitOfWhatIsStoredIsNoticed) {
  const TestBlock block = TestBlock::OfBFloat16(2, 20'000);
  PackJob job = Pack(block);
  ASSERT_TRUE(job.status.ok());
  std::vector<std::byte> stored(job.stored.begin(), job.stored.end());
  job.stored = stored;
  for (size_t bit = 0; bit < job.meta.stored_bytes * 8; bit += 1001) {
    stored[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    TestBlock target(1, 20'000);
    const UnpackJob back = Unpack(job, &target);
    EXPECT_EQ(back.status.code(), Code::kCorrupt) << bit;
    EXPECT_EQ(back.refused_seal, key() != nullptr);
    stored[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST_P(PackerTest, BehindWhatIsStoredThereAreZeros) {
  const TestBlock block = TestBlock::OfBFloat16(3, 70'000);
  Pack(block);  // Leaves its own bytes in the scratch memory.
  const PackJob job = Pack(TestBlock::OfBFloat16(4, 60'001));
  if (job.stored.data() != job.scratch.data()) return;  // The source's own.
  const auto rest = job.stored.subspan(job.meta.stored_bytes);
  EXPECT_TRUE(std::ranges::all_of(rest, [](std::byte one) { return one == std::byte{0}; }));
}

INSTANTIATE_TEST_SUITE_P(All, PackerTest,
                         testing::Values(std::pair(false, false), std::pair(true, false),
                                         std::pair(false, true), std::pair(true, true)),
                         [](const auto& info) {
                           return std::string(info.param.first ? "Lossless" : "AsItIs") +
                                  (info.param.second ? "Sealed" : "Plain");
                         });

TEST(PackerChoiceTest, OnlyElementsThatTheCodecKnowsAreTried) {
  ManualClock clock;
  SeededRandom random(1);
  Packer packer({}, &clock, &random);
  EXPECT_TRUE(packer.ShouldTryLossless(LosslessUse::kWherePays, 1e8, DType::kBFloat16));
  EXPECT_TRUE(packer.ShouldTryLossless(LosslessUse::kWherePays, 1e8, DType::kFloat16));
  EXPECT_FALSE(packer.ShouldTryLossless(LosslessUse::kWherePays, 1e8, DType::kFloat8E4M3));
  EXPECT_FALSE(packer.ShouldTryLossless(LosslessUse::kWherePays, 1e8, DType::kUInt8));
}

TEST(PackerChoiceTest, WhereItDoesNotPayOneInSixtyFourIsTriedAllTheSame) {
  ManualClock clock;
  SeededRandom random(1);
  Packer packer({}, &clock, &random);
  const TestBlock block(1, 65536);  // Noise: it does not become smaller.
  ScratchPool pool(1 << 20);
  ScratchPool::Buffer scratch = pool.Take(Packer::ScratchBytes(65536, true, false));
  PackJob job{.meta = block.meta(),
              .source = block.ToWrite().source,
              .dtype = DType::kBFloat16,
              .lossless = true,
              .key = {},
              .scratch = scratch.bytes(),
              .status = {},
              .stored = {}};
  packer.Pack(&job);
  EXPECT_EQ(job.meta.codec, Codec::kNone);
  EXPECT_GT(packer.pace().ratio, 0.95);
  int tried = 0;
  for (int i = 0; i < 640; ++i)
    tried += packer.ShouldTryLossless(LosslessUse::kWherePays, 1e8, DType::kBFloat16) ? 1 : 0;
  EXPECT_EQ(tried, 10);
  EXPECT_TRUE(packer.ShouldTryLossless(LosslessUse::kAlways, 1e8, DType::kBFloat16));
  EXPECT_FALSE(packer.ShouldTryLossless(LosslessUse::kNever, 1e8, DType::kBFloat16));
}

TEST(PackerChoiceTest, WithoutProcessorTimeTheCodecIsTheFirstToGo) {
  ManualClock clock;
  SeededRandom random(1);
  Packer packer({.keys = nullptr, .codec_cores = 0}, &clock, &random);
  EXPECT_FALSE(packer.ShouldTryLossless(LosslessUse::kWherePays, 1e8, DType::kBFloat16));
  EXPECT_FALSE(packer.ShouldTryLossless(LosslessUse::kAlways, 1e8, DType::kBFloat16));
}

TEST(PackerThreadsTest, ManyThreadsPackAtOnce) {
  ManualClock clock;
  Packer packer({}, &clock, SystemRandom());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&packer, t] {
      SeededRandom random(t);
      auto key = std::make_shared<DataKey>();
      random.Fill(key->id);
      ScratchPool pool(1 << 20);
      for (uint64_t i = 0; i < 10; ++i) {
        const TestBlock block = TestBlock::OfBFloat16(t * 100 + i, 70'000);
        ScratchPool::Buffer scratch = pool.Take(Packer::ScratchBytes(70'000, true, true));
        PackJob job{.meta = block.meta(),
                    .source = block.ToWrite().source,
                    .dtype = DType::kBFloat16,
                    .lossless = true,
                    .key = key,
                    .scratch = scratch.bytes(),
                    .status = {},
                    .stored = {}};
        packer.Pack(&job);
        TestBlock target(1, 70'000);
        std::ranges::copy(job.stored, target.memory().begin());
        UnpackJob back{.meta = job.meta, .target = target.memory(), .key = key, .status = {}};
        packer.Unpack(&back);
        EXPECT_TRUE(back.status.ok());
        EXPECT_TRUE(std::ranges::equal(target.raw(), block.raw()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace aquifer
