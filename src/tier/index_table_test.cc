#include "tier/index_table.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

TEST(IndexTableTest, AnEmptyTableHasNothing) {
  const IndexTable table;
  EXPECT_EQ(table.Find(7, [](uint32_t) { return true; }), IndexTable::kNone);
  EXPECT_EQ(table.size(), 0u);
}

TEST(IndexTableTest, ValuesUnderOneHashAreToldApartByTheirOwner) {
  IndexTable table;
  table.Reserve(3);
  for (const uint32_t value : {0u, 1u, UINT32_MAX - 2}) table.Insert(42, value);
  for (const uint32_t value : {0u, 1u, UINT32_MAX - 2}) {
    EXPECT_EQ(table.Find(42, [&](uint32_t found) { return found == value; }), value);
  }
  table.Erase(42, 1);
  EXPECT_EQ(table.Find(42, [](uint32_t found) { return found == 1; }), IndexTable::kNone);
  EXPECT_EQ(table.Find(42, [](uint32_t found) { return found == 0; }), 0u);
}

// Grows again and again while entries of the table before are still being carried over.
TEST(IndexTableTest, AgreesWithAMapThroughGrowthAndChurn) {
  for (const uint64_t spread : {uint64_t{1}, uint64_t{64}, uint64_t{1} << 40}) {
    SeededRandom random(spread);
    IndexTable table;
    std::map<uint32_t, uint64_t> model;  // Value to hash.
    for (int step = 0; step < 40'000; ++step) {
      if (step % 10'000 < 5) table.Reserve(model.size() * 2 + 100);
      const auto value = static_cast<uint32_t>(random.Below(3000));
      const auto known = model.find(value);
      if (known != model.end()) {
        const auto is_it = [&](uint32_t found) { return found == value; };
        ASSERT_EQ(table.Find(known->second, is_it), value);
        if (random.Below(2) == 0) {
          table.Erase(known->second, value);
          ASSERT_EQ(table.Find(known->second, is_it), IndexTable::kNone);
          model.erase(known);
        }
      } else {
        const uint64_t hash = random.Below(spread);
        table.Reserve(model.size() + 1);
        table.Insert(hash, value);
        model.emplace(value, hash);
      }
      ASSERT_EQ(table.size(), model.size());
    }
    for (const auto& [value, hash] : model) {
      ASSERT_EQ(table.Find(hash, [&](uint32_t found) { return found == value; }), value);
    }
  }
}

TEST(IndexTableDeathTest, MoreThanWasReservedIsCaughtAndSoIsErasingWhatIsNotThere) {
  IndexTable table;
  table.Reserve(16);
  for (uint32_t value = 0; value < 16; ++value) table.Insert(value, value);
  EXPECT_DEATH(table.Insert(16, 16), "reserved_");
  EXPECT_DEATH(table.Erase(3, 4), "at != ");
}

}  // namespace
}  // namespace aquifer
