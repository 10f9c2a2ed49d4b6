// Tests of the test: each of the planted bugs is found, and the seed that finds it is clean
// without it.
#include <gtest/gtest.h>

#include <iterator>
#include <string>

#include "base/clock.h"
#include "sim/fuzz/fuzz.h"
#include "sim/world/scenario.h"
#include "testing/plant_bug.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

struct Planting {
  const char* name;
  PlantedBug bug;
  // A little before a seed that finds it, for runs in a hurry. Any start will do, given a minute.
  uint64_t near_seed;
};

void PrintTo(const Planting& planting, std::ostream* out) { *out << planting.name; }

class PlantedBugsTest : public testing::TestWithParam<Planting> {};

TEST_P(PlantedBugsTest, IsFound) {
  const FuzzOptions options{
      .first_seed = ByTestLevel<uint64_t>(GetParam().near_seed, GetParam().near_seed,
                                          HasStores(GetParam().near_seed) ? kStoreSeeds + 1 : 1),
      .seeds = 20'000,
      .seconds = 240};  // Sanitizers and busy machines included.
  FuzzReport report;
  {
    const PlantBug planted(GetParam().bug);
    report = Fuzz(options);
  }
  ASSERT_TRUE(report.failed_seed.has_value()) << "not found in " << report.seeds << " seeds";
  RecordProperty("seeds", std::to_string(report.seeds));
  RecordProperty("seconds", std::to_string(report.seconds));
  std::printf("%s: found by seed %llu after %llu seeds, %.1f s: %s\n", GetParam().name,
              static_cast<unsigned long long>(*report.failed_seed),
              static_cast<unsigned long long>(report.seeds), report.seconds,
              report.failure.violation.c_str());
  EXPECT_EQ(RunScenario(MakeScenario(*report.failed_seed)).violation, "");
}

constexpr Planting kPlantings[] = {
    {"LeaseNotTaken", PlantedBug::kLeaseNotTaken, 1},
    {"CommitBeforeWrite", PlantedBug::kCommitBeforeWrite, 1540},
    {"ChecksumNotVerified", PlantedBug::kChecksumNotVerified, 1},
    {"LeasedEvicted", PlantedBug::kLeasedEvicted, 1},
    {"QuarantineIgnored", PlantedBug::kQuarantineIgnored, 1},
    {"CapOffByOne", PlantedBug::kCapOffByOne, 40},
    {"TombstoneForgotten", PlantedBug::kTombstoneForgotten, 1},
    {"FooterTrusted", PlantedBug::kFooterTrusted, 270},
    {"WrongTenantCharged", PlantedBug::kWrongTenantCharged, 1},
    {"DeadlineIgnored", PlantedBug::kDeadlineIgnored, 1},
    {"HintedTtlIgnored", PlantedBug::kHintedTtlIgnored, 1},
    {"PinIgnored", PlantedBug::kPinIgnored, 950},
    {"RankNotAwaited", PlantedBug::kRankNotAwaited, 1},
    {"FloorIgnored", PlantedBug::kFloorIgnored, 1},
    {"FailedWriteCounts", PlantedBug::kFailedWriteCounts, kStoreSeeds + 300},
    {"StoreExpiryIgnored", PlantedBug::kStoreExpiryIgnored, kStoreSeeds + 300},
    {"StoreDeletionLost", PlantedBug::kStoreDeletionLost, kStoreSeeds + 60},
};
static_assert(std::size(kPlantings) == kPlantedBugs);

INSTANTIATE_TEST_SUITE_P(All, PlantedBugsTest, testing::ValuesIn(kPlantings),
                         [](const testing::TestParamInfo<Planting>& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace aquifer
