// How long a restart takes to find a terabyte again.
#include <fmt/format.h>

#include <memory>

#include "aquifer/cache.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_layout.h"
#include "bench/peers/bench_memory.h"
#include "bench/sparse_log.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;
constexpr uint64_t kBlocks = 1'000'000'000'000 / kBlockBytes + 1;
constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;

class RecoverContest final : public Contest {
 public:
  RecoverContest(CacheOptions options, SparseLog log) : options_(std::move(options)), log_(log) {}

  Result<double> Limit() override { return 2; }

  // From the call to a cache that serves.
  Result<double> Ours() override {
    DropSparseLogFromPageCache(options_.nvme_directories[0]);
    const Stopwatch watch;
    AQ_ASSIGN_OR_RETURN(const std::unique_ptr<Cache> cache, Open(options_, ClientOptions{}));
    const double seconds = watch.Seconds();
    StatsRequest request;
    cache->Stats(&request);
    if (!cache->Wait(request)) return Status(Code::kLate, "the cache does not answer");
    for (const TierStats& tier : request.stats.tiers) {
      if (tier.tier == TierKind::kNvme && tier.in_service && tier.blocks == kBlocks) return seconds;
    }
    return Status(Code::kInvalid, fmt::format("not all of the {} blocks were found", kBlocks));
  }

  std::string Note() const override {
    return fmt::format(
        "{} blocks in {} segments; headers, maps and footers are real, payloads are "
        "holes",
        kBlocks, log_.segments);
  }

 private:
  const CacheOptions options_;
  const SparseLog log_;
};

Result<std::unique_ptr<Contest>> Prepare(const BenchEnvironment& environment) {
  CacheOptions options;
  options.dram_bytes = uint64_t{64} << 20;
  options.nvme_directories = {environment.directory + "/sparse"};
  options.nvme_segment_bytes = kSegmentBytes;
  AQ_ASSIGN_OR_RETURN(const SparseLog log, WriteSparseLog({.directory = options.nvme_directories[0],
                                                           .segment_bytes = kSegmentBytes,
                                                           .blocks = kBlocks,
                                                           .layout = BenchLayout(kBlockBytes),
                                                           .tenant = ClientOptions{}.tenant}));
  constexpr uint64_t kFreeSegments = 4;
  options.nvme_bytes = log.bytes + kFreeSegments * kSegmentBytes;
  return std::unique_ptr<Contest>(std::make_unique<RecoverContest>(std::move(options), log));
}

}  // namespace

void AddRecoverRows(std::vector<Row>* rows) {
  rows->push_back({.name = "nvme.recover",
                   .unit = "s",
                   .limit_is = "the design's figure: 2 s for 1 TB of 2 MiB blocks",
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = Prepare,
                   .rounds = 5,
                   .quick_rounds = 3});
}

}  // namespace aquifer
