#include "sim/world/scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "sim/world/conversations.h"
#include "testing/manual_clock.h"

namespace aquifer {
namespace {

TEST(ScenarioTest, ASeedDecidesTheSameEveryTime) {
  const Scenario a = MakeScenario(17);
  const Scenario b = MakeScenario(17);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.engines.size(), b.engines.size());
  ASSERT_EQ(a.faults.size(), b.faults.size());
  for (size_t i = 0; i < a.faults.size(); ++i) EXPECT_EQ(a.faults[i].draw, b.faults[i].draw);
}

TEST(ScenarioTest, EveryNodeThatASeedMakesCanBeMade) {
  std::set<FaultKind> kinds;
  bool without_drive = false;
  bool two_drives = false;
  bool two_nodes = false;
  for (uint64_t number = 1; number <= 300; ++number) {
    const Scenario scenario = MakeScenario(number % 5 == 3 ? kStoreSeeds + number : number);
    Scheduler scheduler;
    SharedStores stores(scenario.stores, &scheduler);
    SimulatedNode node(scenario.node, &scheduler, &stores);
    node.Start([] {});  // Wrong options would end the process.
    if (scenario.second_node.has_value()) {
      two_nodes = true;
      SimulatedNode second(*scenario.second_node, &scheduler, &stores);
      second.Start([] {});
    }
    for (const Fault& fault : scenario.faults) {
      kinds.insert(fault.kind);
      EXPECT_LT(fault.step, scenario.steps);
    }
    EXPECT_TRUE(std::is_sorted(scenario.faults.begin(), scenario.faults.end(),
                               [](const Fault& a, const Fault& b) { return a.step < b.step; }));
    without_drive |= node.drives() == 0;
    two_drives |= node.drives() == 2;
  }
  EXPECT_EQ(kinds.size(), kFaultKinds);
  EXPECT_TRUE(without_drive && two_drives && two_nodes);
}

TEST(ScenarioTest, SeedsForItHaveDurableTiersAndTheOthersNothingOfThem) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    EXPECT_FALSE(MakeScenario(kStoreSeeds + seed).stores.stores.empty());
    const Scenario scenario = MakeScenario(seed);
    EXPECT_TRUE(scenario.stores.stores.empty());
    EXPECT_FALSE(scenario.second_node.has_value());
    for (const Fault& fault : scenario.faults) {
      EXPECT_LT(static_cast<size_t>(fault.kind), kNodeFaultKinds) << seed;
    }
  }
}

TEST(ScenarioTest, EveryFaultHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kFaultKinds; ++i) names.insert(FaultName(static_cast<FaultKind>(i)));
  EXPECT_EQ(names.size(), kFaultKinds);
}

TEST(ConversationsTest, TheyGrowBranchAndAreKnownToOthersUnderTheirOwnNumbers) {
  const ManualClock clock;
  Truth truth({.tenants = {{}, {}}}, &clock);
  Conversations conversations(
      {.layouts = {LayoutOfBytes(4096, 2)}, .tenants = 2, .most = 8, .chain_blocks = 6}, &truth);
  SeededRandom random(3);
  for (int i = 0; i < 200; ++i) {
    conversations.Grow(conversations.Pick(static_cast<uint32_t>(i % 2), &random), &random);
  }
  bool branched = false;
  bool known_to_another = false;
  for (size_t a = 0; a < conversations.size(); ++a) {
    const Conversation& one = conversations.at(a);
    ASSERT_EQ(one.chain.size(), one.blocks.size());
    for (const BlockNumber block : one.blocks) EXPECT_EQ(truth.tenant(block), one.tenant);
    for (size_t b = 0; b < a; ++b) {
      const Conversation& other = conversations.at(b);
      if (one.chain[0] != other.chain[0]) continue;
      const bool same_name = one.tenant == other.tenant && one.group == other.group;
      EXPECT_EQ(one.blocks[0] == other.blocks[0], same_name);
      branched |= same_name && one.blocks.back() != other.blocks.back();
      known_to_another |= one.tenant != other.tenant;
    }
  }
  EXPECT_TRUE(branched);
  EXPECT_TRUE(known_to_another);
}

}  // namespace
}  // namespace aquifer
