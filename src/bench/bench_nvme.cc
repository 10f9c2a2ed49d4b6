// Blocks to and from NVMe through the cache, with checksums, against blocks of the same size moved
// to and from the same slots and the same places of the drive, at the same depth and by nobody
// else.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "base/text/size_text.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_layout.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/cache_caller.h"
#include "bench/peers/file_per_block.h"
#include "bench/peers/raw_disk.h"
#include "cli/temporary_directory.h"

namespace aquifer {
namespace {

constexpr uint32_t kMaxDepth = 64;   // Blocks at the device at once, for us and for the raw drive.
constexpr size_t kChainBlocks = 8;   // Ours come in requests of a chain each.
constexpr size_t kMaxRequests = 16;  // While some are at the device, others are verified.

// The peer is many times slower, and its rate is the same for less.
constexpr uint64_t kPeerShare = 4;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSegmentBytes = 64 * kMiB;
constexpr uint64_t kSegmentMargin = kMiB;  // The log's own pages are within it.

// How many requests of ours are under way: never more than 256 MiB of them.
size_t Requests(uint64_t block_bytes) {
  return std::min<size_t>(kMaxRequests, 256 * kMiB / (kChainBlocks * block_bytes));
}
uint32_t Depth(uint64_t block_bytes) {
  return static_cast<uint32_t>(std::min<size_t>(kMaxDepth, Requests(block_bytes) * kChainBlocks));
}

// The bytes of a round: enough that a drive's own cache does not decide, and no more than the disk
// and the memory have room for.
Result<uint64_t> RoundBytes(const BenchEnvironment& environment) {
  constexpr uint64_t kWanted = 1024 * kMiB;
  constexpr uint64_t kQuick = 512 * kMiB;
  constexpr uint64_t kLeast = 256 * kMiB;
  constexpr uint64_t kDiskShare = 8;  // Log and peer together take at most four of these.
  constexpr uint64_t kMemoryShare = 8;
  const uint64_t free_bytes = FreeDiskBytes(environment.directory);
  const uint64_t bytes = std::min({environment.quick ? kQuick : kWanted, free_bytes / kDiskShare,
                                   environment.memory_available_bytes / kMemoryShare}) /
                         kLeast * kLeast;
  if (bytes < kLeast) {
    return Status(Code::kNoSpace,
                  fmt::format("{} of disk and {} of memory are free; {} and {} are needed. Name "
                              "another disk with --directory",
                              SizeText(free_bytes), SizeText(environment.memory_available_bytes),
                              SizeText(kLeast * kDiskShare), SizeText(kLeast * kMemoryShare)));
  }
  return bytes;
}

std::string LimitText(std::string_view engine) {
  return fmt::format(
      "the log's own segments, written before, past the page cache by {}, depth {} ({} at 8 MiB), "
      "to and from the same slots",
      engine, kMaxDepth, Depth(8 * kMiB));
}

// Chains of kChainBlocks blocks each, `bytes` in all.
Result<std::vector<NamedChain>> MakeChains(const Layout& layout, uint64_t bytes,
                                           std::string_view name) {
  const uint64_t count = bytes / BlockBytes(layout, 0) / kChainBlocks;
  std::vector<NamedChain> chains(count);
  for (uint64_t i = 0; i < count; ++i) {
    AQ_ASSIGN_OR_RETURN(chains[i], MakeChain(layout, ClientOptions{}.tenant,
                                             fmt::format("{}.{}", name, i), kChainBlocks));
  }
  return chains;
}

struct NvmeSetup {
  std::unique_ptr<TemporaryDirectory> directory;
  uint64_t block_bytes = 0;
  uint64_t round_bytes = 0;
  uint64_t slot_bytes =
      0;  // Of DRAM that a round of ours walks through, and the limit therefore too.
  Layout layout;
  BenchMemory block;  // Every stored block has these bytes.
  LaneSums block_sums;
  std::unique_ptr<RawDisk> raw;
  std::unique_ptr<FilePerBlock> files;
  std::unique_ptr<CacheCaller> caller;

  FillBlock Fill() const {
    return [this](size_t /*block*/, std::span<std::byte> slot) {
      return CopyAndSumLanes(block.bytes().first(block_bytes), 0, slot.data());
    };
  }
};

Result<std::unique_ptr<NvmeSetup>> MakeSetup(uint64_t block_bytes,
                                             const BenchEnvironment& environment) {
  auto setup = std::make_unique<NvmeSetup>();
  AQ_ASSIGN_OR_RETURN(setup->directory, TemporaryDirectory::New(environment.directory, "nvme-"));
  setup->block_bytes = block_bytes;
  AQ_ASSIGN_OR_RETURN(setup->round_bytes, RoundBytes(environment));
  setup->layout = BenchLayout(block_bytes);
  AQ_ASSIGN_OR_RETURN(setup->block, BenchMemory::New(block_bytes));
  FillFromSeed(setup->block.bytes(), block_bytes);
  AQ_ASSIGN_OR_RETURN(setup->files,
                      FilePerBlock::New({.directory = setup->directory->path() + "/files",
                                         .block_bytes = block_bytes,
                                         .blocks = setup->round_bytes / block_bytes / kPeerShare}));
  return setup;
}

Result<std::vector<std::string>> SegmentPaths(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.file_size(error) == kSegmentBytes) paths.push_back(entry.path());
  }
  if (error) return Status(Code::kUnavailable, "cannot list the log: " + error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Status StoreAndFlush(NvmeSetup* setup, const std::vector<NamedChain>& chains) {
  for (const NamedChain& chain : chains) {
    AQ_RETURN_IF_ERROR(setup->caller->Store(chain, setup->Fill()).status());
    AQ_RETURN_IF_ERROR(setup->caller->Flush());
  }
  return Status();
}

// The cache, over a log that has been written all around, and the raw drive under it. Nothing is
// stored when it returns.
Status OpenCache(NvmeSetup* setup, uint64_t dram_bytes, uint64_t log_rounds, bool write) {
  CacheOptions options;
  options.dram_bytes = setup->slot_bytes = dram_bytes;
  options.nvme_directories = {setup->directory->path() + "/cache"};
  options.nvme_bytes = log_rounds * setup->round_bytes;
  options.nvme_segment_bytes = kSegmentBytes;
  AQ_ASSIGN_OR_RETURN(setup->caller, CacheCaller::Open(options, setup->layout));
  AQ_RETURN_IF_ERROR(setup->caller->WaitForPool());
  for (uint64_t round = 0; round <= log_rounds; ++round) {
    AQ_ASSIGN_OR_RETURN(
        const std::vector<NamedChain> chains,
        MakeChains(setup->layout, setup->round_bytes, fmt::format("bench.nvme.around.{}", round)));
    AQ_RETURN_IF_ERROR(StoreAndFlush(setup, chains));
    AQ_RETURN_IF_ERROR(setup->caller->EvictEverything());
  }
  AQ_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                      SegmentPaths(options.nvme_directories.front()));
  AQ_ASSIGN_OR_RETURN(setup->raw, RawDisk::Over(paths, kSegmentMargin,
                                                {.block_bytes = setup->block_bytes,
                                                 .depth = Depth(setup->block_bytes),
                                                 .write = write}));
  return Status();
}

class NvmeContest : public Contest {
 public:
  explicit NvmeContest(std::unique_ptr<NvmeSetup> setup) : setup_(std::move(setup)) {}

  Result<double> Limit() override {
    AQ_RETURN_IF_ERROR(MakeRoom());
    AQ_RETURN_IF_ERROR(ReserveAll());
    std::vector<std::span<std::byte>> slots;
    for (const ReserveOp& op : reserve_.ops) slots.push_back(op.slot);
    const Result<double> result = setup_->raw->Run(std::move(slots));
    AbortAll();
    return result;
  }
  std::string LimitIs() const override { return LimitText(setup_->raw->engine_name()); }
  std::vector<std::string> PeerNames() const override {
    return {"file-per-block", "raw-huge-pages"};
  }
  Result<double> Peer(size_t peer) override {
    return peer == 0 ? FilePerBlockRound() : setup_->raw->RunInHugePages();
  }

 protected:
  virtual Result<double> FilePerBlockRound() = 0;
  // So that the limit can have all the slots, and write over what is in the log.
  virtual Status MakeRoom() { return Status(); }
  NvmeSetup& setup() { return *setup_; }

  // Every slot, so that nothing is left in DRAM.
  Status ReserveAll() {
    AQ_ASSIGN_OR_RETURN(const NamedChain chain,
                        MakeChain(setup_->layout, ClientOptions{}.tenant, "bench.limit",
                                  setup_->slot_bytes / setup_->block_bytes));
    reserve_.chain = setup_->caller->Slice(chain.keys);
    reserve_.parent = chain.root;
    return setup_->caller->ReserveSlots(&reserve_);
  }
  void AbortAll() {
    std::vector<ReservationId> reservations;
    for (const ReserveOp& op : reserve_.ops) reservations.push_back(op.reservation);
    setup_->caller->cache()->Abort(reservations);
  }

 private:
  const std::unique_ptr<NvmeSetup> setup_;
  ReserveRequest reserve_;
};

// --- Reading -------------------------------------------------------------------------------------

// Each round begins with an empty DRAM.
class ReadContest final : public NvmeContest {
 public:
  ReadContest(std::unique_ptr<NvmeSetup> setup, std::vector<NamedChain> chains)
      : NvmeContest(std::move(setup)),
        chains_(std::move(chains)),
        requests_(Requests(this->setup().block_bytes)) {}

  Result<double> Ours() override {
    AQ_RETURN_IF_ERROR(ReserveAll());
    AbortAll();
    size_t next = 0;
    uint64_t from_nvme = 0;
    uint64_t from_dram = 0;
    Cache* const cache = setup().caller->cache();
    const Stopwatch watch;
    for (FetchRequest& request : requests_) {
      if (next < chains_.size()) Start(&request, chains_[next++]);
    }
    for (size_t done = 0; done < chains_.size(); ++done) {
      // In turn: they complete in about the order that they were sent in.
      FetchRequest& request = requests_[done % requests_.size()];
      AQ_RETURN_IF_ERROR(setup().caller->Finish(request));
      releases_.clear();
      for (const FetchOp& op : request.ops) {
        AQ_RETURN_IF_ERROR(op.status);
        ++(op.tier == TierKind::kNvme ? from_nvme : from_dram);
        releases_.push_back({.lease = op.lease});
      }
      cache->Release(releases_);
      if (next < chains_.size()) Start(&request, chains_[next++]);
    }
    const double seconds = watch.Seconds();
    from_nvme_ += from_nvme;
    from_dram_ += from_dram;
    if (from_dram * 50 > from_nvme) {
      return Status(Code::kInvalid, fmt::format("{} of {} blocks came from DRAM", from_dram,
                                                from_dram + from_nvme));
    }
    return GigabytesPerSecond(from_nvme * setup().block_bytes, seconds);
  }

  std::string Note() const override {
    return fmt::format("{} blocks came from NVMe, {} from DRAM, which do not count", from_nvme_,
                       from_dram_);
  }

 private:
  Result<double> FilePerBlockRound() override { return setup().files->Read(); }

  void Start(FetchRequest* request, const NamedChain& chain) {
    request->chain = setup().caller->Slice(chain.keys);
    request->timeout_nanos = 60 * kDefaultTimeoutNanos;
    setup().caller->cache()->Fetch(request);
  }

  const std::vector<NamedChain> chains_;
  std::vector<FetchRequest> requests_;
  std::vector<ReleaseOp> releases_;
  uint64_t from_nvme_ = 0;
  uint64_t from_dram_ = 0;
};

Result<std::unique_ptr<Contest>> PrepareRead(uint64_t block_bytes,
                                             const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<NvmeSetup> setup, MakeSetup(block_bytes, environment));
  AQ_RETURN_IF_ERROR(setup->files->Write().status());
  // Of DRAM more than what is under way at most.
  AQ_RETURN_IF_ERROR(OpenCache(setup.get(), 384 * kMiB, 3, false));
  AQ_ASSIGN_OR_RETURN(std::vector<NamedChain> chains,
                      MakeChains(setup->layout, 2 * setup->round_bytes, "bench.nvme"));
  AQ_RETURN_IF_ERROR(StoreAndFlush(setup.get(), chains));
  return std::unique_ptr<Contest>(
      std::make_unique<ReadContest>(std::move(setup), std::move(chains)));
}

// --- Writing -------------------------------------------------------------------------------------

// The blocks are in their slots before the time runs, and the raw drive's too.
class WriteContest final : public NvmeContest {
 public:
  static constexpr uint64_t kLogRounds = 2;  // So many rounds fill the log.

  explicit WriteContest(std::unique_ptr<NvmeSetup> setup) : NvmeContest(std::move(setup)) {}

  // Once around the log, in two goes.
  Result<double> Ours() override {
    double seconds = 0;
    for (size_t go = 0; go < kLogRounds; ++go) {
      AQ_ASSIGN_OR_RETURN(const double more, WriteRound());
      seconds += more;
    }
    return GigabytesPerSecond(kLogRounds * setup().round_bytes, seconds);
  }

 private:
  Result<double> FilePerBlockRound() override { return setup().files->Write(); }
  Status MakeRoom() override { return setup().caller->EvictEverything(); }

  // Seconds.
  Result<double> WriteRound() {
    CacheCaller* const caller = setup().caller.get();
    AQ_RETURN_IF_ERROR(caller->EvictEverything());
    AQ_ASSIGN_OR_RETURN(
        const std::vector<NamedChain> chains,
        MakeChains(setup().layout, setup().round_bytes, fmt::format("bench.nvme.{}", round_++)));
    commit_.ops.clear();
    for (const NamedChain& chain : chains) AQ_RETURN_IF_ERROR(ReserveAndFill(chain));
    const Stopwatch watch;
    caller->cache()->Commit(&commit_);
    AQ_RETURN_IF_ERROR(caller->Finish(commit_));
    AQ_RETURN_IF_ERROR(caller->Flush());
    const double seconds = watch.Seconds();
    for (const CommitOp& op : commit_.ops) AQ_RETURN_IF_ERROR(op.status);
    return seconds;
  }

  Status ReserveAndFill(const NamedChain& chain) {
    CacheCaller* const caller = setup().caller.get();
    reserve_.chain = caller->Slice(chain.keys);
    reserve_.parent = chain.root;
    AQ_RETURN_IF_ERROR(caller->ReserveSlots(&reserve_));
    for (size_t i = 0; i < reserve_.ops.size(); ++i) {
      const ReserveOp& op = reserve_.ops[i];
      CommitOp& commit = commit_.ops.emplace_back();
      commit.reservation = op.reservation;
      commit.sums = setup().Fill()(i, op.slot);
    }
    return Status();
  }

  ReserveRequest reserve_;
  CommitRequest commit_;
  size_t round_ = 0;
};

Result<std::unique_ptr<Contest>> PrepareWrite(uint64_t block_bytes,
                                              const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<NvmeSetup> setup, MakeSetup(block_bytes, environment));
  const uint64_t dram_bytes = setup->round_bytes;
  AQ_RETURN_IF_ERROR(OpenCache(setup.get(), dram_bytes, WriteContest::kLogRounds, true));
  return std::unique_ptr<Contest>(std::make_unique<WriteContest>(std::move(setup)));
}

}  // namespace

void AddNvmeRows(std::vector<Row>* rows) {
  const std::string limit_is = LimitText("io_uring");
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "nvme.read/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = limit_is,
                     .goal = 0.90,
                     .prepare =
                         [block_bytes](const BenchEnvironment& environment) {
                           return PrepareRead(block_bytes, environment);
                         },
                     .rounds = 9,
                     .quick_rounds = 5});
  }
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "nvme.write/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = limit_is,
                     .goal = 0.90,
                     .prepare =
                         [block_bytes](const BenchEnvironment& environment) {
                           return PrepareWrite(block_bytes, environment);
                         },
                     .rounds = 9,
                     .quick_rounds = 5});
  }
}

}  // namespace aquifer
