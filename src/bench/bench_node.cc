// The same blocks as in the rows of DRAM, through a node in another process: what shared memory and
// messages add, and how many messages and system calls it takes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/text/size_text.h"
#include "bench/bench_fetch.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_layout.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/cache_caller.h"
#include "bench/peers/peer_program.h"
#include "bench/peers/peer_store.h"
#include "bench/peers/server_process.h"
#include "bench/syscall_count.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kModelBlockBytes = 2 * kMiB;  // Llama-3-8B's, for rows without a size.
constexpr double kPerBlocks = 1000;              // Messages and system calls are counted per this.

// The blocks, in the DRAM of a node that is this program once more.
Result<WarmBlocks> MakeBlocks(uint64_t block_bytes, uint64_t bytes) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> node,
                      ServerProcess::Start([bytes](const std::string& directory) {
                        return NodeCommand(directory, (bytes + kPoolSlackBytes) / kMiB);
                      }));
  std::unique_ptr<Cache> cache;
  AQ_RETURN_IF_ERROR(node->Await([&]() -> Status {
    AQ_ASSIGN_OR_RETURN(cache, Connect({.socket = node->directory() + "/node.sock"}, {}));
    return Status();
  }));
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<CacheCaller> caller,
                      CacheCaller::New(std::move(cache), BenchLayout(block_bytes)));
  AQ_ASSIGN_OR_RETURN(WarmBlocks blocks, StoreWarmBlocks(std::move(caller), block_bytes, bytes));
  blocks.server = std::move(node);
  return blocks;
}

Result<WarmBlocks> MakeBlocks(uint64_t block_bytes, const BenchEnvironment& environment) {
  return MakeBlocks(block_bytes, WorkingSetBytes(block_bytes, environment.memory_available_bytes));
}

double MedianOf(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

// The median time of a match of the chain's first `keys` blocks, asked again and again.
Result<double> MatchMicros(const WarmBlocks& blocks, size_t keys) {
  constexpr size_t kMatches = 500;
  MatchRequest match;
  std::vector<double> micros;
  micros.reserve(kMatches);
  for (size_t i = 0; i < kMatches; ++i) {
    match.chain = blocks.caller->Slice(std::span(blocks.chain.keys).first(keys));
    const Stopwatch watch;
    blocks.caller->cache()->Match(&match);
    AQ_RETURN_IF_ERROR(blocks.caller->Finish(match));
    micros.push_back(watch.Seconds() * 1e6);
    if (match.matched != keys) return Status(Code::kInvalid, "a block that was stored is missing");
  }
  return MedianOf(&micros);
}

// The peers hold a part of the blocks: their rate is the same for less.
constexpr uint64_t kPeerShare = 4;

class CopyContest final : public FetchContest {
 public:
  CopyContest(WarmBlocks blocks, uint64_t copied_before)
      : FetchContest(std::move(blocks), copied_before) {}

  // The part of the client's memory that the peers get.
  std::span<std::byte> PeerMemory() {
    const std::span<std::byte> memory = blocks().memory.bytes();
    return memory.first(memory.size() / kPeerShare);
  }

  // One that cannot be had is left out.
  void AddPeer(std::string_view name, Result<std::unique_ptr<MeasuredPeer>> peer) {
    if (peer.ok()) {
      peer_names_.emplace_back(name);
      peers_.push_back(*std::move(peer));
    } else {
      fmt::print(stderr, "aquifer bench: without {}: {}\n", name, peer.status().message());
    }
  }

  std::string Note() const override {
    std::string note = FetchContest::Note();
    if (!peers_.empty())
      note +=
          "; peers over a Unix socket (Mooncake: loopback TCP), the better of one at a time and 64";
    return note;
  }
  std::vector<std::string> PeerNames() const override { return peer_names_; }
  Result<double> Peer(size_t peer) override { return peers_[peer]->Get(); }

 private:
  std::vector<std::string> peer_names_;
  std::vector<std::unique_ptr<MeasuredPeer>> peers_;
};

// Fetch and release, and no copy: a reader uses the bytes where they are. Microseconds a block.
class LeaseContest final : public Contest {
 public:
  explicit LeaseContest(WarmBlocks blocks) : blocks_(std::move(blocks)) {}

  Result<double> Limit() override {
    AQ_ASSIGN_OR_RETURN(const double round_trip_micros, MatchMicros(blocks_, 1));
    return round_trip_micros / kFetchBatchBlocks;
  }

  Result<double> Ours() override {
    constexpr size_t kBatches = 500;
    std::vector<double> micros;
    micros.reserve(kBatches);
    for (size_t i = 0; i < kBatches; ++i) {
      const Stopwatch watch;
      AQ_RETURN_IF_ERROR(fetcher_.Lease(i % blocks_.batches()));
      fetcher_.Release();
      micros.push_back(watch.Seconds() * 1e6 / kFetchBatchBlocks);
    }
    return MedianOf(&micros);
  }

 private:
  const WarmBlocks blocks_;
  BatchFetcher fetcher_{&blocks_};
};

class MatchContest final : public Contest {
 public:
  static constexpr size_t kKeys = 1000;

  explicit MatchContest(WarmBlocks blocks) : blocks_(std::move(blocks)) {}

  Result<double> Limit() override { return 300; }
  Result<double> Ours() override { return MatchMicros(blocks_, kKeys); }

 private:
  const WarmBlocks blocks_;
};

// Messages in the rings, both ways.
class MessagesContest final : public Contest {
 public:
  explicit MessagesContest(WarmBlocks blocks) : blocks_(std::move(blocks)) {}

  Result<double> Limit() override { return 3 * kPerBlocks / kFetchBatchBlocks; }

  Result<double> Ours() override {
    uint64_t messages = 0;
    uint64_t fetched = 0;
    for (size_t batch = 0; batch < blocks_.batches(); ++batch) {
      fetcher_.Ask(batch);
      ++messages;  // A request of up to 1024 keys is one message.
      while (!fetcher_.request().done()) {
        messages += blocks_.caller->cache()->Poll();  // One answer each.
      }
      AQ_RETURN_IF_ERROR(fetcher_.Check());
      AQ_RETURN_IF_ERROR(fetcher_.CopyOut(batch));
      fetcher_.Release();
      ++messages;  // As is a release.
      fetched += kFetchBatchBlocks;
    }
    return static_cast<double>(messages) * kPerBlocks / static_cast<double>(fetched);
  }

 private:
  const WarmBlocks blocks_;
  BatchFetcher fetcher_{&blocks_};
};

// System calls of this process, all its threads: fetch, copy out, release. While a batch is copied
// the node falls asleep, so that every batch finds it so.
class SyscallsContest final : public Contest {
 public:
  explicit SyscallsContest(WarmBlocks blocks) : blocks_(std::move(blocks)) {}

  Result<double> Limit() override { return 2 * kPerBlocks / kFetchBatchBlocks; }

  Result<double> Ours() override {
    constexpr size_t kBatches = 16;
    AQ_ASSIGN_OR_RETURN(const uint64_t calls, CountSyscalls([this]() -> Status {
                          for (size_t i = 0; i < kBatches; ++i) {
                            const size_t batch = i % blocks_.batches();
                            AQ_RETURN_IF_ERROR(fetcher_.Lease(batch));
                            AQ_RETURN_IF_ERROR(fetcher_.CopyOut(batch));
                            fetcher_.Release();
                          }
                          return Status();
                        }));
    // None at all would have no ratio.
    return static_cast<double>(std::max<uint64_t>(calls, 1)) * kPerBlocks /
           (kBatches * kFetchBatchBlocks);
  }

  std::string Note() const override {
    return "the client's, counted by strace, which slows it: it may sleep more often for that";
  }

 private:
  const WarmBlocks blocks_;
  BatchFetcher fetcher_{&blocks_};
};

Result<std::unique_ptr<Contest>> PrepareCopy(uint64_t block_bytes,
                                             const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(WarmBlocks blocks, MakeBlocks(block_bytes, environment));
  AQ_ASSIGN_OR_RETURN(const uint64_t copied, FetchContest::CopiedBytes(blocks));
  auto contest = std::make_unique<CopyContest>(std::move(blocks), copied);
  const std::span<std::byte> memory = contest->PeerMemory();
  for (const PeerDialect* dialect : {&kRedisDialect, &kMemcachedDialect}) {
    contest->AddPeer(PeerStore::NameOf(*dialect),
                     PeerStore::New(*dialect, {.block_bytes = block_bytes, .memory = memory}));
  }
  contest->AddPeer("mooncake", StartMooncake(block_bytes, memory.size() / block_bytes));
  return std::unique_ptr<Contest>(std::move(contest));
}

// A contest over so many blocks.
template <class SomeContest, class... Options>
std::function<Result<std::unique_ptr<Contest>>(const BenchEnvironment&)> Prepare(
    uint64_t block_bytes, uint64_t count, Options... options) {
  return [=](const BenchEnvironment& /*environment*/) -> Result<std::unique_ptr<Contest>> {
    AQ_ASSIGN_OR_RETURN(WarmBlocks blocks, MakeBlocks(block_bytes, block_bytes * count));
    return std::unique_ptr<Contest>(std::make_unique<SomeContest>(std::move(blocks), options...));
  };
}

void AddCountRows(std::vector<Row>* rows) {
  constexpr size_t kBlocks = 2 * kFetchBatchBlocks;
  constexpr const char* kUnit = "/1000 blocks";
  rows->push_back({.name = "node.messages",
                   .unit = kUnit,
                   .limit_is = "one request, one answer and one release for every batch of 64",
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = Prepare<MessagesContest>(kModelBlockBytes, kBlocks),
                   .rounds = 5,
                   .quick_rounds = 3});
  rows->push_back({.name = "node.syscalls",
                   .unit = kUnit,
                   .limit_is = "no figure of the design's: a call to wake the node and one to wait "
                               "for it, for every batch of 64 that is fetched and copied out",
                   .goal = 0,
                   .higher_is_better = false,
                   .prepare = Prepare<SyscallsContest>(kModelBlockBytes, kBlocks),
                   .rounds = 5,
                   .quick_rounds = 3});
}

}  // namespace

void AddNodeRows(std::vector<Row>* rows) {
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "node.fetch.copy/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = FetchContest::kLimitIs,
                     .goal = FetchContest::GoalFor(block_bytes),
                     .prepare = [block_bytes](const BenchEnvironment& environment) {
                       return PrepareCopy(block_bytes, environment);
                     }});
  }
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back(
        {.name = "node.fetch.lease/" + SizeText(block_bytes),
         .unit = "us",
         .limit_is = "no figure of the design's: one round trip of the smallest message (a match "
                     "of one key), divided by the 64 blocks of a batch",
         .goal = 0,
         .higher_is_better = false,
         .prepare = Prepare<LeaseContest>(block_bytes, 2 * kFetchBatchBlocks)});
  }
  rows->push_back({.name = "node.first_slot",
                   .unit = "us",
                   .limit_is = FirstSlotContest::kLimitIs,
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = Prepare<FirstSlotContest>(kModelBlockBytes, kFetchBatchBlocks)});
  rows->push_back({.name = "node.first_slot_idle",
                   .unit = "us",
                   .limit_is = std::string(FirstSlotContest::kLimitIs) +
                               "; here each fetch comes 5 ms after the one before",
                   .goal = 0,
                   .higher_is_better = false,
                   .prepare = Prepare<FirstSlotContest>(kModelBlockBytes, kFetchBatchBlocks,
                                                        std::chrono::milliseconds(5))});
  constexpr uint64_t kSmallBlockBytes = kBenchBlockBytes[0];
  rows->push_back({.name = "node.match",
                   .unit = "us",
                   .limit_is = "the design's figure: 300 us for a chain of 1000 keys",
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = Prepare<MatchContest>(kSmallBlockBytes, MatchContest::kKeys)});
  AddCountRows(rows);
}

}  // namespace aquifer
