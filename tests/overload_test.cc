// 64 clients that want far more than there is. Every one of them is answered and served, and no cap
// is passed, by a byte.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "node/insider.h"
#include "node/node.h"
#include "testing/chain.h"
#include "testing/scratch_directory.h"
#include "testing/test_engine.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kExtentBytes = 64 * kMiB;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kDramBytes = 128 * kMiB;
constexpr uint64_t kNvmeBytes = 64 * kMiB;
constexpr uint64_t kCeilingBytes = 10 * kMiB;
constexpr size_t kClients = 64;
constexpr size_t kChains = 12;  // Of each client: 384 MiB of them all.
constexpr size_t kBlocks = 8;
constexpr int64_t kTimeoutNanos = 5 * kDefaultTimeoutNanos;
constexpr int64_t kGraceNanos = 60 * kDefaultTimeoutNanos;
constexpr const char* kCapped = "capped";

// What one client has got out of it.
struct Share {
  std::atomic<size_t> tries = 0;
  std::atomic<size_t> rounds = 0;  // In which it stored something and recalled something.
  size_t wrong = 0;
  size_t unanswered = 0;  // Long after the deadline.
};

std::unique_ptr<Cache> Enter(const std::string& socket, const std::string& tenant) {
  auto cache = Connect({.socket = socket, .timeout_nanos = kGraceNanos}, {.tenant = tenant});
  AQ_CHECK(cache.ok());
  return *std::move(cache);
}

class Client {
 public:
  Client(const std::string& socket, const std::string& tenant, uint64_t number, Share* share)
      : tenant_(tenant),
        number_(number),
        share_(share),
        cache_(Enter(socket, tenant)),
        engine_(cache_.get(), LayoutOfBytes(kBlockBytes)) {}

  void Round(uint64_t round) {
    const Chain chain(
        engine_.layout(),
        {.seed = 1000 * number_ + round % kChains, .blocks = kBlocks, .tenant = tenant_});
    const size_t stored = StoreOnce(chain);
    FetchRequest fetch;
    fetch.chain = engine_.Slice(chain);
    fetch.timeout_nanos = kTimeoutNanos;
    cache_->Fetch(&fetch);
    if (!cache_->Wait(fetch, kTimeoutNanos + kGraceNanos)) {
      ++share_->unanswered;
      engine_.Finish(fetch);
    }
    const Recalled recalled = engine_.CheckAndRelease(chain, {}, fetch);
    share_->wrong += recalled.wrong + recalled.corrupt;
    for (const FetchOp& op : fetch.ops) {
      // Where there is no memory to load into, that is the answer.
      const bool known = op.status.ok() || op.status.code() == Code::kNotFound ||
                         op.status.code() == Code::kLate || op.status.code() == Code::kNoSpace;
      share_->wrong += known ? 0 : 1;
    }
    ++share_->tries;
    if (stored > 0 && recalled.right > 0) ++share_->rounds;
    // An engine computes meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  // As an engine does: what is refused is not kept, and that is that.
  size_t StoreOnce(const Chain& chain) {
    ReserveRequest reserve;
    reserve.chain = engine_.Slice(chain);
    reserve.parent = chain.parent(0);
    cache_->Reserve(&reserve);
    engine_.Finish(reserve);
    size_t there = 0;
    for (const ReserveOp& op : reserve.ops) there += op.outcome == ReserveOutcome::kHave ? 1 : 0;
    const auto commit = engine_.FillAndCommit(chain, {}, reserve);
    for (const CommitOp& op : commit->ops) there += op.published ? 1 : 0;
    return there;
  }

  const std::string tenant_;
  const uint64_t number_;
  Share* const share_;
  const std::unique_ptr<Cache> cache_;
  TestEngine engine_;
};

// Every extent that this process has: the node's, and its clients' of those.
uint64_t ExtentBytesMapped() {
  std::ifstream maps("/proc/self/maps");
  std::set<uint64_t> inodes;
  for (std::string line; std::getline(maps, line);) {
    uint64_t inode = 0;
    if (line.find("memfd:aquifer-extent") != std::string::npos &&
        std::sscanf(line.c_str(), "%*s %*s %*s %*s %lu", &inode) == 1) {
      inodes.insert(inode);
    }
  }
  return inodes.size() * kExtentBytes;
}

uint64_t BytesOnDisk(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(directory, gone)) {
    struct stat file{};
    if (::stat(entry.path().c_str(), &file) == 0)
      bytes += static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

TEST(Overload, EveryoneIsServedAndNoCapIsPassed) {
  const ScratchDirectory scratch;
  CacheOptions options;
  options.dram_bytes = kDramBytes;
  options.nvme_directories = {scratch.Sub("nvme")};
  options.nvme_bytes = kNvmeBytes;
  options.nvme_segment_bytes = 4 * kMiB;
  // It has no floor: that the many of the other tenant do not starve it is everybody's right.
  options.tenants = {{.name = kCapped, .dram_ceiling_bytes = kCeilingBytes}};
  ServerOptions server;
  server.socket = scratch.Sub("node.sock");
  server.admit = AdmitOwnUser;
  auto node = Node::Start({.cache = options, .server = server, .warm_bytes = 0});
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  auto insider = Insider::New((*node)->running(), {.tenant = kCapped});
  ASSERT_TRUE(insider.ok());

  const size_t rounds = ByTestLevel<size_t>(4, 4, 50);
  const size_t too_many_tries = 1000 * rounds;
  std::vector<Share> shares(kClients);
  std::atomic<bool> enough = false;
  std::vector<std::thread> threads;
  std::barrier everyone_is_in(kClients + 1);
  for (uint64_t number = 0; number < kClients; ++number) {
    threads.emplace_back([&, number] {
      Client client(server.socket, number % 4 == 0 ? kCapped : "local", number, &shares[number]);
      everyone_is_in.arrive_and_wait();
      for (uint64_t round = 0; !enough; ++round) client.Round(round);
    });
  }
  everyone_is_in.arrive_and_wait();
  EXPECT_TRUE(Connect({.socket = server.socket, .timeout_nanos = kGraceNanos}, {}).ok())
      << "who comes later is let in as well";

  uint64_t most_capped = 0;
  while (!enough) {
    StatsRequest stats;
    (*insider)->Stats(&stats);
    for (const TierStats& tier : stats.stats.tiers) {
      const bool dram = tier.tier == TierKind::kDram;
      EXPECT_LE(tier.used_bytes, tier.capacity_bytes);
      EXPECT_LE(tier.capacity_bytes, dram ? kDramBytes : kNvmeBytes);
      if (dram) {
        // An extent that it was asked for and has not returned yet is charged on top of its blocks.
        EXPECT_LE(tier.tenant_bytes, kCeilingBytes + stats.stats.Counter("withheld_bytes"));
        most_capped = std::max(most_capped, tier.tenant_bytes);
      }
    }
    EXPECT_LE(ExtentBytesMapped(), kDramBytes);
    EXPECT_LE(BytesOnDisk(scratch.Sub("nvme")), kNvmeBytes);
    size_t served = 0;
    bool starved = false;
    for (const Share& share : shares) {
      served += share.rounds >= rounds ? 1 : 0;
      // Those whose blocks are all there go round fast; who has to store waits for room. But nobody
      // is passed over again and again.
      starved |= share.rounds < rounds && share.tries > too_many_tries;
    }
    enough = served == kClients || starved;
  }
  for (std::thread& thread : threads) thread.join();

  for (size_t i = 0; i < kClients; ++i) {
    EXPECT_GE(shares[i].rounds, rounds) << "client " << i << " was starved";
    EXPECT_EQ(shares[i].wrong, 0u) << "client " << i;
    EXPECT_EQ(shares[i].unanswered, 0u) << "client " << i;
  }
  EXPECT_GT(most_capped, 0u) << "nothing was counted against the ceiling";
  StatsRequest stats;
  (*insider)->Stats(&stats);
  EXPECT_GT(stats.stats.Counter("dropped_quota"), 0u) << "the ceiling was never met";
  EXPECT_GT(stats.stats.Counter("demoted_blocks") + stats.stats.Counter("dropped_pressure"), 0u)
      << "there was enough for all";
}

}  // namespace
}  // namespace aquifer
