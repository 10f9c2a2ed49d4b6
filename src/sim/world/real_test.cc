// The same small workload through a real cache on a real disk and through the simulator: one
// client, nothing under way between two requests. What is hit where must be the same exactly; how
// long it takes is reported beside each other.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "base/request_progress.h"
#include "sim/world/node.h"
#include "sim/world/scheduler.h"
#include "testing/chain.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;
constexpr uint64_t kExtentBytes = uint64_t{64} << 20;  // As Open() has it.
constexpr size_t kChainBlocks = 10;

CacheOptions Options(const std::string& directory) {
  CacheOptions options;
  options.dram_bytes = kExtentBytes;  // 32 blocks.
  options.keep_available_bytes = 0;
  options.nvme_directories = {directory};
  options.nvme_bytes = uint64_t{512} << 20;
  options.nvme_segment_bytes = uint64_t{32} << 20;
  return options;
}

class RealSide {
 public:
  explicit RealSide(const std::string& directory) {
    auto cache = Open(Options(directory), {});
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    cache_ = *std::move(cache);
  }
  template <class R>
  void Do(void (Cache::*call)(R*), void (Core::*)(ClientNumber, R*), R* request) {
    (cache_.get()->*call)(request);
    EXPECT_TRUE(cache_->Wait(*request));
  }
  void Release(const std::vector<ReleaseOp>& leases) { cache_->Release(leases); }
  double Milliseconds() const {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  std::unique_ptr<Cache> cache_;
};

class SimulatedSide final : private ClientSink {
 public:
  SimulatedSide() : node_(OptionsOfNode(), &scheduler_) {
    node_.Start([] {});
    EXPECT_TRUE(RunUntil([this] { return node_.ready() && node_.core()->pool_complete(); }));
    client_ = *node_.core()->Attach({}, this);
  }
  template <class R>
  void Do(void (Cache::*)(R*), void (Core::*call)(ClientNumber, R*), R* request) {
    RequestProgress::Begin(request);
    node_.Post([this, call, request] { (node_.core()->*call)(client_, request); });
    EXPECT_TRUE(RunUntil([request] { return request->done(); }));
  }
  void Release(const std::vector<ReleaseOp>& leases) {
    EXPECT_EQ(node_.core()->Release(client_, leases), leases.size());
  }
  double Milliseconds() const { return static_cast<double>(scheduler_.now()) / 1e6; }

 private:
  static SimulatedNodeOptions OptionsOfNode() {
    SimulatedNodeOptions options;
    options.core.cache = Options("drive");
    options.core.extent_bytes = kExtentBytes;
    options.disk.latency_nanos = 100'000;
    options.disk.bytes_per_second = 1'500'000'000;
    return options;
  }
  bool RunUntil(const std::function<bool()>& holds) {
    for (int step = 0; step < 1'000'000 && !holds(); ++step) {
      if (!scheduler_.RunOne()) break;
    }
    return holds();
  }
  void OnProgress(Request* request, size_t completed, bool done) override {
    RequestProgress::Advance(request, completed, done);
  }

  Scheduler scheduler_;
  SimulatedNode node_;
  ClientNumber client_ = 0;
};

struct Step {
  std::string what;
  std::string hits;  // For each block: D for DRAM, N for NVMe, - for a miss.
  double milliseconds = 0;
};

template <class Side>
std::vector<Step> RunWorkload(Side* side) {
  const Layout layout = LayoutOfBytes(kBlockBytes);
  RegisterLayoutRequest registered;
  registered.layout = layout;
  side->Do(&Cache::RegisterLayout, &Core::RegisterLayout, &registered);
  std::vector<Chain> chains;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    chains.push_back(seed == 4 ? chains[1].Fork(5, seed, kChainBlocks - 5)
                               : Chain(layout, {.seed = seed, .blocks = kChainBlocks}));
  }
  std::vector<Step> steps;
  const auto store = [&](size_t i) {
    ReserveRequest reserve;
    reserve.chain = {.layout = registered.handle, .group = 0, .part = 0, .keys = chains[i].keys()};
    reserve.parent = chains[i].parent(0);
    side->Do(&Cache::Reserve, &Core::Reserve, &reserve);
    CommitRequest commit;
    for (size_t block = 0; block < reserve.ops.size(); ++block) {
      if (reserve.ops[block].outcome != ReserveOutcome::kSlot) continue;
      FillPayload(chains[i][block], 0, reserve.ops[block].slot);
      CommitOp& op = commit.ops.emplace_back();
      op.reservation = reserve.ops[block].reservation;
      op.sums = SumLanes(reserve.ops[block].slot, 0);
    }
    const double start = side->Milliseconds();
    side->Do(&Cache::Commit, &Core::Commit, &commit);
    FlushRequest flush;
    side->Do(&Cache::Flush, &Core::Flush, &flush);
    EXPECT_TRUE(flush.status.ok()) << flush.status.ToString();
    steps.push_back({"store chain " + std::to_string(i) + ", " + std::to_string(commit.ops.size()) +
                         " new blocks",
                     "", side->Milliseconds() - start});
  };
  const auto recall = [&](size_t i) {
    FetchRequest fetch;
    fetch.chain = {.layout = registered.handle, .group = 0, .part = 0, .keys = chains[i].keys()};
    fetch.timeout_nanos = 60 * kDefaultTimeoutNanos;
    const double start = side->Milliseconds();
    side->Do(&Cache::Fetch, &Core::Fetch, &fetch);
    Step step{"recall chain " + std::to_string(i), "", side->Milliseconds() - start};
    std::vector<ReleaseOp> leases;
    for (const FetchOp& op : fetch.ops) {
      step.hits += !op.status.ok() ? '-' : op.tier == TierKind::kDram ? 'D' : 'N';
      if (op.status.ok()) leases.push_back({.lease = op.lease});
    }
    side->Release(leases);
    steps.push_back(step);
  };
  for (const size_t i : {0, 1, 2}) store(i);
  for (const size_t i : {0, 1, 3}) recall(i);
  for (const size_t i : {3, 4}) store(i);
  for (const size_t i : {0, 4, 3, 2, 5}) recall(i);
  store(5);
  for (const size_t i : {1, 5, 0, 3}) recall(i);
  return steps;
}

TEST(RealTest, TheSimulatorPredictsEveryHit) {
  const ScratchDirectory directory;
  RealSide real(directory.path());
  SimulatedSide simulated;
  const std::vector<Step> expected = RunWorkload(&simulated);
  const std::vector<Step> measured = RunWorkload(&real);
  ASSERT_EQ(expected.size(), measured.size());
  std::printf("%-32s %-12s %12s %12s\n", "", "hits", "predicted ms", "real ms");
  bool dram = false;
  bool nvme = false;
  bool missed = false;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].what, measured[i].what);
    EXPECT_EQ(expected[i].hits, measured[i].hits) << expected[i].what;
    std::printf("%-32s %-12s %12.3f %12.3f\n", expected[i].what.c_str(), expected[i].hits.c_str(),
                expected[i].milliseconds, measured[i].milliseconds);
    dram |= expected[i].hits.find('D') != std::string::npos;
    nvme |= expected[i].hits.find('N') != std::string::npos;
    missed |= expected[i].hits.find('-') != std::string::npos;
  }
  EXPECT_TRUE(dram && nvme && missed);  // The workload is worth comparing.
}

}  // namespace
}  // namespace aquifer
