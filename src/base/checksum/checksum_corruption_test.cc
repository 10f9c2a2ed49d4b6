// Kinds of damage that storage, networks and our own mistakes do to blocks. Each must change both
// lanes, so that one lane's weakness never decides. Blocks of few different values are the hard
// cases: zeros, repeated vectors, small numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "aquifer/checksum.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kPage = 4096;

void ExpectNoticed(const Bytes& before, const Bytes& after, const char* what, size_t where = 0) {
  ASSERT_NE(before, after) << what << " at " << where << " is no damage here";
  const LaneSums x = SumLanes(before, 0);
  const LaneSums y = SumLanes(after, 0);
  EXPECT_NE(x.a, y.a) << what << " at " << where;
  EXPECT_NE(x.b, y.b) << what << " at " << where;
  EXPECT_NE(FinishChecksum(x, before.size()), FinishChecksum(y, after.size())) << what;
}

Bytes FromWords(const std::vector<uint32_t>& words) {
  Bytes bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// Contents that blocks have: random, empty, constant, small integers, and bf16 numbers near one.
struct Content {
  const char* name;
  Bytes (*make)(size_t bytes);
};

Bytes Generate(size_t bytes, uint32_t (*word)(SeededRandom*, size_t)) {
  SeededRandom random(11);
  std::vector<uint32_t> words(bytes / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = word(&random, i);
  return FromWords(words);
}

const Content kContents[] = {
    {"Random",
     [](size_t n) {
       return Generate(
           n, [](SeededRandom* random, size_t) { return static_cast<uint32_t>(random->Next()); });
     }},
    {"Zero", [](size_t n) { return Bytes(n); }},
    {"Ones", [](size_t n) { return Bytes(n, std::byte{0xff}); }},
    {"ConstantBf16",
     [](size_t n) { return Generate(n, [](SeededRandom*, size_t) { return 0x3f803f80u; }); }},
    {"SmallIntegers",
     [](size_t n) {
       return Generate(
           n, [](SeededRandom* random, size_t) { return static_cast<uint32_t>(random->Below(4)); });
     }},
    {"Counting",
     [](size_t n) {
       return Generate(n, [](SeededRandom*, size_t i) { return static_cast<uint32_t>(i); });
     }},
    {"Bf16",
     [](size_t n) {
       return Generate(n, [](SeededRandom* random, size_t) {
         const uint64_t bits = random->Next();
         return static_cast<uint32_t>((bits & 0x80ff80ff) | 0x3f003f00);
       });
     }},
};

class DamageTest : public testing::TestWithParam<Content> {};

INSTANTIATE_TEST_SUITE_P(, DamageTest, testing::ValuesIn(kContents),
                         [](const auto& info) { return info.param.name; });

TEST_P(DamageTest, EverySingleBitIsNoticed) {
  Bytes block = GetParam().make(512);
  const Bytes before = block;
  for (size_t bit = 0; bit < block.size() * 8; ++bit) {
    block[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ExpectNoticed(before, block, "flipped bit", bit);
    block[bit / 8] = before[bit / 8];
  }
}

TEST_P(DamageTest, EveryPairOfBitsInTwoUnitsIsNoticed) {
  Bytes block = GetParam().make(32);
  const Bytes before = block;
  for (size_t first = 0; first < 256; ++first) {
    for (size_t second = first + 1; second < 256; ++second) {
      block[first / 8] ^= static_cast<std::byte>(1 << first % 8);
      block[second / 8] ^= static_cast<std::byte>(1 << second % 8);
      ASSERT_NE(SumLanes(before, 0), SumLanes(block, 0)) << first << " and " << second;
      block = before;
    }
  }
}

TEST_P(DamageTest, ReplacedBytesWordsAndPagesAreNoticed) {
  const Bytes before = GetParam().make(8 * kPage);
  SeededRandom random(12);
  for (const size_t length : {size_t{1}, size_t{2}, size_t{4}, size_t{16}, size_t{512}, kPage}) {
    for (const int fill : {0x00, 0x55, 0xff}) {
      for (int round = 0; round < 40; ++round) {
        const size_t at = random.Below(before.size() / length) * length;
        Bytes after = before;
        std::fill_n(after.begin() + static_cast<ptrdiff_t>(at), length, std::byte(fill));
        if (after != before) ExpectNoticed(before, after, "overwritten", at);
      }
    }
  }
}

TEST_P(DamageTest, AShiftIsNoticed) {
  Bytes before = GetParam().make(4 * kPage);
  before[77] = std::byte{1};  // A constant block shifted is the same block.
  for (const size_t shift : {1, 2, 4, 8, 12, 16, 32, 64, 256, 512, 4096}) {
    Bytes after(before.size());
    std::copy(before.begin(), before.end() - static_cast<ptrdiff_t>(shift),
              after.begin() + static_cast<ptrdiff_t>(shift));
    ExpectNoticed(before, after, "shifted", shift);
    Bytes rotated = before;
    std::rotate(rotated.begin(), rotated.begin() + static_cast<ptrdiff_t>(shift), rotated.end());
    ExpectNoticed(before, rotated, "rotated", shift);
  }
}

TEST_P(DamageTest, ATornWriteIsNoticed) {
  const Bytes old_block = GetParam().make(8 * kPage);
  Bytes new_block = old_block;
  SeededRandom(13).Fill(new_block);
  for (size_t torn = kPage; torn < old_block.size(); torn += kPage) {
    Bytes mixed = new_block;
    std::copy(old_block.begin() + static_cast<ptrdiff_t>(torn), old_block.end(),
              mixed.begin() + static_cast<ptrdiff_t>(torn));
    ExpectNoticed(new_block, mixed, "torn", torn);
  }
}

TEST_P(DamageTest, AnotherLengthIsNoticed) {
  const Bytes block = GetParam().make(kPage);
  for (size_t cut = 1; cut <= 64; ++cut) {
    const std::span shorter = std::span(block).first(block.size() - cut);
    EXPECT_NE(ChecksumOf(block), ChecksumOf(shorter)) << cut;
  }
}

TEST_P(DamageTest, SwappedWordsInAUnitAreNoticed) {
  const Bytes before = GetParam().make(kPage);
  for (size_t unit = 0; unit < before.size(); unit += 16) {
    std::vector<size_t> order(4);
    std::iota(order.begin(), order.end(), 0);
    while (std::next_permutation(order.begin(), order.end())) {
      Bytes after = before;
      for (size_t i = 0; i < 4; ++i) {
        std::memcpy(after.data() + unit + i * 4, before.data() + unit + order[i] * 4, 4);
      }
      if (after == before) continue;
      ASSERT_NE(SumLanes(before, 0), SumLanes(after, 0)) << unit;
    }
  }
}

Bytes SwapPieces(const Bytes& block, size_t first, size_t second, size_t length) {
  Bytes swapped = block;
  std::swap_ranges(swapped.begin() + static_cast<ptrdiff_t>(first * length),
                   swapped.begin() + static_cast<ptrdiff_t>((first + 1) * length),
                   swapped.begin() + static_cast<ptrdiff_t>(second * length));
  return swapped;
}

TEST_P(DamageTest, EveryPairOfSwappedUnitsSectorsAndPagesIsNoticed) {
  constexpr size_t kPieces = 16;
  for (const size_t length : {size_t{16}, size_t{512}, kPage}) {
    Bytes block = GetParam().make(length * kPieces);
    // Even a constant block has something to swap.
    for (size_t i = 0; i < kPieces; ++i) block[i * length] = static_cast<std::byte>(i);
    for (size_t first = 0; first < kPieces; ++first) {
      for (size_t second = first + 1; second < kPieces; ++second) {
        ExpectNoticed(block, SwapPieces(block, first, second, length), "swapped", first);
      }
    }
  }
}

// A sum that knew positions only through "position times word" would miss what follows: it moves
// equal contents by equal distances in opposite directions. The values of layer 0 do not depend on
// a token's position, so pages with the same vectors in another order are nothing strange.

TEST_P(DamageTest, TwoPagesOfTheSameUnitsInAnotherOrderAreToldApart) {
  const Bytes page = GetParam().make(kPage);
  SeededRandom random(14);
  for (int round = 0; round < 50; ++round) {
    Bytes first = page;
    first[random.Below(kPage)] ^= std::byte{1};
    Bytes second = first;
    const size_t half = 16 + random.Below(kPage / 16 - 1) * 16;
    std::rotate(second.begin(), second.begin() + static_cast<ptrdiff_t>(half), second.end());
    Bytes block = first;
    block.insert(block.end(), second.begin(), second.end());
    ExpectNoticed(block, SwapPieces(block, 0, 1, kPage), "page in another order", half);
  }
}

TEST_P(DamageTest, EqualPiecesMovedInOppositeDirectionsAreNoticed) {
  for (const size_t length : {size_t{16}, size_t{256}, kPage}) {
    const Bytes x = GetParam().make(length);
    for (size_t bit = 0; bit < 128; bit += length == 16 ? 1 : 11) {
      Bytes y = x;
      y[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      for (const size_t gap : {0, 1, 3, 14}) {
        // x y ... y x becomes y x ... x y.
        Bytes before;
        Bytes after;
        const auto append = [](Bytes* to, const Bytes& piece) {
          to->insert(to->end(), piece.begin(), piece.end());
        };
        const Bytes between(gap * length);
        for (const auto& piece : {x, y, between, y, x}) append(&before, piece);
        for (const auto& piece : {y, x, between, x, y}) append(&after, piece);
        ExpectNoticed(before, after, "moved in opposite directions", bit);
      }
    }
  }
}

TEST(DamagePatternTest, RepeatedPatternsAllDiffer) {
  // One word, repeated: a wrong fill value, a stuck bus, an uninitialised buffer.
  std::vector<LaneSums> sums;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    for (const uint32_t base : {0u, 0xffffffffu, 0x3f803f80u}) {
      sums.push_back(SumLanes(FromWords(std::vector<uint32_t>(1024, base ^ 1u << bit)), 0));
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t j = i + 1; j < sums.size(); ++j) {
      EXPECT_NE(sums[i].a, sums[j].a);
      EXPECT_NE(sums[i].b, sums[j].b);
    }
  }
}

TEST(DamagePatternTest, ChangesOfTheSameKindEverywhereAreNoticed) {
  const Bytes before = kContents[6].make(16 * kPage);
  const auto changed = [&](auto change) {
    std::vector<uint16_t> numbers(before.size() / 2);
    std::memcpy(numbers.data(), before.data(), before.size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = change(i, numbers[i]);
    Bytes after(before.size());
    std::memcpy(after.data(), numbers.data(), after.size());
    return after;
  };
  const auto flip = [](size_t, uint16_t x) { return static_cast<uint16_t>(x ^ 0x8000); };
  const auto flip_odd = [](size_t i, uint16_t x) {
    return static_cast<uint16_t>(i % 2 == 0 ? x : x ^ 0x8000);
  };
  const auto add_one = [](size_t, uint16_t x) { return static_cast<uint16_t>(x + 1); };
  const auto swap_bytes = [](size_t, uint16_t x) { return static_cast<uint16_t>(x << 8 | x >> 8); };
  ExpectNoticed(before, changed(flip), "every sign flipped");
  ExpectNoticed(before, changed(flip_odd), "every second sign flipped");
  ExpectNoticed(before, changed(add_one), "every number one higher");
  ExpectNoticed(before, changed(swap_bytes), "the other byte order");
}

TEST(DamagePatternTest, ATransposedBlockIsNoticed) {
  // Heads and tokens exchanged: all vectors are there, in another order.
  for (const Content& content : kContents) {
    constexpr size_t kVector = 256;
    Bytes before = content.make(kVector * 64);
    for (size_t i = 0; i < 64; ++i) before[i * kVector] = static_cast<std::byte>(i);
    Bytes after(before.size());
    for (size_t head = 0; head < 8; ++head) {
      for (size_t token = 0; token < 8; ++token) {
        std::memcpy(after.data() + (token * 8 + head) * kVector,
                    before.data() + (head * 8 + token) * kVector, kVector);
      }
    }
    ExpectNoticed(before, after, content.name);
  }
}

}  // namespace
}  // namespace aquifer
