#include "node/local/recorder_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "testing/chain.h"

namespace aquifer {
namespace {

using nlohmann::json;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1000 * kMs;
constexpr int64_t kStart = 77 * kSecond;
constexpr uint32_t kTokens = 16;

Sha256Digest Bytes(unsigned char byte) {
  Sha256Digest digest;
  digest.fill(std::byte{byte});
  return digest;
}

const RecordedClient kEngine{.tenant = Bytes(1), .engine = 10};
const RecordedClient kOtherEngine{.tenant = Bytes(1), .engine = 11};
const RecordedClient kOtherTenant{.tenant = Bytes(2), .engine = 10};

std::vector<json> Parsed(const std::string& lines) {
  std::vector<json> parsed;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) parsed.push_back(json::parse(line));
  return parsed;
}

class RecordedTraceTest : public testing::Test {
 protected:
  void Ask(int64_t ms, const Chain& chain, const RecordedClient& client = kEngine) {
    trace_.Asked(kStart + ms * kMs, client, kTokens, chain.keys());
  }
  void Store(const Chain& chain, size_t first, size_t count,
             const RecordedClient& client = kEngine) {
    trace_.Stored(client, kTokens, chain.parent(first), chain.keys(first, count));
  }
  std::vector<json> Due(int64_t ms) {
    std::string lines;
    const size_t count = trace_.TakeLines(kStart + ms * kMs, false, &lines);
    const std::vector<json> parsed = Parsed(lines);
    EXPECT_EQ(parsed.size(), count);
    return parsed;
  }
  std::vector<json> All() {
    std::string lines;
    trace_.TakeLines(kStart, true, &lines);
    return Parsed(lines);
  }
  static Chain Prompt(uint64_t seed, size_t blocks) {
    return Chain(LayoutOfBytes(4096), {.seed = seed, .blocks = blocks});
  }

  RecordedTrace trace_{{.salt = Bytes(9), .start_nanos = kStart}};
};

TEST_F(RecordedTraceTest, ALineIsInMooncakesForm) {
  Ask(2175, Prompt(1, 3));
  std::string line;
  EXPECT_EQ(trace_.TakeLines(kStart, true, &line), 1u);
  const json parsed = json::parse(line);
  EXPECT_EQ(parsed.size(), 4u);
  EXPECT_EQ(parsed.at("timestamp"), 2175);
  EXPECT_EQ(parsed.at("input_length"), 48);
  EXPECT_EQ(parsed.at("output_length"), 0);
  ASSERT_THAT(parsed.at("hash_ids"), SizeIs(3));
  for (const json& id : parsed.at("hash_ids")) {
    ASSERT_TRUE(id.is_number_unsigned());
    EXPECT_LT(id.get<uint64_t>(), uint64_t{1} << 53) << "a double has no more";
  }
  EXPECT_TRUE(
      line.starts_with("{\"timestamp\": 2175, \"input_length\": 48, \"output_length\": 0, "
                       "\"hash_ids\": ["));
  EXPECT_TRUE(line.ends_with("]}\n"));
}

TEST_F(RecordedTraceTest, TheSamePrefixHasTheSameIdsAndNothingElseDoes) {
  const Chain first = Prompt(1, 4);
  const Chain fork = first.Fork(2, 5, 2);
  Ask(0, first);
  Ask(1, fork);
  Ask(2, first, kOtherTenant);
  const std::vector<json> lines = All();
  ASSERT_THAT(lines, SizeIs(3));
  const json a = lines[0]["hash_ids"];
  const json b = lines[1]["hash_ids"];
  const json c = lines[2]["hash_ids"];
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a[i] == b[i], i < 2);
    EXPECT_NE(a[i], c[i]) << "the same keys, of another tenant";
  }
}

TEST_F(RecordedTraceTest, AnotherSaltMakesOtherIds) {
  const Chain chain = Prompt(1, 4);
  Ask(0, chain);
  const json here = All()[0]["hash_ids"];
  RecordedTrace other({.salt = Bytes(8)});
  other.Asked(0, kEngine, kTokens, chain.keys());
  std::string line;
  other.TakeLines(0, true, &line);
  const json there = json::parse(line)["hash_ids"];
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(here[i], there[i]);
}

TEST_F(RecordedTraceTest, NoBitsOfAKeyAreInALine) {
  const Chain chain = Prompt(1, 64);
  Ask(0, chain);
  std::string line;
  trace_.TakeLines(kStart, true, &line);
  for (const Key& key : chain.keys()) {
    EXPECT_THAT(line, Not(HasSubstr(std::to_string(key.Prefix64()))));
    EXPECT_THAT(line, Not(HasSubstr(std::to_string(key.Prefix64() & ((uint64_t{1} << 53) - 1)))));
    EXPECT_THAT(line, Not(HasSubstr(key.ToHex().substr(0, 8))));
  }
}

TEST_F(RecordedTraceTest, WhatIsStoredBehindThePromptIsItsOutput) {
  const Chain chain = Prompt(1, 9);
  const Chain prompt = Prompt(1, 4);
  ASSERT_EQ(prompt[3], chain[3]);
  Ask(0, prompt);
  Store(chain, 0, 2);  // The prompt itself,
  Store(chain, 2, 3);  // its end and one block more,
  Store(chain, 5, 1);  // and on.
  Store(chain, 6, 3);
  EXPECT_EQ(All()[0]["output_length"], 5 * kTokens);
}

TEST_F(RecordedTraceTest, AnothersBlocksAreNotItsOutput) {
  const Chain chain = Prompt(1, 9);
  Ask(0, Prompt(1, 4));
  Store(chain, 4, 2, kOtherEngine);
  Store(chain, 4, 2, kOtherTenant);
  Store(Prompt(2, 9), 4, 2);
  Store(chain, 6, 2);  // Nobody stored what is between.
  EXPECT_EQ(All()[0]["output_length"], 0);
}

TEST_F(RecordedTraceTest, TheNextTurnEndsTheOneBefore) {
  const Chain chain = Prompt(1, 12);
  const auto first = [&](size_t blocks) { return Prompt(1, blocks); };
  Ask(0, first(4));
  Store(chain, 4, 2);
  EXPECT_THAT(Due(10), SizeIs(0));
  Ask(20, first(8));
  const std::vector<json> due = Due(20);
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0]["output_length"], 2 * kTokens);
  Store(chain, 6, 2);  // The new prompt's own.
  Store(chain, 8, 4);
  const std::vector<json> last = All();
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0]["timestamp"], 20);
  EXPECT_EQ(last[0]["output_length"], 4 * kTokens);
}

TEST_F(RecordedTraceTest, AskingAgainSoonIsTheSameRequest) {
  const Chain chain = Prompt(1, 4);
  Ask(0, chain);
  Ask(900, chain);
  Ask(1800, chain);  // Soon after the last time.
  EXPECT_EQ(trace_.waiting(), 1u);
  Ask(1900, chain, kOtherEngine);
  EXPECT_EQ(trace_.waiting(), 2u);
  Ask(3000, chain);
  EXPECT_EQ(trace_.waiting(), 3u);
  Store(Prompt(1, 6), 4, 1);
  Ask(3001, chain);  // It was answered meanwhile, so this is another one.
  const std::vector<json> lines = All();
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[2]["output_length"], kTokens);
  EXPECT_EQ(lines[3]["output_length"], 0);
}

TEST_F(RecordedTraceTest, LinesComeInTheOrderAskedAndAfterTwoMinutesAtTheLatest) {
  const Chain slow = Prompt(1, 4);
  const Chain quick = Prompt(2, 4);
  Ask(0, slow);
  Ask(1, quick);
  Ask(2, quick.Fork(4, 3, 1));
  EXPECT_THAT(Due(3), SizeIs(0)) << "the second has ended, but the first has not";
  const std::vector<json> due = Due(120'000);
  ASSERT_THAT(due, SizeIs(2));
  EXPECT_EQ(due[0]["timestamp"], 0);
  EXPECT_EQ(due[1]["timestamp"], 1);
  Store(Prompt(1, 6), 4, 2);  // Too late, and harmless.
  EXPECT_THAT(All(), SizeIs(1));
}

TEST(RecordedTraceBoundsTest, WhenManyWaitTheFirstAreWrittenEarly) {
  RecordedTrace trace({.salt = Bytes(1), .max_waiting = 3, .max_waiting_ids = 100});
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Chain chain(LayoutOfBytes(4096), {.seed = seed, .blocks = 2});
    trace.Asked(static_cast<int64_t>(seed), kEngine, kTokens, chain.keys());
  }
  std::string lines;
  EXPECT_EQ(trace.TakeLines(10, false, &lines), 7u);
  const Chain long_one(LayoutOfBytes(4096), {.seed = 11, .blocks = 99});
  trace.Asked(11, kEngine, kTokens, long_one.keys());
  EXPECT_EQ(trace.TakeLines(11, false, &lines), 3u);
  EXPECT_EQ(trace.waiting(), 1u);
}

}  // namespace
}  // namespace aquifer
