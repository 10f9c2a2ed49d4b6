// Tests 64 clients that want far more memory than there is. Every client is served, and no cap is
// exceeded by a byte. One more client speaks to the node by hand, and is answered in time.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "net/protocol/local_protocol.h"
#include "node/local/insider.h"
#include "node/local/node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/node/raw_client.h"
#include "testing/scratch_directory.h"
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
constexpr size_t kChains = 12;  // For each client; 384 MiB for all of them.
constexpr size_t kBlocks = 8;
constexpr int64_t kTimeoutNanos = 5 * kDefaultTimeoutNanos;
constexpr int64_t kGraceNanos = 60 * kDefaultTimeoutNanos;
constexpr const char* kCapped = "capped";
// For the client that speaks by hand.
constexpr int64_t kHandTimeoutNanos = kDefaultTimeoutNanos;
constexpr std::chrono::milliseconds kLook{10};
constexpr int kLooks = 2 * kDefaultTimeoutNanos / 10'000'000;  // The deadline and as much again.

// The outcome for one client.
struct Share {
  std::atomic<size_t> tries = 0;
  std::atomic<size_t> rounds = 0;  // Rounds in which it stored a block and recalled one.
  size_t wrong = 0;
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
    engine_.Finish(fetch);
    const Recalled recalled = engine_.CheckAndRelease(chain, {}, fetch);
    share_->wrong += recalled.wrong + recalled.corrupt;
    for (const FetchOp& op : fetch.ops) {
      // If there is no memory to load into, the answer says so.
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
  // As an engine does: a refused block is simply not kept.
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

// The client library ends a fetch by itself at its deadline. This client shows that the node does
// so, too. It counts looks and not time, so that a stalled machine does not count against the node.
class HandClient {
 public:
  explicit HandClient(const std::string& socket) : raw_(socket) {
    raw_.Enter();
    raw_.Register(layout_);
  }

  // Returns false if the node has left a request unanswered.
  bool Round(uint64_t round) {
    const uint64_t number = round % kChains;
    const bool answered = Fetch(ChainOf(1, number)) && Reserve(ChainOf(kClients, number));
    ReturnExtents();
    return answered;
  }

 private:
  // One of that client's chains.
  Chain ChainOf(uint64_t client, uint64_t number) const {
    return Chain(layout_, {.seed = 1000 * client + number, .blocks = kBlocks});
  }
  ChainCall Call(const Chain& chain) const {
    return {.layout = raw_.layout(),
            .total = kBlocks,
            .items = {.keys = chain.keys(), .engine_hashes = {}}};
  }

  bool Fetch(const Chain& chain) {
    raw_.Write(FrameKind::kFetch, 1,
               FetchCall{.chain = Call(chain), .timeout_nanos = kHandTimeoutNanos});
    std::vector<ReleaseOp> leases;
    const bool answered = Await<FetchAnswer>([&](const FetchAnswer& answer) {
      if (answer.lease != 0) leases.push_back({.lease = answer.lease});
    });
    raw_.Write(FrameKind::kRelease, 0, std::span<const ReleaseOp>(leases));
    return answered;
  }

  // Returns false if the node has left a request unanswered. It also commits a reservation that it
  // has aborted before, which the node answers as well.
  bool Reserve(const Chain& chain) {
    ReserveCall call;
    call.chain = Call(chain);
    raw_.Write(FrameKind::kReserve, 1, call);
    std::vector<ReservationId> reservations;
    std::vector<std::byte> commits;
    if (!Await<ReserveAnswer>([&](const ReserveAnswer& answer) {
          if (answer.reservation == 0) return;
          reservations.push_back(answer.reservation);
          CommitOp commit;
          commit.reservation = answer.reservation;
          commits.resize(commits.size() + kCommitOpBytes);
          EncodeCommitOp(commit, std::span(commits).last<kCommitOpBytes>());
        })) {
      return false;
    }
    raw_.Write(FrameKind::kAbort, 0, std::span<const ReservationId>(reservations));
    raw_.Write(FrameKind::kCommit, 1,
               CommitCall{.total = static_cast<uint32_t>(reservations.size()), .ops = commits});
    return Await<CommitAnswer>(
        [](const CommitAnswer& answer) { EXPECT_EQ(answer.code, Code::kInvalid); });
  }

  // Takes each item of an answer. Returns false if its end does not come in time.
  template <class Item>
  bool Await(const std::function<void(const Item&)>& take) {
    for (int looks = 0; looks < kLooks; ++looks) {
      while (raw_.answer_header()->written != raw_.answer_header()->read) {
        const std::optional<AnswerHead> head = raw_.Answer();
        AQ_CHECK(head.has_value());
        for (uint32_t i = 0; i < head->count; ++i) {
          Item item;
          Decode(&raw_.reader(), &item);
          take(item);
        }
        if (head->done) return true;
      }
      std::this_thread::sleep_for(kLook);
    }
    return false;
  }

  // This client holds nothing now, and has mapped nothing.
  void ReturnExtents() {
    std::vector<std::byte> frame;
    while (raw_.TryReceive(&frame).ok()) {
      FrameReader reader(frame);
      if (reader.header().kind == static_cast<uint16_t>(FrameKind::kExtent)) {
        ExtentOffer offer;
        AQ_CHECK(Decode(&reader, &offer).ok());
        std::ignore = raw_.TakeDescriptor();
        extents_.insert(offer.extent);
      } else {
        uint32_t extent = 0;
        AQ_CHECK(DecodeExtent(&reader, &extent).ok());
        if (extents_.erase(extent) > 0) raw_.WriteReturned(extent);  // The node may ask twice.
      }
    }
  }

  const Layout layout_ = LayoutOfBytes(kBlockBytes);
  RawClient raw_;
  std::set<uint32_t> extents_;
};

// Every extent of this process: the node's, and its clients' mappings of those.
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
  // This tenant has no floor. Even without one, the many clients of the other tenant must not
  // starve it.
  options.tenants = {{.name = kCapped, .dram_ceiling_bytes = kCeilingBytes}};
  ServerOptions server;
  server.socket = scratch.Sub("node.sock");
  server.admit = AdmitOwnUser;
  auto node = Node::Start({.cache = options, .server = server, .warm_bytes = 0});
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  auto insider = Insider::New((*node)->running(), {.tenant = kCapped});
  ASSERT_TRUE(insider.ok());

  const size_t rounds = ByTestLevel<size_t>(4, 4, 50);
  const size_t too_many_tries = 250 * rounds;  // The worst seen were 24 a round.
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
  std::atomic<size_t> by_hand = 0;
  threads.emplace_back([&] {
    HandClient client(server.socket);
    bool answered = true;
    while (!enough && answered) {
      answered = client.Round(by_hand);
      by_hand += answered ? 1 : 0;
    }
    EXPECT_TRUE(answered) << "round " << by_hand << " by hand";
  });
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
      // An extent that the tenant was asked for and has not returned yet is charged on top of its
      // blocks.
      if (dram && stats.stats.Counter("withheld_bytes") == 0) {
        EXPECT_LE(tier.tenant_bytes, kCeilingBytes);
        most_capped = std::max(most_capped, tier.tenant_bytes);
      }
    }
    EXPECT_LE(ExtentBytesMapped(), kDramBytes);
    EXPECT_LE(BytesOnDisk(scratch.Sub("nvme")), kNvmeBytes);
    size_t served = 0;
    bool starved = false;
    for (const Share& share : shares) {
      served += share.rounds >= rounds ? 1 : 0;
      // Clients whose blocks are all there finish rounds fast; a client that has to store waits for
      // room. But no client may be passed over again and again.
      starved |= share.rounds < rounds && share.tries > too_many_tries;
    }
    enough = served == kClients || starved;
  }
  for (std::thread& thread : threads) thread.join();

  for (size_t i = 0; i < kClients; ++i) {
    EXPECT_GE(shares[i].rounds, rounds) << "client " << i << " was starved";
    EXPECT_EQ(shares[i].wrong, 0u) << "client " << i;
  }
  EXPECT_GT(by_hand, 0u);
  EXPECT_GT(most_capped, kCeilingBytes / 2) << "nobody looked while it was near the ceiling";
  StatsRequest stats;
  (*insider)->Stats(&stats);
  EXPECT_GT(stats.stats.Counter("dropped_quota"), 0u) << "the ceiling was never met";
  EXPECT_GT(stats.stats.Counter("demoted_blocks") + stats.stats.Counter("dropped_pressure"), 0u)
      << "there was enough for all";
}

}  // namespace
}  // namespace aquifer
