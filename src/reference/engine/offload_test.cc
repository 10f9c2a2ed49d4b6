// Tests the engine with a cache that is slow, wrong, shared or away: no answer changes, and no
// wrong block gets into the cache.
#include "reference/engine/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "aquifer/cache.h"
#include "base/request_progress.h"
#include "reference/engine/engine_fixture.h"
#include "reference/model/kernels.h"
#include "reference/model/kv_pages.h"
#include "reference/model/model.h"
#include "testing/cache/forwarding_cache.h"

namespace aquifer::reference {
namespace {

// Fetches nothing until the engine has computed for some steps. Then it returns other bytes than
// the block's.
class LateAndWrongCache final : public ForwardingCache {
 public:
  explicit LateAndWrongCache(std::unique_ptr<Cache> to) : ForwardingCache(std::move(to)) {}

  void ReportPrefill(const PrefillReport&) override { ++steps_; }

  void Fetch(FetchRequest* request) override {
    RequestProgress::Begin(request);
    held_.push_back(request);
  }
  size_t Poll() override {
    if (steps_ >= 6) {
      for (FetchRequest* const request : std::exchange(held_, {})) {
        to()->Fetch(request);
        changed_.push_back(request);
      }
    }
    const size_t moved = to()->Poll();
    std::erase_if(changed_, [this](FetchRequest* request) {
      const bool done = request->done();
      for (FetchOp& op : std::span(request->ops).first(request->completed())) {
        wrong_.resize(op.bytes.size(), std::byte{0x3F});
        op.bytes = wrong_;
      }
      return done;  // The engine may destroy it after this.
    });
    return moved;
  }

 private:
  size_t steps_ = 0;
  std::vector<FetchRequest*> held_;
  std::vector<FetchRequest*> changed_;
  std::vector<std::byte> wrong_;
};

// Reports the engine's requests to the test before it passes them on.
class WatchedCache final : public ForwardingCache {
 public:
  struct Hooks {
    std::function<void()> on_match;
    std::function<void()> on_reserve;
    double estimated_ms = 0;  // The estimate for every block that is being filled, unless it is 0.
  };
  WatchedCache(std::unique_ptr<Cache> to, Hooks hooks)
      : ForwardingCache(std::move(to)), hooks_(std::move(hooks)) {}

  void Match(MatchRequest* request) override {
    if (hooks_.on_match) hooks_.on_match();
    matches_.push_back(request);
    to()->Match(request);
  }
  void Reserve(ReserveRequest* request) override {
    if (hooks_.on_reserve) hooks_.on_reserve();
    to()->Reserve(request);
  }
  size_t Poll() override {
    const size_t moved = to()->Poll();
    std::erase_if(matches_, [this](MatchRequest* request) {
      if (!request->done()) return false;
      for (MatchRun& run : request->runs) {
        if (run.state == RunState::kBeingFilled && hooks_.estimated_ms > 0) {
          run.estimated_ms = hooks_.estimated_ms;
        }
      }
      return true;
    });
    return moved;
  }

 private:
  const Hooks hooks_;
  std::vector<MatchRequest*> matches_;
};

// Gives no slots until the engine has asked for them many times.
class SlowToReserveCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;

  void Reserve(ReserveRequest* request) override {
    RequestProgress::Begin(request);
    held_.push_back(request);
  }
  size_t Poll() override {
    if (++polls_ > 300) {
      for (ReserveRequest* const request : std::exchange(held_, {})) to()->Reserve(request);
    }
    return to()->Poll();
  }

 private:
  size_t polls_ = 0;
  std::vector<ReserveRequest*> held_;
};

// Has no room for any block.
class FullCache final : public ForwardingCache {
 public:
  FullCache(std::unique_ptr<Cache> to, std::atomic<size_t>* reserves)
      : ForwardingCache(std::move(to)), reserves_(reserves) {}

  void Reserve(ReserveRequest* request) override {
    ++*reserves_;
    RequestProgress::Begin(request);
    for (ReserveOp& op : request->ops) op.refusal = Refusal::kFull;
    asked_.push_back(request);
  }
  size_t Poll() override {
    for (ReserveRequest* const request : std::exchange(asked_, {})) {
      RequestProgress::Advance(request, request->ops.size(), true);
    }
    return to()->Poll();
  }

 private:
  std::atomic<size_t>* const reserves_;
  std::vector<ReserveRequest*> asked_;
};

// Another engine that has reserved the blocks of a prompt, and knows their bytes.
class OtherEngine {
 public:
  // The cache has the blocks already; they are evicted again.
  OtherEngine(const std::string& socket, const Layout& layout, std::vector<Key> keys,
              const Key& root)
      : keys_(std::move(keys)) {
    auto client = Connect({.socket = socket}, {.tenant = "local", .engine = "another"});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    cache_ = *std::move(client);
    RegisterLayoutRequest registration;
    registration.layout = layout;
    cache_->RegisterLayout(&registration);
    cache_->Wait(registration);
    chain_ = {.layout = registration.handle, .group = 0, .part = 0, .keys = keys_};
    TakeOut();
    reserve_.chain = chain_;
    reserve_.parent = root;
    cache_->Reserve(&reserve_);
    cache_->Wait(reserve_);
  }

  const std::vector<std::vector<std::byte>>& bytes() const { return bytes_; }

  void Commit() {
    CommitRequest commit;
    for (size_t i = 0; i < reserve_.ops.size(); ++i) {
      const std::span<std::byte> slot = reserve_.ops[i].slot;
      std::copy(bytes_[i].begin(), bytes_[i].end(), slot.begin());
      commit.ops.emplace_back().reservation = reserve_.ops[i].reservation;
      commit.ops.back().sums = SumLanes(slot, 0);
    }
    cache_->Commit(&commit);
    cache_->Wait(commit);
    for (const CommitOp& op : commit.ops) EXPECT_TRUE(op.published) << op.status.ToString();
  }

 private:
  void TakeOut() {
    FetchRequest fetch;
    fetch.chain = chain_;
    cache_->Fetch(&fetch);
    cache_->Wait(fetch);
    std::vector<ReleaseOp> leases;
    for (const FetchOp& op : fetch.ops) {
      EXPECT_TRUE(op.status.ok()) << op.status.ToString();
      bytes_.emplace_back(op.bytes.begin(), op.bytes.end());
      leases.push_back({.lease = op.lease});
    }
    cache_->Release(leases);
    EvictRequest evict;
    evict.chain = chain_;
    cache_->Evict(&evict);
    cache_->Wait(evict);
    EXPECT_EQ(evict.evicted, keys_.size());
  }

  const std::vector<Key> keys_;
  std::vector<std::vector<std::byte>> bytes_;
  ChainSlice chain_;
  ReserveRequest reserve_;
  std::unique_ptr<Cache> cache_;  // Destroyed before its requests.
};

class OffloadTest : public EngineTest {
 protected:
  // Starts an engine with a cache of this kind in front of the node's.
  template <class Kind, class... Arguments>
  EngineOptions OptionsWith(const Arguments&... arguments) {
    EngineOptions options = Options();
    options.offload.connect = [this, arguments...]() -> Result<std::unique_ptr<Cache>> {
      AQ_ASSIGN_OR_RETURN(std::unique_ptr<Cache> node, Connect({.socket = socket_}, {}));
      return std::unique_ptr<Cache>(std::make_unique<Kind>(std::move(node), arguments...));
    };
    return options;
  }
  EngineOptions WatchedOptions(const WatchedCache::Hooks& hooks) {
    return OptionsWith<WatchedCache>(hooks);
  }

  // Another engine has reserved the whole blocks of a prompt that was computed, and is about to
  // fill them.
  std::unique_ptr<OtherEngine> LetAnotherFill(std::shared_ptr<const Weights> weights,
                                              const GenerateRequest& request, Outcome* computed) {
    auto writer = StartWith(Options(), std::move(weights));
    *computed = Generate(writer.get(), request);
    const size_t blocks = request.prompt.size() / 256;
    AwaitStored(*writer, blocks);
    std::vector<Key> keys(blocks);
    const Key root = RootOf(writer->layout());
    EXPECT_TRUE(DeriveChain(root, request.prompt, 256, {}, keys).ok());
    return std::make_unique<OtherEngine>(socket_, writer->layout(), std::move(keys), root);
  }
};

// The engine computed the block instead. By then its pages may belong to other sequences, too.
TEST_F(OffloadTest, ABlockThatIsLateAndDamagedDoesNoHarm) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(3000, 300, 6), 3);
  auto writer = StartWith(Options(), weights);
  const Outcome computed = Generate(writer.get(), request);
  AwaitStored(*writer, 11);
  EngineOptions options = OptionsWith<LateAndWrongCache>();
  options.offload.always_fetch = false;
  options.step_tokens = 100;  // Some steps end in the middle of a block.
  auto engine = StartWith(options, weights);
  const Outcome outcome = Generate(engine.get(), request);
  EXPECT_TRUE(outcome.SameBits(computed));
  EXPECT_GT(engine->figures().offload.missed_blocks, 0u);
  EXPECT_EQ(outcome.figures.recalled_tokens(), 0u);
}

TEST_F(OffloadTest, BlocksOfARequestThatWaitsForPagesComeToDramMeanwhile) {
  StartNode();
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(1100, 300, 6), 3);
  auto writer = StartWith(Options(), weights);
  const Outcome computed = Generate(writer.get(), request);
  AwaitStored(*writer, 4);
  writer.reset();
  Flush();
  StartNode();
  EngineOptions options = Options();
  options.pages = 4096 / 16;
  auto engine = StartWith(options, weights);
  GenerateRequest occupant = Request(RandomPrompt(3000, 300, 1), 4096 - 3000);
  std::promise<void> both_there;
  occupant.on_token = [&engine, there = both_there.get_future().share()](const GeneratedToken&) {
    there.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // Staging needs some time.
    return engine->figures().offload.staged_blocks < 4;
  };
  std::future<Outcome> first = Begin(engine.get(), occupant);
  std::future<Outcome> waiting = Begin(engine.get(), request);
  both_there.set_value();
  const Outcome recalled = waiting.get();
  EXPECT_EQ(first.get().reason, FinishReason::kEnd);
  EXPECT_TRUE(recalled.SameBits(computed));
  EXPECT_EQ(engine->figures().offload.staged_blocks, 4u);
  EXPECT_EQ(recalled.figures.dram_tokens, 1024u);
  EXPECT_EQ(recalled.figures.nvme_tokens, 0u);
}

TEST_F(OffloadTest, ABlockThatAnotherEngineIsAboutToStoreIsWaitedFor) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(1100, 300, 6), 3);
  Outcome computed;
  const auto other = LetAnotherFill(weights, request, &computed);
  size_t matches = 0;
  auto engine = StartWith(WatchedOptions({.on_match =
                                              [&] {
                                                if (++matches == 3) other->Commit();
                                              },
                                          .on_reserve = {}}),
                          weights);
  const Outcome recalled = Generate(engine.get(), request);
  EXPECT_TRUE(recalled.SameBits(computed));
  EXPECT_EQ(recalled.figures.dram_tokens, 1024u);
  EXPECT_EQ(recalled.figures.computed_tokens, 76u);
  EXPECT_EQ(engine->figures().offload.awaited_blocks, 4u);
}

TEST_F(OffloadTest, ABlockThatAnotherEngineFillsIsComputedIfThatIsFasterOrItNeverComes) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(1100, 300, 6), 3);
  Outcome computed;
  const auto other = LetAnotherFill(weights, request, &computed);
  for (const double estimated_ms : {1e-3, 1e6}) {
    std::atomic<size_t> matches = 0;
    EngineOptions options = WatchedOptions(
        {.on_match = [&] { ++matches; }, .on_reserve = {}, .estimated_ms = estimated_ms});
    options.offload.always_fetch = false;
    GenerateRequest unkept = request;
    unkept.store = false;
    const Outcome outcome = Generate(StartWith(options, weights).get(), unkept);
    EXPECT_TRUE(outcome.SameBits(computed));
    EXPECT_EQ(outcome.figures.computed_tokens, 1100u);
    EXPECT_EQ(matches > 1, estimated_ms < 1) << matches;
  }
}

TEST_F(OffloadTest, ABlockThatAnotherEngineBeganAndNeverFilledIsStoredAfterAll) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  GenerateRequest request = Request(RandomPrompt(1100, 300, 6), 3);
  request.recall = false;
  Outcome computed;
  auto other = LetAnotherFill(weights, request, &computed);
  std::atomic<size_t> reserves = 0;
  auto engine = StartWith(WatchedOptions({.on_match = {},
                                          .on_reserve =
                                              [&] {
                                                if (++reserves == 4) other.reset();
                                              }}),
                          weights);
  EXPECT_TRUE(Generate(engine.get(), request).SameBits(computed));
  AwaitStored(*engine, 4);
}

TEST_F(OffloadTest, StoredBlocksHaveTheOrderThatTheFormatSays) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const ModelShape& shape = weights->shape;
  const GenerateRequest request = Request(RandomPrompt(600, 300, 6), 1);
  Outcome computed;
  const auto other = LetAnotherFill(weights, request, &computed);

  Model model(weights, ChosenKernels(), 1);
  KvPages pages(shape, 1, 600);
  const std::vector<uint32_t> table = {0};
  const Chunk chunk{.tokens = request.prompt, .position = 0, .page_table = table};
  model.Forward(std::span(&chunk, 1), &pages);
  for (uint32_t block = 0; block < 2; ++block) {
    std::vector<uint16_t> expected;
    const auto append = [&](uint16_t* vector) {
      expected.insert(expected.end(), vector, vector + shape.head_dim);
    };
    // docs/formats/block.md: by layer, K then V, head, token.
    for (uint32_t plane = 0; plane < 2 * shape.layers; ++plane) {
      for (uint32_t head = 0; head < shape.kv_heads; ++head) {
        for (uint32_t token = block * 256; token < (block + 1) * 256; ++token) {
          append(plane % 2 == 0 ? pages.Key(plane / 2, 0, head, token)
                                : pages.Value(plane / 2, 0, head, token));
        }
      }
    }
    const std::span<const std::byte> stored = other->bytes()[block];
    ASSERT_EQ(stored.size(), expected.size() * sizeof(uint16_t));
    EXPECT_EQ(std::memcmp(stored.data(), expected.data(), stored.size()), 0) << block;
  }
}

TEST_F(OffloadTest, PagesAreNotUsedForSomethingElseBeforeTheirBlocksAreStored) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(1100, 300, 6), 3);
  EngineOptions options = OptionsWith<SlowToReserveCache>();
  options.pages = 1200 / 16;
  auto writer = StartWith(options, weights);
  const Outcome computed = Generate(writer.get(), request);
  GenerateRequest other = Request(RandomPrompt(1100, 300, 7), 3);
  other.store = false;
  Generate(writer.get(), other);  // Needs every page.
  AwaitStored(*writer, 4);
  const Outcome recalled = Generate(StartWith(Options(), weights).get(), request);
  EXPECT_EQ(recalled.figures.dram_tokens, 1024u);
  EXPECT_TRUE(recalled.SameBits(computed));
}

// Otherwise a full cache would hold up an engine for ten seconds at a time.
TEST_F(OffloadTest, BlocksWithoutRoomInTheCacheGiveTheirPagesToWaitingRequests) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  std::atomic<size_t> reserves = 0;
  EngineOptions options = OptionsWith<FullCache>(&reserves);
  options.pages = 1200 / 16;
  auto engine = StartWith(options, weights);
  for (uint64_t prompt = 0; prompt < 2; ++prompt) {
    Generate(engine.get(), Request(RandomPrompt(1100, 300, prompt), 3));
  }
  // At least two milliseconds lie between them.
  EXPECT_LT(reserves, 500u);
}

TEST_F(OffloadTest, NothingStaysLent) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  const GenerateRequest request = Request(RandomPrompt(1100, 300, 6), 3);
  auto writer = StartWith(Options(), weights);
  Generate(writer.get(), request);
  AwaitStored(*writer, 4);
  auto reader = StartWith(Options(), weights);
  EXPECT_EQ(Generate(reader.get(), request).figures.dram_tokens, 1024u);
  auto client = Connect({.socket = socket_}, {});
  ASSERT_TRUE(client.ok());
  uint64_t lent = 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (lent > 0 && std::chrono::steady_clock::now() < end) {
    StatsRequest stats;
    (*client)->Stats(&stats);
    (*client)->Wait(stats);
    lent = stats.stats.Counter("lent_slots");
  }
  EXPECT_EQ(lent, 0u);
}

// The engine asks for the cache once at the start. Requests that come during the hang must be
// served.
TEST_F(OffloadTest, ANodeThatHangsWhenTheEngineConnectsKeepsNobodyWaiting) {
  StartNode(false);
  const auto weights = *RandomWeights(SmallShape(), 5);
  std::atomic<size_t> calls = 0;
  std::promise<void> let_go;
  EngineOptions options = Options();
  options.offload.connect =
      [this, &calls, is_gone = let_go.get_future().share()]() -> Result<std::unique_ptr<Cache>> {
    if (++calls == 1) return Status(Code::kUnavailable, "not yet");
    is_gone.wait();
    return Connect({.socket = socket_}, {});
  };
  auto engine = StartWith(options, weights);
  while (calls < 2) std::this_thread::yield();
  std::future<Outcome> outcome = Begin(engine.get(), Request(RandomPrompt(600, 300, 6), 3));
  EXPECT_EQ(outcome.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  let_go.set_value();
  outcome.wait();
  // The engine then gets its cache after a while.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (uint64_t prompt = 100; engine->figures().offload.stored_blocks == 0; ++prompt) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    Generate(engine.get(), Request(RandomPrompt(300, 300, prompt), 1));
  }
}

}  // namespace
}  // namespace aquifer::reference
