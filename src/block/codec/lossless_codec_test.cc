#include "block/codec/lossless_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "block/codec/lossless_kernel.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

uint16_t BFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Normal numbers only, which is what these are.
uint16_t Float16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  if (exponent <= 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | static_cast<uint32_t>(exponent) << 10 |
                               (bits >> 13 & 0x3ff));
}

Bytes Gaussian(DType dtype, size_t values, uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal;
  Bytes bytes(values * 2);
  for (size_t i = 0; i < values; ++i) {
    const float value = normal(bits);
    PutU16(bytes.data() + i * 2, dtype == DType::kBFloat16 ? BFloat16(value) : Float16(value));
  }
  return bytes;
}

Bytes Noise(size_t count, uint64_t seed) {
  Bytes bytes(count);
  SeededRandom(seed).Fill(bytes);
  return bytes;
}

Bytes Encoded(DType dtype, const Bytes& raw) {
  LosslessEncoder encoder;
  Bytes stored(MaxLosslessBytes(raw.size()));
  stored.resize(encoder.Encode(dtype, raw, stored));
  return stored;
}

Status Decode(const Bytes& stored, Bytes* raw) { return DecodeLossless(stored, *raw); }

// Runs a test with each kernel that the processor has.
class LosslessCodecTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (GetParam() >= LosslessKernels().size()) GTEST_SKIP() << "not on this processor";
    ForceLosslessKernel(&LosslessKernels()[GetParam()]);
  }
  void TearDown() override { ForceLosslessKernel(nullptr); }

  static void ExpectReturns(DType dtype, const Bytes& raw) {
    const Bytes stored = Encoded(dtype, raw);
    EXPECT_LE(stored.size(), MaxLosslessBytes(raw.size()));
    Bytes back(raw.size(), std::byte{0x5a});
    ASSERT_TRUE(Decode(stored, &back).ok()) << raw.size();
    EXPECT_TRUE(back == raw) << raw.size();
  }
};

TEST_P(LosslessCodecTest, EveryLengthComesBackAsItWas) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3}) {
    const Bytes values = Gaussian(DType::kBFloat16, 140000, 1);
    for (const size_t bytes :
         {0, 1, 2, 255, 256, 257, 4096, 131071, 131072, 131074, 131328, 262144, 262145, 279999}) {
      ExpectReturns(dtype, Bytes(values.begin(), values.begin() + static_cast<ptrdiff_t>(bytes)));
    }
  }
}

TEST_P(LosslessCodecTest, EveryPatternOfSixteenBitsComesBackAsItWas) {
  Bytes all(65536 * 2);
  for (size_t i = 0; i < 65536; ++i) PutU16(all.data() + i * 2, static_cast<uint16_t>(i));
  ExpectReturns(DType::kBFloat16, all);
  ExpectReturns(DType::kFloat16, all);
}

// A value that the sample of the rows does not show is coded all the same: by the escape.
TEST_P(LosslessCodecTest, ValuesThatTheSampleMissedComeBackAsTheyWere) {
  Bytes raw = Gaussian(DType::kBFloat16, 65536, 2);
  const Bytes noise = Noise(256, 3);
  for (size_t row = 1; row < 512; row += 8) {
    std::memcpy(raw.data() + row * 256, noise.data(), noise.size());
  }
  ExpectReturns(DType::kBFloat16, raw);
}

TEST_P(LosslessCodecTest, ExtremeFrequenciesComeBackAsTheyWere) {
  ExpectReturns(DType::kBFloat16, Bytes(262144));
  ExpectReturns(DType::kBFloat16, Bytes(262144, std::byte{0xff}));
  Bytes one_differs(131072, std::byte{0x3f});
  one_differs[70001] = std::byte{0x80};
  ExpectReturns(DType::kBFloat16, one_differs);
  ExpectReturns(DType::kFloat16, one_differs);
  // Frequencies of every size, each of which divides in its own way.
  SeededRandom random(4);
  for (int round = 0; round < ByTestLevel(8, 32, 200); ++round) {
    const uint64_t kinds = 1 + random.Below(70);
    Bytes raw(131072);
    for (size_t i = 0; i < raw.size(); i += 2) {
      const uint64_t kind = std::min(random.Below(kinds), random.Below(kinds));
      PutU16(raw.data() + i, static_cast<uint16_t>(kind << 7 | random.Below(128)));
    }
    ExpectReturns(DType::kBFloat16, raw);
  }
}

// Entropy of a Gaussian's exponents: 2.5 bits of 8.
TEST_P(LosslessCodecTest, GaussianValuesBecomeSmaller) {
  const Bytes bf16 = Gaussian(DType::kBFloat16, 1 << 20, 5);
  const Bytes fp16 = Gaussian(DType::kFloat16, 1 << 20, 5);
  EXPECT_LT(static_cast<double>(Encoded(DType::kBFloat16, bf16).size()) / bf16.size(), 1 / 1.49);
  EXPECT_LT(static_cast<double>(Encoded(DType::kFloat16, fp16).size()) / fp16.size(), 1 / 1.17);
}

TEST_P(LosslessCodecTest, BytesThatCannotBecomeSmallerAreStoredAsTheyAre) {
  const Bytes noise = Noise(1 << 20, 6);
  EXPECT_LE(Encoded(DType::kBFloat16, noise).size(), MaxLosslessBytes(noise.size()));
  ExpectReturns(DType::kBFloat16, noise);
  ExpectReturns(DType::kFloat16, noise);
  EXPECT_EQ(Encoded(DType::kInt8, noise).size(), noise.size() + 16);
}

// States go on from chunk to chunk, past those that are not coded.
TEST_P(LosslessCodecTest, StoredChunksBetweenCodedOnesComeBackAsTheyWere) {
  constexpr size_t kChunkBytes = 131072;
  for (unsigned stored_chunks = 0; stored_chunks < 16; ++stored_chunks) {
    Bytes raw = Gaussian(DType::kBFloat16, 4 * kChunkBytes / 2 + 300, 12);
    for (size_t i = 0; i < 4; ++i) {
      if ((stored_chunks >> i & 1) == 0) continue;
      const Bytes noise = Noise(kChunkBytes, i);
      std::memcpy(raw.data() + i * kChunkBytes, noise.data(), noise.size());
    }
    ExpectReturns(DType::kBFloat16, raw);
  }
}

TEST_P(LosslessCodecTest, AllKernelsWriteTheSameBytes) {
  const Bytes raw = Gaussian(DType::kFloat16, 200000, 7);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Bytes here = Encoded(dtype, raw);
    ForceLosslessKernel(&LosslessKernels().back());
    EXPECT_TRUE(Encoded(dtype, raw) == here);
    ForceLosslessKernel(&LosslessKernels()[GetParam()]);
  }
}

TEST_P(LosslessCodecTest, EveryShorterPayloadAndEveryOtherLengthIsRefused) {
  const Bytes raw = Gaussian(DType::kBFloat16, 1024, 8);
  const Bytes stored = Encoded(DType::kBFloat16, raw);
  Bytes back(raw.size());
  for (size_t bytes = 0; bytes < stored.size(); ++bytes) {
    const Bytes cut(stored.begin(), stored.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_EQ(Decode(cut, &back).code(), Code::kCorrupt) << bytes;
  }
  Bytes longer = stored;
  longer.push_back({});
  EXPECT_EQ(Decode(longer, &back).code(), Code::kCorrupt);
  Bytes other(raw.size() - 2);
  EXPECT_EQ(Decode(stored, &other).code(), Code::kCorrupt);
}

// Damage may go unnoticed here (the block's checksum is there for it), but never leaves the spans:
// both have exactly their size, and the sanitizers watch.
TEST_P(LosslessCodecTest, DamageIsRefusedOrDecodesWithinBounds) {
  const Bytes raw = Gaussian(DType::kFloat16, 2048, 9);
  const Bytes sound = Encoded(DType::kFloat16, raw);
  SeededRandom random(10);
  for (int round = 0; round < ByTestLevel(2000, 10000, 200000); ++round) {
    Bytes stored = sound;
    // Half of it in the first bytes of a chunk, its tables and states.
    const size_t within = random.Below(2) == 0 ? 40 : stored.size();
    for (uint64_t i = 0; i <= random.Below(3); ++i) {
      stored[random.Below(within)] = static_cast<std::byte>(random.Next());
    }
    Bytes back(raw.size());
    const Status status = Decode(stored, &back);
    EXPECT_TRUE(status.ok() || status.code() == Code::kCorrupt);
  }
}

TEST_P(LosslessCodecTest, EveryBitOfTheEntropyCodersBytesCounts) {
  const Bytes raw = Gaussian(DType::kBFloat16, 1024, 11);
  const Bytes sound = Encoded(DType::kBFloat16, raw);
  // Behind header, chunk header and the plane that is stored.
  for (size_t at = 32 + 1024; at < sound.size(); ++at) {
    Bytes stored = sound;
    stored[at] ^= std::byte{0x10};
    Bytes back(raw.size());
    EXPECT_FALSE(Decode(stored, &back).ok() && back == raw) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LosslessCodecTest, testing::Values(0, 1, 2),
                         [](const auto& param) { return "Kernel" + std::to_string(param.param); });

}  // namespace
}  // namespace aquifer
