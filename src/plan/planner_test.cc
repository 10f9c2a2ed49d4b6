#include "plan/planner.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/advice.h"
#include "plan/report/report.h"
#include "trace/request_log.h"

namespace aquifer {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kConversation =
    AQUIFER_SOURCE_DIR "/src/trace/testdata/mooncake_conversation.jsonl.gz";

Fleet FleetOf(const std::string& text) {
  const Result<Fleet> fleet = ParseFleet(text, "fleet.toml");
  EXPECT_TRUE(fleet.ok()) << fleet.status().message();
  return fleet.ok() ? *fleet : Fleet();
}

Plan PlanOf(const PlannerOptions& options, const std::vector<TraceRequest>& requests) {
  Planner planner(options);
  for (const TraceRequest& request : requests) EXPECT_TRUE(planner.Add(request).ok());
  Result<Plan> plan = planner.Finish();
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *std::move(plan) : Plan();
}

std::vector<TraceRequest> ReadConversation() {
  std::vector<TraceRequest> requests;
  auto log = RequestLog::Open(kConversation);
  EXPECT_TRUE(log.ok()) << log.status().message();
  TraceRequest request;
  while (log.ok()) {
    const Result<bool> more = (*log)->Next(&request);
    EXPECT_TRUE(more.ok());
    if (!more.ok() || !*more) break;
    requests.push_back(request);
  }
  return requests;
}

// Both are read and made once: with a sanitizer that takes seconds.
const std::vector<TraceRequest>& Conversation() {
  static const auto* const requests = new std::vector<TraceRequest>(ReadConversation());
  return *requests;
}
const Plan& ConversationPlan() {
  static const auto* const plan = new Plan(PlanOf({.fleet = FleetOf("")}, Conversation()));
  return *plan;
}

// So many tokens of prompt, in blocks of 100 that begin with `first`.
TraceRequest Asked(uint64_t seconds, uint64_t first, uint64_t blocks, uint64_t output_tokens = 0) {
  TraceRequest request{
      .timestamp_ms = seconds * 1000, .input_tokens = blocks * 100, .output_tokens = output_tokens};
  for (uint64_t i = 0; i < blocks; ++i) request.block_ids.push_back(first + i);
  return request;
}

// Nothing in the engine, a token a millisecond, a kilobyte a token: easy to calculate with.
constexpr const char* kSimple = R"(
[fleet]
gpus_per_node = 1
[gpu]
engine_cache = 0
dollars_per_hour = 3600
[model]
preset = "llama-3-8b"
kv_bytes_per_token = 1000
[prefill]
tokens_per_second = 1000
[dram]
size = "10MB"
latency_ms = 1
speed = "10MB"
dollars_per_gib = 0
)";

std::string Simple(const std::string& nvme = "size = 0\n") {
  return std::string(kSimple) + "[nvme]\n" + nvme;
}

#ifdef AQUIFER_HAS_ZLIB

// The product's plain order, as `aquifer sim replay --policy lru-leaf` has it.
TEST(PlannerTest, TheConversationTraceHasTheHitRatesThatReplayHas) {
  const Plan& plan = ConversationPlan();
  EXPECT_EQ(plan.trace.requests, 12'031u);
  EXPECT_EQ(plan.trace.block_tokens, 512u);
  EXPECT_EQ(plan.trace.block_references, 288'500);
  EXPECT_EQ(plan.trace.distinct_blocks, 182'790);
  EXPECT_EQ(plan.trace.sampled_one_in, 1u);
  EXPECT_FALSE(plan.trace.outputs_followed);
  EXPECT_EQ(plan.trace.misfits, 0u);
  for (const auto& [share, percent] :
       {std::pair{0.01, 5.25}, {0.05, 19.58}, {0.10, 27.89}, {0.25, 35.35}, {0.50, 36.31}}) {
    EXPECT_NEAR(100 * plan.HitRate(share * 182'790), percent, 0.02) << share;
  }
  EXPECT_NEAR(100 * plan.hit_rate_most, 36.64, 0.005);
  EXPECT_LT(plan.configured.first_token_ms_mean, plan.without.first_token_ms_mean);
  EXPECT_GT(plan.configured.gpu_seconds_saved, 1000);
  EXPECT_NEAR(plan.hits[plan.knee].hit_rate, 0.35, 0.03);
  EXPECT_EQ(plan.verdict, Verdict::kPays);
}

TEST(PlannerTest, TheNodesLearnedOrderIsRunBesideForAsLongAsItMay) {
  const Fleet five_percent = FleetOf("[dram]\nsize = \"584896MiB\"\n[nvme]\nsize = 0\n");
  const std::vector<TraceRequest>& requests = Conversation();
  const Plan plan = PlanOf({.fleet = five_percent}, requests);
  ASSERT_TRUE(plan.learned.has_value());
  EXPECT_TRUE(plan.learned->whole);
  EXPECT_NEAR(plan.configured.hit_rate, 0.1958, 0.0002);
  EXPECT_GT(plan.learned->hit_rate, plan.configured.hit_rate + 0.02);
  EXPECT_EQ(plan.PredictedHitRate(), plan.learned->hit_rate);
  const Plan begun = PlanOf({.fleet = five_percent, .learned_references = 10'000}, requests);
  EXPECT_FALSE(begun.learned->whole);
  EXPECT_EQ(begun.PredictedHitRate(), begun.configured.hit_rate);
  EXPECT_FALSE(PlanOf({.fleet = five_percent, .learned_references = 0}, requests).learned);
}

TEST(PlannerTest, ASampleOfTheConversationTraceIsWithinAPoint) {
  const std::vector<TraceRequest>& requests = Conversation();
  const Plan& exact = ConversationPlan();
  for (const size_t max_tracked : {size_t{30'000}, size_t{10'000}}) {
    const Plan sampled = PlanOf(
        {.fleet = FleetOf(""), .stack = {.max_tracked = max_tracked}, .learned_references = 0},
        requests);
    EXPECT_GT(sampled.trace.sampled_one_in, 4u);
    EXPECT_LT(sampled.trace.memory_bytes, exact.trace.memory_bytes / 3);
    for (const double share : {0.01, 0.05, 0.1, 0.25, 0.5, 1.0}) {
      const double blocks = share * exact.trace.distinct_blocks;
      EXPECT_NEAR(sampled.HitRate(blocks), exact.HitRate(blocks), 0.01) << share;
    }
    EXPECT_NEAR(sampled.configured.gpu_seconds_saved, exact.configured.gpu_seconds_saved,
                0.05 * exact.configured.gpu_seconds_saved);
    EXPECT_NEAR(sampled.configured.first_token_ms_mean, exact.configured.first_token_ms_mean,
                0.05 * exact.configured.first_token_ms_mean);
  }
}

TEST(PlannerTest, TheReportsOfTheConversationTraceSayAllThatIsAsked) {
  const Plan& plan = ConversationPlan();
  EXPECT_THAT(PlanText(plan),
              AllOf(HasSubstr("It pays."), HasSubstr("19.58 %"), HasSubstr("The knee is at"),
                    HasSubstr("Buy next"), HasSubstr("drive writes a day"), HasSubstr("Assumed:")));
  const auto json = nlohmann::json::parse(PlanJson(plan));
  EXPECT_EQ(json["verdict"], "pays");
  EXPECT_GT(json["configured"]["hit_rate"], 0.36);
  EXPECT_EQ(json["stages"].size(), 4u);
  const std::string html = PlanHtml(plan);
  EXPECT_THAT(html, Not(AnyOf(HasSubstr("http://"), HasSubstr("https://"), HasSubstr("<script"),
                              HasSubstr("src="), HasSubstr("nan"), HasSubstr("url("))));
  for (const char* id :
       {"plot-hits", "plot-ttft-dram", "plot-ttft-nvme", "plot-gpu", "plot-money", "plot-stages"}) {
    EXPECT_THAT(html, HasSubstr(std::string("<svg id=\"") + id + "\""));
  }
}

#endif  // AQUIFER_HAS_ZLIB

TEST(PlannerTest, TwoEqualPromptsAreOnePrefillAndOneLoad) {
  const Plan plan = PlanOf({.fleet = FleetOf(Simple())},
                           {Asked(0, 1, 10), Asked(3600, 1, 10), Asked(7200, 1, 10)});
  EXPECT_EQ(plan.trace.block_tokens, 100u);
  EXPECT_DOUBLE_EQ(plan.configured.hit_rate, 2.0 / 3);
  // A second for each prefill; a load of 1 MB takes 1 + 100 ms, and the last token is computed.
  EXPECT_NEAR(plan.without.first_token_ms_mean, 1000, 1e-6);
  EXPECT_NEAR(plan.configured.first_token_ms_mean, (1000 + 2 * 102) / 3.0, 1e-6);
  EXPECT_NEAR(plan.configured.gpu_seconds_saved, 2 * 0.999, 1e-9);
  EXPECT_NEAR(plan.configured.tokens_loaded, 2000, 1e-9);
  // A dollar a second, in two hours, for a month of 730.5.
  EXPECT_NEAR(plan.configured.dollars_saved_month, 2 * 0.999 * 730.5 / 2, 1e-6);
}

TEST(PlannerTest, ABlockThatIsNewToANodeIsWrittenToItsDrivesOnce) {
  const Plan plan = PlanOf({.fleet = FleetOf(Simple("size = \"20MB\"\n"))},
                           {Asked(0, 1, 10), Asked(43'200, 1, 10), Asked(86'400, 11, 10)});
  // 20 blocks of 100 kB in a day, on drives of 20 MB.
  EXPECT_NEAR(plan.configured.nvme_bytes_written_day, 2e6, 1);
  EXPECT_NEAR(plan.configured.nvme_drive_writes_day, 0.1, 1e-9);
}

TEST(PlannerTest, DrivesThatWearOutSoonerCostMore) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 100; ++i) requests.push_back(Asked(i * 60, 1000 * i, 10));
  const auto cost = [&requests](const char* rating) {
    const Plan plan = PlanOf(
        {.fleet = FleetOf(Simple(std::string("size = \"20MB\"\ndollars_per_tb = "
                                             "100000\nwatts_per_tb = 0\ndrive_writes_per_day = ") +
                                 rating + "\n"))},
        requests);
    return plan.configured.dollars_cost_month;
  };
  EXPECT_GT(cost("1"), 2 * cost("100"));
}

// Engines ask the node for what they have themselves, too; what only they have is no hit of a node.
TEST(PlannerTest, HitsOfTheEnginesAloneAreNotPredictedForANode) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 60; ++i) requests.push_back(Asked(i * 60, 1000 * (i % 3), 10));
  std::string fleet = Simple();
  fleet.replace(fleet.find("engine_cache = 0"), 16, "engine_cache = \"1GB\"");
  for (const char* nodes : {"[fleet]\nnodes = 1", "[fleet]\nnodes = 2"}) {
    std::string none = fleet;
    none.replace(none.find("[fleet]"), 7, nodes);
    std::string enough = none;
    none.replace(none.find("size = \"10MB\""), 13, "size = 0");
    EXPECT_GT(PlanOf({.fleet = FleetOf(none)}, requests).configured.hit_rate, 0.9);
    EXPECT_EQ(PlanOf({.fleet = FleetOf(none)}, requests).PredictedHitRate(), 0);
    EXPECT_GT(PlanOf({.fleet = FleetOf(enough)}, requests).PredictedHitRate(), 0.9);
  }
}

TEST(PlannerTest, ItSaysPlainlyWhenNothingComesBack) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 100; ++i) requests.push_back(Asked(i * 60, 1000 * i, 10));
  const Plan plan = PlanOf({.fleet = FleetOf(Simple())}, requests);
  EXPECT_EQ(plan.verdict, Verdict::kDoesNotPay);
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("almost nothing to gain")));
  EXPECT_THAT(PlanText(plan), AllOf(HasSubstr("It does not pay."), HasSubstr("Buy next: nothing")));
  EXPECT_THAT(PlanHtml(plan), HasSubstr("It does not pay."));
}

TEST(PlannerTest, ItSaysPlainlyWhenTheTiersAreTooSlow) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 100; ++i) requests.push_back(Asked(i * 60, 1, 10));
  // A token is computed in a millisecond, and its 100 kB are loaded in ten.
  std::string fleet = Simple();
  fleet.replace(fleet.find("kv_bytes_per_token = 1000"), 25, "kv_bytes_per_token = \"100KB\"");
  fleet.replace(fleet.find("size = \"10MB\""), 13, "size = \"10GB\"");
  const Plan plan = PlanOf({.fleet = FleetOf(fleet)}, requests);
  EXPECT_EQ(plan.verdict, Verdict::kDoesNotPay);
  EXPECT_GT(plan.configured.hit_rate, 0.9);
  EXPECT_EQ(plan.configured.tokens_loaded, 0);
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("Recomputing is faster than loading")));
}

TEST(PlannerTest, ItSaysPlainlyWhenTheTiersCostMoreThanTheySave) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 100; ++i) requests.push_back(Asked(i * 60, i % 2 * 50, 10));
  std::string fleet = Simple();
  fleet.replace(fleet.find("dollars_per_gib = 0"), 19, "dollars_per_gib = 10000");
  fleet.replace(fleet.find("size = \"10MB\""), 13, "size = \"1TiB\"");
  const Plan plan = PlanOf({.fleet = FleetOf(fleet)}, requests);
  EXPECT_EQ(plan.verdict, Verdict::kDoesNotPay);
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("The tiers cost $")));
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("A smaller fleet of tiers would pay")));
}

// Where no size does anything, the sizes that are shown are those that the trace could fill.
TEST(PlannerTest, WhereNothingPaysTheCurvesEndWhereEverythingIsHeld) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 100; ++i) requests.push_back(Asked(i * 60, 1000 * i, 10));
  const Plan plan = PlanOf({.fleet = FleetOf(Simple())}, requests);
  const double everything = 1000 * 100e3;  // Blocks of 100 kB.
  for (const auto& [curve, size] : {std::pair{&plan.by_dram, &TierChoice::dram_bytes},
                                    {&plan.by_nvme, &TierChoice::nvme_bytes}}) {
    ASSERT_GE(curve->size(), 3u);
    EXPECT_EQ(curve->front().choice.*size, 16 * 100e3);
    EXPECT_GT(curve->back().choice.*size, everything);
    EXPECT_LT(curve->back().choice.*size, 4 * everything);
  }
  EXPECT_THAT(PlanText(plan) + PlanHtml(plan), Not(HasSubstr("TiB")));
}

// 50 MB of blocks come back in turns: twice the 10 MB that the fleet has would hold none of them.
TEST(PlannerTest, TheBestRowOfTheTablesIsBoughtNext) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 500; ++i) requests.push_back(Asked(i * 60, i % 50 * 1000, 10));
  const Plan plan = PlanOf({.fleet = FleetOf(Simple())}, requests);
  const Outcome* best_row = &plan.configured;
  for (const std::vector<Outcome>* curve : {&plan.by_dram, &plan.by_nvme}) {
    for (const Outcome& row : *curve) {
      if (row.net_month() > best_row->net_month()) best_row = &row;
    }
  }
  ASSERT_GT(best_row->net_month(), plan.configured.net_month());
  const Purchase* const next = BuyNext(plan);
  ASSERT_NE(next, nullptr);
  EXPECT_GE(next->outcome.net_month(), best_row->net_month());
  EXPECT_DOUBLE_EQ(next->outcome.choice.nvme_bytes, 512 * 100e3);
  EXPECT_EQ(next->what, "48.8MiB more NVMe a node");
}

TEST(PlannerTest, TiersThatWouldPayAreCalledLargerWhereTheyAre) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 100; ++i) requests.push_back(Asked(i * 60, i % 2 * 50, 10));
  std::string fleet = Simple();
  fleet.replace(fleet.find("size = \"10MB\""), 13, "size = 0");
  const Plan plan = PlanOf({.fleet = FleetOf(fleet)}, requests);
  EXPECT_EQ(plan.verdict, Verdict::kDoesNotPay);
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("Larger tiers would pay")));
}

TEST(PlannerTest, ASampleThatIsTooSmallJudgesNothing) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 2000; ++i) requests.push_back(Asked(i * 60, i % 1000 * 50, 10));
  const auto plan_of = [&requests](uint32_t shift) {
    return PlanOf({.fleet = FleetOf(Simple()), .stack = {.first_rate_shift = shift}}, requests);
  };
  EXPECT_NE(plan_of(0).verdict, Verdict::kUnknown);
  const Plan some = plan_of(2);  // Some 2500 blocks.
  EXPECT_NE(some.verdict, Verdict::kUnknown);
  EXPECT_THAT(some.warnings, Contains(AllOf(HasSubstr("One block in 4"), HasSubstr("about 2.0"))));
  for (const uint32_t shift : {6, 20}) {
    const Plan few = plan_of(shift);
    EXPECT_EQ(few.verdict, Verdict::kUnknown);
    EXPECT_THAT(few.reasons, Contains(HasSubstr("too few to judge by")));
    EXPECT_EQ(BuyNext(few), nullptr);
    EXPECT_THAT(PlanText(few) + PlanHtml(few), Not(HasSubstr("Buy next")));
  }
}

TEST(PlannerTest, WithoutTimesNothingIsSaidByTheMonth) {
  const Plan plan = PlanOf({.fleet = FleetOf(Simple())}, {Asked(5, 1, 10), Asked(5, 1, 10)});
  EXPECT_EQ(plan.verdict, Verdict::kUnknown);
  EXPECT_EQ(plan.configured.hit_rate, 0.5);
  EXPECT_EQ(plan.configured.dollars_saved_month, 0);
}

// Requests for one prompt that go anywhere: who has it is mostly another.
TEST(PlannerTest, PeersServeWhatAnotherNodeHas) {
  const std::string nodes = R"(
[fleet]
nodes = 8
routing = "ROUTING"
gpus_per_node = 1
[gpu]
engine_cache = 0
[dram]
size = "1TiB"
[nvme]
size = 0
[peers]
enabled = true
)";
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 40; ++i) requests.push_back(Asked(i, 1000 * (i % 20), 10));
  const auto plan_with = [&](const std::string& routing) {
    std::string fleet = nodes;
    fleet.replace(fleet.find("ROUTING"), 7, routing);
    return PlanOf({.fleet = FleetOf(fleet)}, requests);
  };
  const auto share = [](const Plan& plan, Stage stage) {
    return plan.configured.hit_share[static_cast<size_t>(stage)];
  };
  const Plan random = plan_with("random");
  EXPECT_DOUBLE_EQ(random.configured.hit_rate, 0.5);
  EXPECT_GT(share(random, Stage::kPeers), 0.3);
  const Plan sticky = plan_with("sticky");
  EXPECT_DOUBLE_EQ(sticky.configured.hit_rate, 0.5);
  EXPECT_GT(share(sticky, Stage::kDram), share(sticky, Stage::kPeers));
}

TEST(PlannerTest, ADurableStoreHasWhatTheNodesHaveDropped) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 60; ++i) requests.push_back(Asked(i * 60, 1000 * (i % 30), 10));
  const std::string small = Simple() + "[durable]\nenabled = true\nlatency_ms = 5\n";
  const Plan plan = PlanOf({.fleet = FleetOf(small)}, requests);
  EXPECT_DOUBLE_EQ(plan.configured.hit_rate, 0.5);
  EXPECT_DOUBLE_EQ(plan.configured.hit_share[static_cast<size_t>(Stage::kDurable)], 0.5);
  EXPECT_EQ(plan.without.hit_rate, 0);
}

// As a node records it: whole blocks, and outputs that were stored.
TEST(PlannerTest, OutputsThatAPromptGoesOnFromAreHits) {
  const TraceRequest turn1 = Asked(0, 1, 4, 250);
  TraceRequest turn2 = Asked(60, 1, 4);
  turn2.block_ids.insert(turn2.block_ids.end(), {501, 502, 503});  // Two of them are the output.
  turn2.input_tokens = 700;
  const auto hits = [&](OutputRule rule) {
    const Plan plan = PlanOf({.fleet = FleetOf(Simple()), .outputs = rule}, {turn1, turn2});
    EXPECT_EQ(plan.trace.outputs_followed, rule != OutputRule::kIgnored);
    return plan.configured.hit_rate * plan.trace.block_references;
  };
  EXPECT_DOUBLE_EQ(hits(OutputRule::kAuto), 6);
  EXPECT_DOUBLE_EQ(hits(OutputRule::kStored), 6);
  EXPECT_DOUBLE_EQ(hits(OutputRule::kIgnored), 4);
}

// A block twice in a chain, behind several others, and behind itself: nobody's prompt, but a file
// may say so.
TEST(PlannerTest, ChainsThatCannotBeAreCountedAllTheSame) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 400; ++i) {
    TraceRequest request = Asked(i, 0, 12, 500);
    for (uint64_t j = 0; j < 12; ++j) request.block_ids[j] = (i * 7 + j * j * 5) % 23;
    requests.push_back(request);
  }
  for (const char* size : {"size = \"1MB\"", "size = \"300KB\""}) {
    std::string fleet = Simple();
    fleet.replace(fleet.find("size = \"10MB\""), 13, size);
    const Plan plan = PlanOf({.fleet = FleetOf(fleet)}, requests);
    EXPECT_EQ(plan.trace.block_references, 4800);
    EXPECT_LE(plan.configured.hit_rate, 1);
  }
}

TEST(PlannerTest, TheBlockSizeIsFoundOutOrRefused) {
  const auto size = [](const std::vector<std::pair<uint64_t, size_t>>& lengths) {
    Planner planner({.fleet = FleetOf("")});
    for (const auto& [tokens, blocks] : lengths) {
      TraceRequest request{.timestamp_ms = 0, .input_tokens = tokens, .output_tokens = 0};
      request.block_ids.resize(blocks);
      EXPECT_TRUE(planner.Add(request).ok());
    }
    const Result<Plan> plan = planner.Finish();
    if (plan.ok()) return plan->trace.block_tokens;
    EXPECT_THAT(plan.status().message(), HasSubstr("--block-tokens"));
    return uint64_t{0};
  };
  EXPECT_EQ(size({{6758, 14}, {7322, 15}}), 512u);
  EXPECT_EQ(size({{48, 3}, {160, 10}}), 16u);
  EXPECT_EQ(size({{50, 3}, {170, 10}, {31, 1}}), 16u);  // Only whole blocks are named.
  EXPECT_EQ(size({{100, 10}, {1000, 2}}), 0u);
}

// A node records all of its engines; a plan is for one model.
TEST(PlannerTest, BlocksOfTwoSizesAreToldOf) {
  const auto request = [](uint64_t i, uint64_t size) {
    return TraceRequest{.timestamp_ms = 1000 * i,
                        .input_tokens = 2 * size,
                        .output_tokens = 0,
                        .block_ids = {2 * i, 2 * i + 1}};
  };
  Planner planner({.fleet = FleetOf("")});
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(planner.Add(request(i, i % 2 == 0 ? 16 : 256)).ok());
  }
  EXPECT_THAT(planner.Finish().status().message(),
              AllOf(HasSubstr("blocks of 16 and 256 tokens"), HasSubstr("several models")));

  std::vector<TraceRequest> late;
  for (uint64_t i = 0; i < 2000; ++i) late.push_back(request(i, i < 1500 ? 16 : 256));
  const Plan plan = PlanOf({.fleet = FleetOf("")}, late);
  EXPECT_EQ(plan.trace.misfits, 500u);
  EXPECT_THAT(plan.warnings, Contains(HasSubstr("500 of 2000 requests name more or fewer blocks")));
  late.resize(1500);
  EXPECT_EQ(PlanOf({.fleet = FleetOf("")}, late).trace.misfits, 0u);
}

TEST(PlannerTest, ImpossibleRequestsAndEmptyTracesAreRefused) {
  Planner planner({.fleet = FleetOf("")});
  EXPECT_THAT(planner.Finish().status().message(), HasSubstr("no request"));
  Planner other({.fleet = FleetOf("")});
  EXPECT_EQ(
      other.Add({.timestamp_ms = 0, .input_tokens = uint64_t{1} << 39, .output_tokens = 0}).code(),
      Code::kInvalid);
}

TEST(PlannerTest, BlocksPastTheEndOfAPromptAreLeftOut) {
  TraceRequest request = Asked(0, 1, 10);
  request.input_tokens = 150;
  const Plan plan = PlanOf({.fleet = FleetOf(Simple()), .block_tokens = 100}, {request});
  EXPECT_EQ(plan.trace.blocks_cut, 8u);
  EXPECT_THAT(plan.warnings, Contains(HasSubstr("8 blocks were named past the end")));
}

TEST(PlannerTest, TheKneeIsWhereMoreBeginsToGiveLess) {
  std::vector<HitPoint> hits;
  for (int i = 0; i <= 10; ++i) {
    hits.push_back({.blocks = std::exp2(i), .hit_rate = i < 6 ? 0.1 * i : 0.5 + 0.01 * (i - 5)});
  }
  EXPECT_EQ(FindKnee(hits), 5u);
  EXPECT_EQ(FindKnee({}), 0u);
}

}  // namespace
}  // namespace aquifer
