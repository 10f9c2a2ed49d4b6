#include "policy/admission/pin_table.h"

#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;

std::vector<BlockPin> ExpireAll(PinTable* table, int64_t now, size_t at_once = 100) {
  std::vector<BlockPin> pins(at_once);
  pins.resize(table->Expire(now, pins));
  return pins;
}

TEST(PinTableTest, PinsEndInTheOrderOfTheirExpiry) {
  PinTable table({});
  EXPECT_EQ(table.Add({.ref = 1, .owner = 9}, 30), PinTable::Added::kNew);
  EXPECT_EQ(table.Add({.ref = 2, .owner = 9}, 10), PinTable::Added::kNew);
  EXPECT_EQ(table.Add({.ref = 2, .owner = 8}, 30), PinTable::Added::kNew);
  EXPECT_TRUE(ExpireAll(&table, 9).empty());
  EXPECT_THAT(ExpireAll(&table, 10), ElementsAre(BlockPin{2, 9}));
  EXPECT_THAT(ExpireAll(&table, 31), ElementsAre(BlockPin{1, 9}, BlockPin{2, 8}));
  EXPECT_EQ(table.size(), 0u);
}

TEST(PinTableTest, PinningAgainOnlyMovesTheExpiry) {
  PinTable table({});
  table.Add({.ref = 1, .owner = 9}, 30);
  EXPECT_EQ(table.Add({.ref = 1, .owner = 9}, 20), PinTable::Added::kKnown);
  EXPECT_EQ(table.Add({.ref = 1, .owner = 9}, 50), PinTable::Added::kKnown);
  EXPECT_TRUE(ExpireAll(&table, 49).empty());
  EXPECT_EQ(table.size(), 1u);
}

TEST(PinTableTest, AStandingPinNeverExpires) {
  PinTable table({});
  table.Add({.ref = 1, .owner = 9}, kPinnedForever);
  EXPECT_TRUE(ExpireAll(&table, INT64_MAX).empty());
  EXPECT_TRUE(table.Remove({.ref = 1, .owner = 9}));
  EXPECT_FALSE(table.Remove({.ref = 1, .owner = 9}));
}

TEST(PinTableTest, AFullTableRefusesNewPinsOnly) {
  PinTable table({.max_pins = 1});
  EXPECT_EQ(table.Add({.ref = 1, .owner = 1}, 5), PinTable::Added::kNew);
  EXPECT_EQ(table.Add({.ref = 2, .owner = 1}, 5), PinTable::Added::kFull);
  EXPECT_EQ(table.Add({.ref = 1, .owner = 1}, 6), PinTable::Added::kKnown);
  EXPECT_FALSE(table.Contains({.ref = 2, .owner = 1}));
}

TEST(PinTableTest, ExpiryIsCutToWhatFits) {
  PinTable table({});
  for (uint32_t ref = 0; ref < 5; ++ref) table.Add({.ref = ref, .owner = 1}, 5);
  EXPECT_THAT(ExpireAll(&table, 5, 2), ElementsAre(BlockPin{0, 1}, BlockPin{1, 1}));
  EXPECT_EQ(ExpireAll(&table, 5, 0).size(), 0u);
  EXPECT_EQ(ExpireAll(&table, 5, 9).size(), 3u);
}

TEST(PinTableTest, ABlockGoesWithAllItsPins) {
  PinTable table({});
  for (uint32_t ref = 0; ref < 4; ++ref) {
    for (uint64_t owner = 0; owner < 3; ++owner) table.Add({ref, owner}, 100 + ref);
  }
  EXPECT_EQ(table.RemoveAll(2), 3u);
  EXPECT_EQ(table.RemoveAll(2), 0u);
  EXPECT_EQ(table.size(), 9u);
  EXPECT_EQ(ExpireAll(&table, 1000).size(), 9u);
}

TEST(PinTableTest, BehavesLikeAList) {
  SeededRandom random(4);
  PinTable table({.max_pins = 60});
  std::map<BlockPin, int64_t> model;
  for (int step = 0; step < 50'000; ++step) {
    const BlockPin pin{static_cast<uint32_t>(random.Below(10)), random.Below(8)};
    switch (random.Below(4)) {
      case 0:
      case 1: {
        const int64_t until = step + static_cast<int64_t>(random.Below(200));
        if (table.Add(pin, until) != PinTable::Added::kFull) {
          model[pin] = until;
        } else {
          ASSERT_EQ(model.size(), 60u);
        }
        break;
      }
      case 2:
        ASSERT_EQ(table.Remove(pin), model.erase(pin) == 1);
        break;
      default:
        for (const BlockPin& expired : ExpireAll(&table, step)) {
          ASSERT_LE(model.at(expired), step);
          model.erase(expired);
        }
        for (const auto& [left, until] : model) ASSERT_GT(until, step);
    }
    ASSERT_EQ(table.size(), model.size());
  }
}

}  // namespace
}  // namespace aquifer
