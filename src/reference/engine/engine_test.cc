// Tests the engine with a real node: wherever blocks are recalled from, the logits are those of an
// engine that computes everything.
#include "reference/engine/engine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "aquifer/cache.h"
#include "reference/engine/engine_fixture.h"
#include "reference/model/constructed.h"
#include "testing/test_level.h"

namespace aquifer::reference {
namespace {

using testing::HasSubstr;

TEST_F(EngineTest, RecalledFromDramAndFromNvmeAfterARestartTheLogitsAreTheSameBits) {
  const uint64_t shapes = ByTestLevel<uint64_t>(2, 3, 12);
  for (uint64_t seed = 0; seed < shapes; ++seed) {
    ModelShape shape = SmallShape();
    shape.layers = 1 + static_cast<uint32_t>(seed % 3);
    shape.kv_heads = seed % 2 == 0 ? 1 : 2;
    shape.heads = shape.kv_heads * (1 + static_cast<uint32_t>(seed % 4));
    shape.head_dim = 16 + 8 * static_cast<uint32_t>(seed % 3);
    const auto weights = *RandomWeights(shape, seed);
    const GenerateRequest request =
        Request(RandomPrompt(1100, shape.vocabulary, seed), seed == 0 ? 300 : 4);
    EngineOptions options = Options();
    options.page_tokens = seed % 2 == 0 ? 16 : 64;

    StartNode();
    const Outcome computed = Generate(StartWith(Options(false), weights).get(), request);
    EXPECT_EQ(computed.figures.computed_tokens, 1100u);
    auto first = StartWith(options, weights);
    const Outcome stored = Generate(first.get(), request);
    EXPECT_TRUE(stored.SameBits(computed));
    EXPECT_EQ(stored.figures.recalled_tokens(), 0u);
    // Generated blocks are stored, too.
    AwaitStored(*first, (1100 + request.max_tokens - 1) / 256);

    const Outcome warm = Generate(StartWith(options, weights).get(), request);
    EXPECT_TRUE(warm.SameBits(computed));
    EXPECT_EQ(warm.figures.dram_tokens, 1024u);
    EXPECT_EQ(warm.figures.computed_tokens, 76u);

    Flush();
    first.reset();
    node_.reset();
    StartNode();
    const Outcome cold = Generate(StartWith(options, weights).get(), request);
    EXPECT_TRUE(cold.SameBits(computed));
    EXPECT_EQ(cold.figures.nvme_tokens, 1024u);
  }
}

TEST_F(EngineTest, AMixtureOfComputedAndRecalledIsTheSameBitsWhereverItIsCut) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const std::vector<uint32_t> prompt = RandomPrompt(1500, 300, 6);
  const GenerateRequest request = Request(prompt, 3);
  const Outcome computed = Generate(StartWith(Options(false), weights).get(), request);
  for (size_t blocks = 0; blocks <= 5; ++blocks) {
    auto writer = StartWith(Options(), weights);
    GenerateRequest part = request;
    part.prompt.resize(256 * blocks + 1);
    part.max_tokens = 1;
    part.cache_salt = fmt::format("{}", blocks);
    Generate(writer.get(), part);
    AwaitStored(*writer, blocks);
    GenerateRequest whole = request;
    whole.cache_salt = part.cache_salt;
    const Outcome mixed = Generate(StartWith(Options(), weights).get(), whole);
    EXPECT_EQ(mixed.figures.recalled_tokens(), 256 * blocks);
    EXPECT_TRUE(mixed.SameBits(computed)) << blocks;
  }
}

TEST_F(EngineTest, BlocksBehindAMissingOneAreComputed) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(1300, 300, 6), 3);
  auto writer = StartWith(Options(), weights);
  const Outcome computed = Generate(writer.get(), request);
  AwaitStored(*writer, 5);
  std::vector<Key> keys(5);
  ASSERT_TRUE(DeriveChain(RootOf(writer->layout()), request.prompt, 256, {}, keys).ok());
  auto client = Connect({.socket = node_->socket()}, {});
  ASSERT_TRUE(client.ok());
  RegisterLayoutRequest layout;
  layout.layout = writer->layout();
  (*client)->RegisterLayout(&layout);
  (*client)->Wait(layout);
  EvictRequest evict;
  evict.chain = {
      .layout = layout.handle, .group = 0, .part = 0, .keys = std::span(keys).subspan(2, 1)};
  (*client)->Evict(&evict);
  (*client)->Wait(evict);
  const Outcome recalled = Generate(StartWith(Options(), weights).get(), request);
  EXPECT_TRUE(recalled.SameBits(computed));
  EXPECT_EQ(recalled.figures.recalled_tokens(), 512u);
}

TEST_F(EngineTest, TheConstructedModelIsTheSameBitsRecalled) {
  StartNode(false);
  const auto weights = ConstructedWeights();
  const auto words = NewWordTokenizer();
  std::string text = "directory";
  for (uint32_t i = 0; i < 400; ++i) {
    text += fmt::format(" {} {} ;", ConstructedWords::Word(ConstructedWords::kFirstName + i * 7),
                        i * 13 % 1000);
  }
  const std::string name = ConstructedWords::Word(ConstructedWords::kFirstName + 7 * 9);
  text += fmt::format(" ask {} . {}", name, name);
  GenerateRequest request = Request(*words->Encode(text), 2);
  const Outcome computed = Generate(StartWith(Options(false), weights).get(), request);
  EXPECT_EQ(words->Decode(computed.tokens[0]), " 117");
  auto writer = StartWith(Options(), weights);
  Generate(writer.get(), request);
  AwaitStored(*writer, request.prompt.size() / 256);
  const Outcome recalled = Generate(StartWith(Options(), weights).get(), request);
  EXPECT_TRUE(recalled.SameBits(computed));
  EXPECT_EQ(recalled.figures.recalled_tokens(), request.prompt.size() / 256 * 256);
}

TEST_F(EngineTest, ManyRequestsInASmallPoolPreemptAndRecallAndAreAllRight) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 8);
  auto alone = StartWith(Options(false), weights);
  EngineOptions options = Options();
  options.pages = 1400 / 16;  // Two prompts fit, but not their answers.
  auto engine = StartWith(options, weights);
  std::vector<Outcome> expected;
  std::vector<std::future<Outcome>> futures;
  for (uint64_t i = 0; i < 4; ++i) {
    expected.push_back(Generate(alone.get(), Request(RandomPrompt(300, 300, i), 500)));
  }
  for (uint64_t i = 0; i < 4; ++i) {
    futures.push_back(Begin(engine.get(), Request(RandomPrompt(300, 300, i), 500)));
  }
  size_t recalled = 0;
  for (size_t i = 0; i < futures.size(); ++i) {
    const Outcome outcome = futures[i].get();
    EXPECT_TRUE(outcome.SameBits(expected[i])) << i;
    recalled += outcome.figures.recalled_after_preemption;
  }
  EXPECT_GT(engine->figures().preemptions, 0u);
  EXPECT_GT(recalled, 0u);
}

TEST_F(EngineTest, APreemptedSequenceRecallsTheBlocksWhosePagesWereTaken) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 8);
  EngineOptions options = Options();
  options.pages = 1400 / 16;
  auto engine = StartWith(options, weights);
  Generate(engine.get(), Request(RandomPrompt(300, 300, 3), 1));
  AwaitStored(*engine, 1);  // By now the node has made its memory.
  // The older sequence grows until it has all pages. By then the other one had about 700 tokens.
  std::promise<void> both_there;
  GenerateRequest growing = Request(RandomPrompt(300, 300, 1), 1050);
  growing.on_token = [there = both_there.get_future().share()](const GeneratedToken&) {
    there.wait();
    return true;
  };
  std::future<Outcome> older = Begin(engine.get(), growing);
  std::future<Outcome> younger = Begin(engine.get(), Request(RandomPrompt(300, 300, 2), 500));
  both_there.set_value();
  const Outcome outcome = younger.get();
  older.wait();
  EXPECT_EQ(outcome.figures.preemptions, 1u);
  EXPECT_EQ(outcome.figures.dram_tokens, 512u);
  EXPECT_LT(outcome.figures.computed_tokens, 300u + 256u);
}

TEST_F(EngineTest, TheNextTurnFindsItsPagesInTheEngine) {
  const auto weights = *RandomWeights(SmallShape(), 8);
  auto engine = StartWith(Options(false), weights);
  GenerateRequest request = Request(RandomPrompt(600, 300, 1), 4);
  const Outcome first = Generate(engine.get(), request);
  const Outcome again = Generate(engine.get(), request);
  EXPECT_TRUE(again.SameBits(first));
  EXPECT_EQ(again.figures.resident_tokens, 512u);
  request.cache_salt = "somebody else";
  EXPECT_EQ(Generate(engine.get(), request).figures.resident_tokens, 0u);
  request.cache_salt = "";
  request.recall = false;
  EXPECT_EQ(Generate(engine.get(), request).figures.computed_tokens, 600u);
}

TEST_F(EngineTest, ACancelledRequestFreesItsPages) {
  const auto weights = *RandomWeights(SmallShape(), 8);
  auto engine = StartWith(Options(false), weights);
  std::promise<void> begun;
  GenerateRequest request = Request(RandomPrompt(100, 300, 1), 3000);
  request.on_token = [&begun, told = false](const GeneratedToken&) mutable {
    if (!std::exchange(told, true)) begun.set_value();
    return true;
  };
  RequestId id = 0;
  std::future<Outcome> future = Begin(engine.get(), request, &id);
  begun.get_future().wait();
  engine->Cancel(id);
  EXPECT_EQ(future.get().reason, FinishReason::kCancelled);
  Generate(engine.get(), Request(RandomPrompt(10, 300, 1), 1));
  EXPECT_EQ(engine->figures().cancelled, 1u);
  EXPECT_LE(engine->figures().pages_in_use, 1u);
}

TEST_F(EngineTest, ANodeThatDiesInTheMiddleIsAMiss) {
  StartNode();
  const auto weights = *RandomWeights(SmallShape(), 8);
  const GenerateRequest request = Request(RandomPrompt(1100, 300, 1), 100);
  const Outcome computed = Generate(StartWith(Options(false), weights).get(), request);
  auto engine = StartWith(Options(), weights);
  GenerateRequest other = request;
  other.cache_salt = "another";
  std::future<Outcome> future = Begin(engine.get(), other);
  node_.reset();
  EXPECT_TRUE(future.get().SameBits(computed));
  EXPECT_TRUE(Generate(engine.get(), request).SameBits(computed));
}

TEST_F(EngineTest, ARequestThatCanNeverRunIsRefused) {
  const auto weights = *RandomWeights(SmallShape(), 8);
  auto engine = StartWith(Options(false), weights);
  EXPECT_EQ(engine->Submit(Request({}, 1)).status().code(), Code::kInvalid);
  EXPECT_THAT(engine->Submit(Request({300}, 1)).status().message(), HasSubstr("no token 300"));
  EXPECT_THAT(engine->Submit(Request(RandomPrompt(5000, 300, 1), 1)).status().message(),
              HasSubstr("5000 tokens"));
}

}  // namespace
}  // namespace aquifer::reference
