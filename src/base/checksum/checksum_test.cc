#include "aquifer/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checksum/checksum_kernel.h"
#include "base/crypto/sha256.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t count, uint64_t seed) {
  Bytes bytes(count);
  SeededRandom(seed).Fill(bytes);
  return bytes;
}

// The definition of docs/formats/checksum.md in its plainest form.
LaneSums ReferenceSums(std::span<const std::byte> piece, uint64_t offset) {
  LaneSums sums;
  for (size_t at = 0; at < piece.size(); at += 16) {
    const auto unit = static_cast<uint32_t>((offset + at) / 16);
    uint32_t w[4] = {};
    std::memcpy(w, piece.data() + at, std::min<size_t>(16, piece.size() - at));
    const auto key = [&](int j) { return kChecksumA[j] + unit * kChecksumB[j]; };
    const auto product = [&](int i, int j, int key_i, int key_j) {
      const uint64_t p = uint64_t{w[i] + key(key_i)} * uint32_t{w[j] + key(key_j)};
      return p ^ p >> 32;
    };
    sums.a += product(0, 1, 0, 1) + product(2, 3, 2, 3);
    sums.b += product(0, 2, 4, 5) + product(1, 3, 6, 7);
  }
  return sums;
}

class ChecksumKernelTest : public testing::TestWithParam<ChecksumKernel> {
 protected:
  ChecksumKernelTest() { ForceChecksumKernel(&GetParam()); }
  ~ChecksumKernelTest() override { ForceChecksumKernel(nullptr); }
};

INSTANTIATE_TEST_SUITE_P(, ChecksumKernelTest,
                         testing::ValuesIn(ChecksumKernels().begin(), ChecksumKernels().end()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(ChecksumKernelTest, SumsAreThoseOfTheDefinitionForAnyLengthOffsetAndAlignment) {
  SeededRandom random(1);
  const Bytes pool = RandomBytes(40'000, 2);
  for (int round = 0; round < 400; ++round) {
    const size_t start = random.Below(64);
    const size_t length = round < 300 ? static_cast<size_t>(round) : random.Below(39'000);
    const uint64_t offset = random.Below(uint64_t{1} << 22) * 16;
    const std::span piece = std::span(pool).subspan(start, length);
    ASSERT_EQ(SumLanes(piece, offset), ReferenceSums(piece, offset))
        << "start " << start << " length " << length << " offset " << offset;
  }
}

TEST_P(ChecksumKernelTest, ACopySumsTheSameAndWritesNothingBesideTheTarget) {
  SeededRandom random(3);
  const Bytes pool = RandomBytes(120'000, 4);
  for (int round = 0; round < 260; ++round) {
    const size_t start = random.Below(64);
    const size_t target_start = 64 + random.Below(64);  // Streamed when it is a multiple of 16.
    const size_t length = round < 200 ? static_cast<size_t>(round) : random.Below(119'000);
    const uint64_t offset = random.Below(uint64_t{1} << 22) * 16;
    const std::span piece = std::span(pool).subspan(start, length);
    Bytes target(target_start + length + 64, std::byte{0xa5});
    ASSERT_EQ(CopyAndSumLanes(piece, offset, target.data() + target_start),
              ReferenceSums(piece, offset))
        << "start " << start << " to " << target_start << " length " << length;
    ASSERT_TRUE(std::equal(piece.begin(), piece.end(), target.begin() + target_start));
    const auto untouched = [](std::byte byte) { return byte == std::byte{0xa5}; };
    ASSERT_TRUE(std::all_of(target.begin(), target.begin() + target_start, untouched));
    ASSERT_TRUE(std::all_of(target.end() - 64, target.end(), untouched));
  }
}

TEST_P(ChecksumKernelTest, LargeCopiesWorkAtEveryAlignmentOfTheTarget) {
  const Bytes source = RandomBytes(kChecksumStreamBytes * 3 + 16 * 5 + 7, 5);
  const LaneSums expected = ReferenceSums(source, 32);
  Bytes target(source.size() + 128);
  for (size_t start = 0; start < 64; ++start) {
    std::fill(target.begin(), target.end(), std::byte{0});
    ASSERT_EQ(CopyAndSumLanes(source, 32, target.data() + start), expected) << start;
    ASSERT_TRUE(std::equal(source.begin(), source.end(), target.begin() + start)) << start;
  }
}

TEST_P(ChecksumKernelTest, TheLargestBlockIsSummedAsItsPiecesAre) {
  // A repeated megabyte: what matters here is that positions are right up to the end.
  constexpr size_t kPieceBytes = 1 << 20;
  constexpr size_t kPieces = 64;
  static const Bytes piece = RandomBytes(kPieceBytes, 6);
  static const LaneSums expected = [] {
    LaneSums sums;
    for (size_t i = 0; i < kPieces; ++i) {
      const auto unit = static_cast<uint32_t>(i * kPieceBytes / kChecksumUnitBytes);
      sums = sums + SumUnitsPortable(piece.data(), kPieceBytes / kChecksumUnitBytes, unit);
    }
    return sums;
  }();
  static const Bytes block = [] {
    Bytes bytes(kPieceBytes * kPieces);
    for (size_t i = 0; i < kPieces; ++i) {
      std::memcpy(bytes.data() + i * kPieceBytes, piece.data(), kPieceBytes);
    }
    return bytes;
  }();
  EXPECT_EQ(SumLanes(block, 0), expected);
}

TEST(ChecksumTest, PiecesAddUpInAnyOrder) {
  const Bytes block = RandomBytes(16 * 999 + 5, 8);
  const LaneSums whole = SumLanes(block, 0);
  for (size_t cut = 0; cut <= block.size(); cut += 16 * 37) {
    const std::span front = std::span(block).first(cut);
    const std::span back = std::span(block).subspan(cut);
    EXPECT_EQ(SumLanes(back, cut) + SumLanes(front, 0), whole) << cut;
  }
}

TEST(ChecksumTest, ALastPartialUnitCountsAsIfZerosFollowed) {
  Bytes block = RandomBytes(100, 9);
  const LaneSums partial = SumLanes(block, 0);
  block.resize(112);
  EXPECT_EQ(SumLanes(block, 0), partial);
  EXPECT_NE(FinishChecksum(partial, 100), FinishChecksum(partial, 112));
}

TEST(ChecksumTest, NothingSumsToNothing) {
  EXPECT_EQ(SumLanes({}, 0), LaneSums());
  EXPECT_EQ(CopyAndSumLanes({}, 48, nullptr), LaneSums());
  EXPECT_NE(ChecksumOf({}), Checksum());  // Checksum() is a struct that nobody filled.
}

TEST(ChecksumTest, TheConstantsHaveNothingUpTheirSleeve) {
  std::vector<uint32_t> words;
  for (uint32_t counter = 0; counter < 2; ++counter) {
    Sha256 hash;
    hash.Update("aquifer.checksum.v1");
    hash.Update(std::as_bytes(std::span(&counter, 1)));
    const Sha256Digest digest = hash.Finish();
    for (size_t i = 0; i < 8; ++i) words.push_back(GetU32(digest.data() + 4 * i));
  }
  for (size_t j = 0; j < 8; ++j) {
    EXPECT_EQ(kChecksumA[j], words[j]);
    EXPECT_EQ(kChecksumB[j], words[8 + j] | 1);
  }
}

TEST(ChecksumDeathTest, AnOffsetBetweenUnitsIsOurMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)SumLanes({}, 8), "check failed");
}

// The finaliser run backwards.
uint64_t UndoShift(uint64_t x, int shift) {
  uint64_t y = x;
  for (int i = 0; i < 64 / shift; ++i) y = x ^ (y >> shift);
  return y;
}

uint64_t Inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

uint64_t Unmix(uint64_t x) {
  x = UndoShift(x, 31) * Inverse(0x94d049bb133111eb);
  x = UndoShift(x, 27) * Inverse(0xbf58476d1ce4e5b9);
  return UndoShift(x, 30);
}

TEST(ChecksumTest, FinishingLosesNothing) {
  SeededRandom random(10);
  for (int i = 0; i < 1000; ++i) {
    const LaneSums sums = {random.Next(), random.Next()};
    const uint64_t length = random.Below(uint64_t{1} << 26);
    const Checksum finished = FinishChecksum(sums, length);
    const uint64_t x = Unmix(finished.low) - finished.high;
    const uint64_t a = Unmix(x) - (length + 1) * 0x9e3779b97f4a7c15;
    const uint64_t b = (Unmix(finished.high) - length) ^ x;
    ASSERT_EQ((LaneSums{a, b}), sums);
  }
}

TEST(ChecksumTest, AnotherLengthChangesBothHalves) {
  for (uint64_t length = 0; length < 1000; ++length) {
    const Checksum one = FinishChecksum({1, 2}, length);
    const Checksum other = FinishChecksum({1, 2}, length + 1);
    EXPECT_NE(one.low, other.low);
    EXPECT_NE(one.high, other.high);
  }
}

}  // namespace
}  // namespace aquifer
