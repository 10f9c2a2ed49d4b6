// Tests a node and its engines as processes of their own, which are killed, stopped and started
// again. No wrong byte is ever served, no lent memory stays lent, and all other processes go on.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "node/local/node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/node/own_node.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr const char* kEngineFlag = "--engine-child";
constexpr const char* kHolderFlag = "--holder-child";
constexpr const char* kNodeFlag = "--node-child";

Chain NumberedChain(const Layout& layout, uint64_t number) {
  return Chain(layout, {.seed = number, .blocks = 4 + number % 9});
}

// ---- The children ----

// Stores and recalls for ever.
int RunEngine(const std::string& socket, uint64_t seed) {
  DieWithParent();
  auto cache = Connect({.socket = socket}, {});
  AQ_CHECK(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  TellParent("ready");
  SeededRandom random(seed);
  while (true) {
    const Chain chain = NumberedChain(engine.layout(), random.Below(64));
    engine.Store(chain);
    AQ_CHECK(engine.Recall(chain).wrong == 0);
  }
}

// Holds a lease and a reservation until it is told to give them back.
int RunHolder(const std::string& socket) {
  DieWithParent();
  auto cache = Connect({.socket = socket}, {});
  AQ_CHECK(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain stored = NumberedChain(engine.layout(), 1);
  AQ_CHECK(engine.Store(stored) == stored.size());
  const auto fetch = engine.Fetch(stored);
  const auto reserve = engine.Reserve(NumberedChain(engine.layout(), 2));
  TellParent("holding");
  WaitForParent();
  const Recalled recalled = engine.CheckAndRelease(stored, {}, *fetch);
  std::vector<ReservationId> reservations;
  for (const ReserveOp& op : reserve->ops) reservations.push_back(op.reservation);
  (*cache)->Abort(reservations);
  TellParent(fmt::format("{} right", recalled.right));
  std::this_thread::sleep_for(seconds(60));
  return 0;
}

CacheOptions NodeOptionsIn(const std::string& directory) {
  CacheOptions options;
  options.dram_bytes = 128 * kMiB;
  options.nvme_directories = {directory + "/nvme"};
  options.nvme_bytes = 512 * kMiB;
  options.nvme_segment_bytes = 4 * kMiB;
  return options;
}

int RunNode(const std::string& directory) {
  DieWithParent();
  auto node = Node::Start({.cache = NodeOptionsIn(directory),
                           .server = {.socket = directory + "/node.sock",
                                      .limits = {},
                                      .admit = AdmitOwnUser,
                                      .log = {}},
                           .warm_bytes = 0});
  AQ_CHECK(node.ok());
  TellParent("ready");
  WaitForParent();
  return 0;
}

// How many extents this process has mapped.
size_t MappedExtents() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:aquifer-extent") != std::string::npos ? 1 : 0;
  }
  return count;
}

// Returns true if it holds at last. It looks every 10 ms, and counts looks and not time: on a
// stalled machine, this process then gets as many looks as ever.
bool Eventually(const std::function<bool()>& holds, int looks = 1000) {
  for (int i = 0; i < looks; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return holds();
}
constexpr int kLooksInASecond = 100;

// ---- Engines that die, with the node in this process ----

class EngineProcesses : public testing::Test {
 protected:
  void Start(int64_t overdue_nanos) {
    CacheOptions options;
    options.dram_bytes = 128 * kMiB;
    options.overdue_nanos = overdue_nanos;
    auto node = OwnNode::Start(options);
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *node;
    auto cache = Connect({.socket = node_->socket()}, {});
    ASSERT_TRUE(cache.ok()) << cache.status().ToString();
    cache_ = *std::move(cache);
    engine_.emplace(cache_.get(), LayoutOfBytes(kBlockBytes));
  }

  std::unique_ptr<ChildProcess> StartChild(const char* flag, const std::string& argument = "0") {
    return ChildProcess::Start({flag, node_->socket(), argument});
  }
  TestEngine& engine() { return *engine_; }
  bool NothingIsLent() {
    return engine_->Eventually([this] {
      return engine_->Counter("lent_slots") == 0 && engine_->Counter("quarantined_bytes") == 0;
    });
  }

  std::shared_ptr<OwnNode> node_;  // The object is not shared; OwnNode::Start returns a shared_ptr.
  std::unique_ptr<Cache> cache_;
  std::optional<TestEngine> engine_;
};

TEST_F(EngineProcesses, KilledInMidStoreAndMidFetchLeaveNothingBehind) {
  ASSERT_NO_FATAL_FAILURE(Start(60 * kDefaultTimeoutNanos));
  SeededRandom random(1);
  const int kills = ByTestLevel(6, 24, 200);
  for (int kill = 0; kill < kills; ++kill) {
    auto child = StartChild(kEngineFlag, std::to_string(kill));
    ASSERT_EQ(child->ReadLine(seconds(30)), "ready");
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(30'000)));
    child->Kill();
    child->Wait();
    ASSERT_TRUE(NothingIsLent()) << "after kill " << kill;
    // No half-written block is visible, and the blocks that the dead engine was filling can be
    // filled.
    for (uint64_t number = 0; number < 64; number += 7) {
      const Chain chain = NumberedChain(engine().layout(), number);
      const Recalled recalled = engine().Recall(chain);
      ASSERT_EQ(recalled.right + recalled.missed, chain.size()) << recalled;
      ASSERT_EQ(engine().Store(chain), chain.size());
    }
  }
}

TEST_F(EngineProcesses, StoppedForLongAreQuarantinedAndOthersGoOn) {
  ASSERT_NO_FATAL_FAILURE(Start(kDefaultTimeoutNanos / 5));
  auto child = StartChild(kHolderFlag);
  ASSERT_EQ(child->ReadLine(seconds(30)), "holding");
  child->Stop();
  const Chain stored = NumberedChain(engine().layout(), 1);
  const Chain reserved = NumberedChain(engine().layout(), 2);
  // The reservation is void: another client can store the block.
  EXPECT_TRUE(engine().Eventually([&] { return engine().Store(reserved) == reserved.size(); }));
  // The blocks that it leases are as good for others as ever.
  EXPECT_EQ(engine().Recall(stored), Recalled{.right = stored.size()});
  // A deletion does not take the memory away from a reader that may go on.
  EXPECT_TRUE(engine().Evict(stored)->status.ok());
  EXPECT_GE(engine().Counter("quarantined_bytes"), stored.size() * kBlockBytes);
  EXPECT_EQ(engine().Store(stored), stored.size());
  EXPECT_EQ(engine().Recall(reserved), Recalled{.right = reserved.size()});

  child->Signal(SIGCONT);
  child->EndInput();
  // Its leased blocks are unchanged, and their memory comes back without its death.
  EXPECT_EQ(child->ReadLine(seconds(30)), fmt::format("{} right", stored.size()));
  EXPECT_TRUE(NothingIsLent());
}

TEST_F(EngineProcesses, StoppedAndThenKilledGiveTheirMemoryBack) {
  ASSERT_NO_FATAL_FAILURE(Start(kDefaultTimeoutNanos / 5));
  auto child = StartChild(kHolderFlag);
  ASSERT_EQ(child->ReadLine(seconds(30)), "holding");
  child->Stop();
  EXPECT_TRUE(engine().Eventually([&] { return engine().Counter("overdue_leases") > 0; }));
  EXPECT_GT(engine().Counter("lent_slots"), 0u);
  child->Kill();
  EXPECT_TRUE(NothingIsLent());
}

// A commit that comes too late gives the slot back as well, and the client is served again.
TEST_F(EngineProcesses, CutOffInMidStoreCommitTooLateAndGoOn) {
  ASSERT_NO_FATAL_FAILURE(Start(kDefaultTimeoutNanos));
  auto late = Connect({.socket = node_->socket()}, {});
  ASSERT_TRUE(late.ok()) << late.status().ToString();
  TestEngine slow(late->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain = NumberedChain(slow.layout(), 1);
  const Chain leased = NumberedChain(slow.layout(), 2);
  ASSERT_EQ(slow.Store(leased), leased.size());
  const auto fetch = slow.Fetch(leased);
  const auto reserve = slow.Reserve(chain);
  ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
  ASSERT_TRUE(Eventually([&] { return engine().Counter("overdue_reservations") > 0; }));
  // The old node may be back by now; to this client it is another one.
  ASSERT_TRUE(Eventually([&] { return slow.Match(leased)->matched == leased.size(); }));
  const auto commit = slow.FillAndCommit(chain, {}, *reserve);
  EXPECT_EQ(commit->ops[0].status.code(), Code::kInvalid);
  // The leases are still held, and by the same old link: only the reservations may go.
  EXPECT_TRUE(Eventually([&] { return engine().Counter("lent_slots") == leased.size(); }));
  EXPECT_EQ(slow.CheckAndRelease(leased, {}, *fetch), Recalled{.right = leased.size()});
  EXPECT_TRUE(NothingIsLent());
  EXPECT_EQ(slow.Store(chain), chain.size());
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = chain.size()});
}

// ---- A node that dies ----

class NodeProcess : public testing::Test {
 protected:
  void StartNode() {
    child_ = ChildProcess::Start({kNodeFlag, scratch_.path(), "0"});
    ASSERT_EQ(child_->ReadLine(seconds(30)), "ready");
  }
  void KillNode() {
    child_->Kill();
    child_->Wait();
  }
  void ConnectToIt() {
    auto cache = Connect({.socket = scratch_.path() + "/node.sock"}, {});
    ASSERT_TRUE(cache.ok()) << cache.status().ToString();
    cache_ = *std::move(cache);
    engine_.emplace(cache_.get(), LayoutOfBytes(kBlockBytes));
  }
  TestEngine& engine() { return *engine_; }
  // Returns true if the node answers again.
  bool Back() {
    return Eventually([this] {
      MatchRequest match;
      const Chain chain = NumberedChain(engine_->layout(), 1);
      match.chain = engine_->Slice(chain);
      cache_->Match(&match);
      engine_->Finish(match);
      return match.status.ok();
    });
  }

  ScratchDirectory scratch_;
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<Cache> cache_;
  std::optional<TestEngine> engine_;
};

TEST_F(NodeProcess, KilledUnderLoadCostsMissesOnly) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ASSERT_NO_FATAL_FAILURE(ConnectToIt());
  SeededRandom random(7);
  const int kills = ByTestLevel(3, 8, 50);
  for (int kill = 0; kill < kills; ++kill) {
    const auto first = static_cast<uint64_t>(kill) * 100;
    const Chain durable = NumberedChain(engine().layout(), first);
    ASSERT_EQ(engine().StorePatiently(durable), durable.size());
    ASSERT_TRUE(engine().Flush().ok());
    std::atomic<bool> dead = false;
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random.Below(40'000)));
      KillNode();
      dead = true;
    });
    for (uint64_t number = first; !dead || number < first + 8; ++number) {
      const Chain chain = NumberedChain(engine().layout(), first + number % 64);
      engine().Store(chain);
      ASSERT_EQ(engine().Recall(chain).wrong, 0u);
    }
    killer.join();
    ASSERT_NO_FATAL_FAILURE(StartNode());
    ASSERT_TRUE(Back()) << "after kill " << kill;
    ASSERT_EQ(engine().Recall(durable), Recalled{.right = durable.size()});
  }
}

TEST_F(NodeProcess, LeasedBlocksStayUnchangedAndTheRestIsUnmapped) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ASSERT_NO_FATAL_FAILURE(ConnectToIt());
  const Chain kept = NumberedChain(engine().layout(), 1);
  ASSERT_EQ(engine().Store(kept), kept.size());
  TestEngine large(cache_.get(), LayoutOfBytes(1 << 20));  // In an extent of its own.
  const Chain other(large.layout(), {.seed = 5, .blocks = 4});
  ASSERT_EQ(large.Store(other), 4u);
  const auto fetch = engine().Fetch(kept);
  const auto reserve = engine().Reserve(NumberedChain(engine().layout(), 2));
  ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
  ASSERT_GE(MappedExtents(), 2u);
  KillNode();
  // No thread polls meanwhile.
  EXPECT_TRUE(Eventually([] { return MappedExtents() == 1; }, kLooksInASecond))
      << MappedExtents() << " extents are mapped a second after the node's end";

  const auto commit = engine().FillAndCommit(NumberedChain(engine().layout(), 2), {}, *reserve);
  EXPECT_EQ(commit->ops[0].status.code(), Code::kInvalid);
  EXPECT_EQ(engine().CheckAndRelease(kept, {}, *fetch), Recalled{.right = kept.size()});
  EXPECT_EQ(MappedExtents(), 0u);
  EXPECT_EQ(engine().Match(kept)->status.code(), Code::kUnavailable);
  EXPECT_EQ(engine().Matched(kept), 0u);
}

// A client that waits sleeps until an answer is counted.
TEST_F(NodeProcess, KilledBehindItsAnswerIsAnAnswerThatIsCounted) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ASSERT_NO_FATAL_FAILURE(ConnectToIt());
  const Chain chain = NumberedChain(engine().layout(), 1);
  ASSERT_EQ(engine().Store(chain), chain.size());
  ASSERT_GT(MappedExtents(), 0u);
  MatchRequest match;
  match.chain = engine().Slice(chain);
  cache_->Match(&match);
  // The request is answered, and no thread reads the answer.
  std::this_thread::sleep_for(milliseconds(500));
  KillNode();
  ASSERT_TRUE(Eventually([] { return MappedExtents() == 0; }));
  EXPECT_EQ(cache_->Poll(), 1u);
  EXPECT_TRUE(match.done());
  EXPECT_TRUE(match.status.ok()) << match.status.ToString();
  EXPECT_EQ(match.matched, chain.size());
}

// As under a debugger, a freezer or swapping: the process is there and does nothing.
TEST_F(NodeProcess, StoppedKeepsNobodyWaitingAndIsFoundAgain) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ASSERT_NO_FATAL_FAILURE(ConnectToIt());
  const Chain chain = NumberedChain(engine().layout(), 1);
  ASSERT_EQ(engine().Store(chain), chain.size());
  child_->Stop();
  FetchRequest fetch;
  fetch.chain = engine().Slice(chain);
  fetch.timeout_nanos = kDefaultTimeoutNanos / 10;
  cache_->Fetch(&fetch);
  EXPECT_TRUE(cache_->Wait(fetch));
  for (const FetchOp& op : fetch.ops) EXPECT_EQ(op.status.code(), Code::kLate);
  // A request without a deadline waits until the node counts as gone.
  EXPECT_EQ(engine().Match(chain)->status.code(), Code::kUnavailable);

  child_->Signal(SIGCONT);
  ASSERT_TRUE(Back());
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = chain.size()});
  // The slots that the late fetch was lent are given back.
  EXPECT_TRUE(engine().Eventually([this] { return engine().Counter("lent_slots") == 0; }));
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  const std::string_view flag = argc == 4 ? argv[1] : "";
  if (flag == aquifer::kEngineFlag) {
    return aquifer::RunEngine(argv[2], std::strtoull(argv[3], nullptr, 10));
  }
  if (flag == aquifer::kHolderFlag) return aquifer::RunHolder(argv[2]);
  if (flag == aquifer::kNodeFlag) return aquifer::RunNode(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
