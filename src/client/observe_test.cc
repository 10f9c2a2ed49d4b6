// Tests a client that only observes. The node answers its lookups as misses. It refuses requests
// that would change the cache, with a message.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "aquifer/cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/node/own_node.h"

namespace aquifer {
namespace {

class ObserveTest : public testing::Test {
 protected:
  void SetUp() override {
    CacheOptions options;
    options.dram_bytes = uint64_t{128} << 20;
    auto node = OwnNode::Start(options);
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *node;
    cache_ = *Connect({.socket = node_->socket()}, {});
    observer_ = *Connect({.socket = node_->socket(), .observe = true}, {});
  }
  void ExpectRefused(const Request& request) {
    observer_->Wait(request);
    EXPECT_EQ(request.status.code(), Code::kInvalid);
    EXPECT_NE(request.status.message().find("observe"), std::string::npos)
        << request.status.message();
  }

  std::shared_ptr<OwnNode> node_;  // The object is not shared; OwnNode::Start returns a shared_ptr.
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Cache> observer_;
};

TEST_F(ObserveTest, EverythingIsMissingAndNothingIsStored) {
  TestEngine engine(cache_.get(), LayoutOfBytes(64 << 10));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  ASSERT_EQ(engine.Store(chain), 4u);

  TestEngine observer(observer_.get(), engine.layout());  // The constructor registers the layout.
  EXPECT_NE(observer.handle(), 0u);
  const auto match = observer.Match(chain);
  EXPECT_TRUE(match->status.ok()) << match->status.ToString();
  EXPECT_EQ(match->matched, 0u);
  EXPECT_EQ(observer.Recall(chain), Recalled{.missed = 4});
  const auto reserve = observer.Reserve(Chain(engine.layout(), {.seed = 2, .blocks = 1}));
  EXPECT_EQ(reserve->ops[0].outcome, ReserveOutcome::kRefused);
  EXPECT_EQ(observer.StatsOf(TierKind::kDram).capacity_bytes, uint64_t{128} << 20);
}

TEST_F(ObserveTest, RequestsThatChangeTheCacheAreRefusedWithAMessage) {
  TestEngine engine(cache_.get(), LayoutOfBytes(64 << 10));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  ASSERT_EQ(engine.Store(chain), 4u);

  EvictRequest evict;
  evict.everything = true;
  observer_->Evict(&evict);
  ExpectRefused(evict);
  FlushRequest flush;
  observer_->Flush(&flush);
  ExpectRefused(flush);
  DrainRequest drain;
  observer_->Drain(&drain);
  ExpectRefused(drain);
  EXPECT_EQ(engine.Recall(chain), Recalled{.right = 4});
}

TEST_F(ObserveTest, ItsHintsAreNotTaken) {
  TestEngine engine(cache_.get(), LayoutOfBytes(64 << 10));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  ASSERT_EQ(engine.Store(chain), 4u);
  const auto name = [&](TestEngine* by, const std::string& session) {
    SessionForecast forecast;
    forecast.session = session;
    forecast.chain = by->Slice(chain);
    by->cache()->Hint(forecast);
    by->Stats();  // When this request is answered, the node has read the hint.
  };
  TestEngine observer(observer_.get(), engine.layout());
  name(&observer, "theirs");
  engine.EvictSession("theirs");
  EXPECT_EQ(engine.Recall(chain), Recalled{.right = 4});
  name(&engine, "ours");
  engine.EvictSession("ours");
  EXPECT_EQ(engine.Recall(chain), Recalled{.missed = 4}) << "nor would it be seen if they were";
}

}  // namespace
}  // namespace aquifer
