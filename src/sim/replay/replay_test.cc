#include "sim/replay/replay.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trace/trace_reader.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ReplayTrace FromText(const std::string& text) {
  TraceReader reader(std::make_unique<LineSource>(LineSourceOptions{}, BytesInMemory(text)), "t");
  auto trace = LoadReplayTrace(&reader, {});
  EXPECT_TRUE(trace.ok()) << trace.status().message();
  return *std::move(trace);
}

std::string Line(int64_t ms, uint64_t tokens, const std::string& ids) {
  return "{\"timestamp\": " + std::to_string(ms) + ", \"input_length\": " + std::to_string(tokens) +
         ", \"hash_ids\": [" + ids + "]}\n";
}

uint64_t Hits(const ReplayTrace& trace, const std::string& policy, uint32_t capacity) {
  const auto outcome = Replay(trace, {.policy = policy, .capacity_blocks = capacity}, {});
  EXPECT_TRUE(outcome.ok());
  return outcome->hits;
}

TEST(ReplayTest, NumbersBlocksAndFindsTheirSize) {
  const ReplayTrace trace =
      FromText(Line(0, 1000, "70, 80") + Line(5, 1600, "70, 90, 60, 61") + Line(6, 512, "5"));
  EXPECT_THAT(trace.blocks, ElementsAre(0u, 1u, 0u, 2u, 3u, 4u, 5u));
  EXPECT_EQ(trace.distinct, 6u);
  EXPECT_EQ(trace.tokens_per_block, 512u);
  EXPECT_EQ(trace.requests[0].full_blocks, 1u);
  EXPECT_EQ(trace.requests[1].full_blocks, 3u);
  EXPECT_EQ(trace.requests[2].full_blocks, 1u);
  // If the lengths fit no block size, every block counts as full.
  EXPECT_EQ(FromText(Line(0, 1000, "1") + Line(0, 10, "2, 3")).tokens_per_block, 0u);
}

TEST(ReplayTest, AHitIsABlockWithAllBeforeIt) {
  const std::string text = Line(0, 4, "1, 2, 3, 4") + Line(1, 2, "7, 8") + Line(2, 4, "1, 2, 3, 4");
  for (const char* policy : {"lru", "lru-leaf", "learned", "belady"}) {
    EXPECT_EQ(Hits(FromText(text), policy, 6), 4u) << policy;
  }
  // Plain LRU lost the head, and with it everything; leaf-first lost only the tail.
  EXPECT_EQ(Hits(FromText(text), "lru", 5), 0u);
  EXPECT_EQ(Hits(FromText(text), "lru-leaf", 5), 3u);
  EXPECT_EQ(Hits(FromText(text), "belady", 5), 4u);  // It does not store 7 and 8.
  EXPECT_EQ(Hits(FromText(text), "belady", 3), 3u);
}

TEST(ReplayTest, KnowsWhichRequestsGoOn) {
  const ReplayTrace trace = FromText(Line(0, 30, "1, 2, 3, 4") + Line(1, 20, "1, 9") +
                                     Line(2, 50, "1, 2, 3, 5, 6") + Line(3, 16, "8, 7"));
  ASSERT_EQ(trace.tokens_per_block, 0u);
  EXPECT_THAT(
      NanosToContinuation(FromText(Line(0, 30, "1, 2, 3, 4") + Line(1, 20, "1, 9, 10") +
                                   Line(2, 50, "1, 2, 3, 5, 6, 7, 11") + Line(3, 16, "8, 7"))),
      ElementsAre(2'000'000, 0, 0, 0));
}

TEST(ReplayTest, ImpossibleSetupsAreRefused) {
  const ReplayTrace trace = FromText(Line(0, 1, "1"));
  EXPECT_THAT(Replay(trace, {.policy = "none", .capacity_blocks = 1}, {}).status().message(),
              HasSubstr("there is no policy 'none'"));
  EXPECT_THAT(Replay(trace, {.policy = "arc", .capacity_blocks = 1, .nvme_blocks = 1}, {})
                  .status()
                  .message(),
              HasSubstr("no second tier"));
  EXPECT_EQ(Replay(trace, {.policy = "lru", .capacity_blocks = 0}, {}).status().code(),
            Code::kInvalid);
}

// Blocks that come twice in a request, empty requests, a capacity of one: no policy fails.
TEST(ReplayTest, OddTracesHarmNoPolicy) {
  std::string text = Line(0, 0, "");
  for (int i = 0; i < 300; ++i) {
    text += Line(i * 7000, 5,
                 std::to_string(i % 7) + ", " + std::to_string(i % 7) + ", " +
                     std::to_string(i % 11) + ", 3, " + std::to_string(i % 5));
  }
  const ReplayTrace trace = FromText(text);
  for (const std::string_view policy : ReplayPolicies()) {
    for (const uint32_t capacity : {1u, 2u, 7u, 1000u}) {
      const auto outcome =
          Replay(trace, {.policy = std::string(policy), .capacity_blocks = capacity}, {});
      ASSERT_TRUE(outcome.ok()) << policy;
      EXPECT_LE(outcome->hits, outcome->blocks);
    }
  }
  for (const char* policy : {"lru", "learned"}) {
    EXPECT_TRUE(Replay(trace, {.policy = policy, .capacity_blocks = 2, .nvme_blocks = 5}, {}).ok());
  }
}

class PublicTraceTest : public ::testing::Test {
 protected:
  static const ReplayTrace* Conversation() {
    static const auto trace = [] {
      auto reader = TraceReader::Open(AQUIFER_SOURCE_DIR
                                      "/src/trace/testdata/mooncake_conversation.jsonl.gz");
      if (!reader.ok()) return std::make_unique<ReplayTrace>();  // Built without zlib.
      return std::make_unique<ReplayTrace>(*LoadReplayTrace(reader->get(), {}));
    }();
    return trace.get();
  }

  void SetUp() override {
    if (Conversation()->blocks.empty()) GTEST_SKIP() << "gzip is not read here";
  }

  // In hundredths of a percent.
  static double Rate(ReplaySetup setup, double share) {
    setup.capacity_blocks = static_cast<uint32_t>(Conversation()->distinct * share);
    const auto outcome = Replay(*Conversation(), setup, {});
    EXPECT_TRUE(outcome.ok());
    return std::round(outcome->hit_rate() * 10'000) / 100;
  }
};

TEST_F(PublicTraceTest, HitsOfOthersAreThoseOfTheStudy) {
  const std::map<std::string, std::vector<double>> known = {
      {"lru", {5.23, 19.54, 27.84, 35.35, 36.31}},
      {"lru-leaf", {5.25, 19.58, 27.89, 35.35, 36.31}},
      {"belady", {24.64, 36.64, 36.64, 36.64, 36.64}}};
  for (const auto& [policy, rates] : known) {
    const std::vector<double> shares = {0.01, 0.05, 0.1, 0.25, 0.5};
    for (size_t i = 0; i < shares.size(); ++i) {
      EXPECT_DOUBLE_EQ(Rate({.policy = policy}, shares[i]), rates[i]) << policy << shares[i];
    }
  }
}

TEST_F(PublicTraceTest, TheLearnedOrderKeepsMoreThanLru) {
  EXPECT_GE(Rate({.policy = "learned"}, 0.01), 9.6);
  EXPECT_GE(Rate({.policy = "learned"}, 0.05), 22.5);
  EXPECT_GE(Rate({.policy = "learned"}, 0.1), 29.2);
  EXPECT_GE(Rate({.policy = "learned"}, 0.25), 35.25);
  EXPECT_GE(Rate({.policy = "learned"}, 0.5), 36.21);
  EXPECT_GE(Rate({.policy = "learned", .hint_accuracy = 0.8}, 0.05), 26.7);
  EXPECT_GE(Rate({.policy = "learned", .hint_accuracy = 0.8, .hint_returns = true}, 0.05), 29.0);
}

TEST_F(PublicTraceTest, TwoTiersAreWrittenToAsInANode) {
  const uint32_t nvme = Conversation()->distinct / 10;
  const uint32_t dram = Conversation()->distinct / 100;
  const auto replay = [&](const std::string& policy, double written_part) {
    const auto outcome = Replay(*Conversation(),
                                {.policy = policy,
                                 .capacity_blocks = dram,
                                 .nvme_blocks = nvme,
                                 .written_part = written_part},
                                {});
    EXPECT_TRUE(outcome.ok());
    return *outcome;
  };
  const ReplayOutcome lru = replay("lru", 1);
  EXPECT_NEAR(lru.hit_rate(), 0.2789, 0.00005);
  EXPECT_NEAR(lru.writes_per_insert(), 1, 0.002);
  const ReplayOutcome all = replay("learned", 1);
  EXPECT_GE(all.hit_rate(), lru.hit_rate());
  EXPECT_NEAR(all.writes_per_insert(), 1, 0.002);
  const ReplayOutcome part = replay("learned", 0.65);
  EXPECT_NEAR(part.writes_per_insert(), 0.65, 0.05);
  EXPECT_GE(part.hit_rate(), lru.hit_rate());
}

TEST(ReplayTest, OnlyTheLearnedOrderWithASecondTierWritesAPart) {
  const ReplayTrace trace = FromText(Line(0, 1, "1"));
  for (const ReplaySetup& setup : std::vector<ReplaySetup>{
           {.policy = "lru", .capacity_blocks = 1, .nvme_blocks = 1, .written_part = 0.5},
           {.policy = "learned", .capacity_blocks = 1, .written_part = 0.5}}) {
    EXPECT_EQ(Replay(trace, setup, {}).status().code(), Code::kInvalid);
  }
}

}  // namespace
}  // namespace aquifer
