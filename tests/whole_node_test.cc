// A node with every tier that a configuration allows: each request of a client and each path of
// HTTP is answered, and nothing of it ends the node.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "cache/environment.h"
#include "node/api/http_routes.h"
#include "testing/cache/served_node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/node/http_peer.h"
#include "testing/node/raw_client.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;

class WholeNode : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("STATE_DIRECTORY", scratch_.Sub("state").c_str(), 1);  // For the node.
    std::ofstream(scratch_.Sub("master")) << std::string(64, 'c') << "\n";
    ASSERT_EQ(::chmod(scratch_.Sub("master").c_str(), 0600), 0);
    std::ofstream config(scratch_.Sub("aquifer.toml"));
    config << fmt::format("master_key_file = \"{}\"\n", scratch_.Sub("master"));
    for (size_t i = 0; i < kMaxDurableTiers; ++i) {
      config << fmt::format(
          "[[tier]]\nname = \"store{0}\"\nkind = \"posix\"\nsize = \"1GiB\"\ndirectory = \"{1}\"\n",
          i, scratch_.Sub(fmt::format("store{}", i)));
    }
    config.close();
    const std::vector<std::string> arguments = {"--config", scratch_.Sub("aquifer.toml"),
                                                "--nvme",   scratch_.Sub("nvme") + ":512MiB",
                                                "--dram",   "128MiB",
                                                "--record", scratch_.Sub("trace.jsonl"),
                                                "--http",   "off",
                                                "--socket", scratch_.Sub("node.sock")};
    node_.emplace(AQUIFER_PROGRAM_PATH, arguments);
    ASSERT_TRUE(node_->AwaitReady()) << node_->said();
    auto cache = Connect({.socket = scratch_.Sub("node.sock")}, {});
    ASSERT_TRUE(cache.ok()) << cache.status().ToString();
    cache_ = *std::move(cache);
  }

  HeardResponse Ask(const std::string& bytes) const {
    HttpPeer peer(scratch_.Sub("node.admin.sock"));
    peer.Send(bytes);
    return peer.Receive().value_or(HeardResponse{});
  }

  const ScratchDirectory scratch_;
  std::optional<ServedNode> node_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(WholeNode, AnswersEveryRequestOfAClient) {
  TestEngine engine(cache_.get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  EXPECT_EQ(engine.Store(chain), 4u);
  EXPECT_EQ(engine.Matched(chain), 4u);
  EXPECT_EQ(engine.Fetch(chain)->status.code(), Code::kOk);
  for (const TierKind tier :
       {TierKind::kDram, TierKind::kNvme, TierKind::kPeer, TierKind::kDurable}) {
    FlushRequest flush;
    flush.tier = tier;
    flush.timeout_nanos = 60 * kDefaultTimeoutNanos;
    cache_->Flush(&flush);
    engine.Finish(flush);
    EXPECT_TRUE(flush.status.ok() || tier == TierKind::kPeer) << flush.status.ToString();
  }
  PinRequest pin;
  pin.chain = engine.Slice(chain);
  pin.seconds = 5;
  cache_->Pin(&pin);
  engine.Finish(pin);
  EXPECT_EQ(pin.pinned, 4u);
  PrestageRequest prestage;
  prestage.chain = engine.Slice(chain);
  cache_->Prestage(&prestage);
  engine.Finish(prestage);
  EXPECT_EQ(prestage.staged, 4u);
  SessionForecast forecast;
  forecast.chain = engine.Slice(chain);
  forecast.session = "one";
  cache_->Hint(forecast);
  cache_->ReportPrefill(
      {.layout = engine.handle(), .tokens = 16, .context_tokens = 0, .milliseconds = 1});
  const CacheStats stats = engine.Stats();
  EXPECT_EQ(stats.tiers.size(), 2 + kMaxDurableTiers);
  std::set<std::string> names;
  for (const TierStats& tier : stats.tiers) {
    if (tier.tier == TierKind::kDurable) names.insert(tier.drives.at(0).directory);
  }
  EXPECT_EQ(names.size(), kMaxDurableTiers);
  EvictRequest evict;
  evict.everything = true;
  cache_->Evict(&evict);
  engine.Finish(evict);
  EXPECT_EQ(evict.evicted, 4u);
  DrainRequest drain;
  cache_->Drain(&drain);
  engine.Finish(drain);
  EXPECT_EQ(drain.status.code(), Code::kOk) << drain.status.ToString();
  node_->Signal(SIGTERM);
  EXPECT_EQ(node_->Wait(), 0);
}

TEST_F(WholeNode, AnswersEveryPathThatIsRead) {
  for (const HttpRoute& route : HttpRoutes()) {
    if (route.method != "GET") continue;
    EXPECT_EQ(Ask(GetText(route.path)).status, 200) << route.path;
  }
  EXPECT_EQ(Ask(PostText("/v1/tiers/test", R"({"tier":"store4"})")).status, 200);
}

// Prometheus' own parsers read it in python/tests/test_metrics.py.
TEST_F(WholeNode, HasNoSeriesOfMetricsTwice) {
  std::istringstream lines(Ask(GetText("/metrics")).body);
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    EXPECT_TRUE(seen.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
  EXPECT_TRUE(seen.contains("aquifer_tier_in_service{tier=\"dram\"}"));
  EXPECT_TRUE(seen.contains("aquifer_tier_in_service{tier=\"store0\"}"));
  EXPECT_TRUE(seen.contains("aquifer_tier_in_service{tier=\"store4\"}"));
}

TEST_F(WholeNode, CountsAGoodbyeAndAClientThatIsCutOffApart) {
  const auto metrics = [this] { return Ask(GetText("/metrics")).body; };
  const auto has = [&](const std::string& line) {
    for (int i = 0; i < 3000; ++i) {
      if (metrics().find(line + "\n") != std::string::npos) return true;
    }
    return false;
  };
  cache_.reset();
  EXPECT_TRUE(has("aquifer_connection_events_total{event=\"goodbye\"} 1"));
  EXPECT_THAT(metrics(), HasSubstr("aquifer_connection_events_total{event=\"cut_off\"} 0\n"));
  {
    RawClient rude(scratch_.Sub("node.sock"));
    rude.Enter();
    rude.HangUp();
    EXPECT_TRUE(has("aquifer_connection_events_total{event=\"cut_off\"} 1"));
  }
  EXPECT_THAT(metrics(), HasSubstr("aquifer_connection_events_total{event=\"goodbye\"} 1\n"));
}

TEST_F(WholeNode, ServesOpenMetricsToWhomItAsks) {
  const HeardResponse plain = Ask(GetText("/metrics"));
  EXPECT_THAT(plain.headers.at("content-type"), HasSubstr("version=0.0.4"));
  EXPECT_THAT(plain.body, Not(HasSubstr("# EOF")));
  const HeardResponse open = Ask(GetText(
      "/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n"));
  EXPECT_THAT(open.headers.at("content-type"), HasSubstr("application/openmetrics-text"));
  EXPECT_TRUE(open.body.ends_with("# EOF\n"));
  EXPECT_THAT(open.body, HasSubstr("# TYPE aquifer_fetch_hits counter\n"));
}

}  // namespace
}  // namespace aquifer
