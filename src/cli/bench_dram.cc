// Warm blocks through the cache, against one copy of the same blocks between the same places. What
// the cache adds is all bookkeeping: it never touches the bytes itself.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "cli/bench_layout.h"
#include "cli/bench_memory.h"
#include "cli/bench_row.h"
#include "cli/cache_caller.h"
#include "settings/size_text.h"

namespace aquifer {
namespace {

constexpr size_t kBatchBlocks = 64;
constexpr std::string_view kCopiedCounter = "dram_copied_bytes";

// A cache in DRAM alone, with room for the working set, and the client's own memory beside it.
struct Setup {
  uint64_t block_bytes = 0;
  std::unique_ptr<CacheCaller> caller;
  NamedChain chain;
  BenchMemory memory;  // As large as the chain.

  size_t batches() const { return chain.keys.size() / kBatchBlocks; }
  std::span<const Key> Batch(size_t batch) const {
    return std::span(chain.keys).subspan(batch * kBatchBlocks, kBatchBlocks);
  }
  // The client's memory for a block.
  std::span<std::byte> Place(size_t block) const {
    return memory.bytes().subspan(block * block_bytes, block_bytes);
  }
  LaneSums CopyIn(size_t block, std::span<std::byte> slot) const {
    return CopyAndSumLanes(Place(block), 0, slot.data());
  }
};

Result<Setup> MakeSetup(uint64_t block_bytes, const BenchEnvironment& environment) {
  // Slots are cut from extents of 64 MiB, and a few extents are kept ready ahead of need.
  constexpr uint64_t kSlackBytes = uint64_t{512} << 20;
  const uint64_t bytes = WorkingSetBytes(block_bytes, environment.memory_available_bytes);
  Setup setup;
  setup.block_bytes = block_bytes;
  const Layout layout = BenchLayout(block_bytes);
  CacheOptions options;
  options.dram_bytes = bytes + kSlackBytes;
  AQ_ASSIGN_OR_RETURN(setup.caller, CacheCaller::Open(options, layout));
  AQ_RETURN_IF_ERROR(setup.caller->WaitForPool());
  AQ_ASSIGN_OR_RETURN(setup.chain,
                      MakeChain(layout, ClientOptions{}.tenant, "bench.dram", bytes / block_bytes));
  AQ_ASSIGN_OR_RETURN(setup.memory, BenchMemory::New(bytes));
  FillFromSeed(setup.memory.bytes(), block_bytes);
  AQ_RETURN_IF_ERROR(
      setup.caller
          ->Store(setup.chain, [&](size_t block,
                                   std::span<std::byte> slot) { return setup.CopyIn(block, slot); })
          .status());
  return setup;
}

// Fetch, one copy out of each block by the client, release.
class FetchContest final : public Contest {
 public:
  FetchContest(Setup setup, uint64_t copied_before)
      : setup_(std::move(setup)), copied_before_(copied_before) {}

  Result<double> Limit() override {
    double seconds = 0;
    for (size_t batch = 0; batch < setup_.batches(); ++batch) {
      AQ_RETURN_IF_ERROR(Lease(batch));
      const Stopwatch watch;
      CopyOut(batch);
      seconds += watch.Seconds();
      Release();
    }
    return GigabytesPerSecond(setup_.memory.bytes().size(), seconds);
  }

  Result<double> Ours() override {
    const Stopwatch watch;
    for (size_t batch = 0; batch < setup_.batches(); ++batch) {
      AQ_RETURN_IF_ERROR(Lease(batch));
      CopyOut(batch);
      Release();
    }
    const double seconds = watch.Seconds();
    AQ_ASSIGN_OR_RETURN(const CacheStats stats, setup_.caller->Stats());
    if (stats.Counter(kCopiedCounter) != copied_before_) {
      return Status(Code::kInvalid, "the cache copied payload to lend it");
    }
    return GigabytesPerSecond(setup_.memory.bytes().size(), seconds);
  }

  std::string Note() const override { return "0 payload bytes copied by the cache"; }

 private:
  Status Lease(size_t batch) {
    fetch_.chain = setup_.caller->Slice(setup_.Batch(batch));
    setup_.caller->cache()->Fetch(&fetch_);
    AQ_RETURN_IF_ERROR(setup_.caller->Finish(fetch_));
    for (const FetchOp& op : fetch_.ops) {
      AQ_RETURN_IF_ERROR(op.status);
      if (op.tier != TierKind::kDram) return Status(Code::kInvalid, "a block was not in DRAM");
    }
    return Status();
  }

  void CopyOut(size_t batch) {
    for (size_t i = 0; i < fetch_.ops.size(); ++i) {
      std::memcpy(setup_.Place(batch * kBatchBlocks + i).data(), fetch_.ops[i].bytes.data(),
                  setup_.block_bytes);
    }
  }

  void Release() {
    releases_.clear();
    for (const FetchOp& op : fetch_.ops) releases_.push_back({.lease = op.lease});
    setup_.caller->cache()->Release(releases_);
  }

  Setup setup_;
  const uint64_t copied_before_;
  FetchRequest fetch_;
  std::vector<ReleaseOp> releases_;
};

// Reserve, one copy into each slot by the client (with the checksum in the same pass), commit.
class StoreContest final : public Contest {
 public:
  explicit StoreContest(Setup setup) : setup_(std::move(setup)) {}

  // The slots stay reserved until the round is over, so that it walks as much memory as ours.
  Result<double> Limit() override {
    AQ_RETURN_IF_ERROR(setup_.caller->EvictEverything());
    double seconds = 0;
    reserved_.clear();
    for (size_t batch = 0; batch < setup_.batches(); ++batch) {
      AQ_RETURN_IF_ERROR(Reserve(batch));
      const Stopwatch watch;
      for (size_t i = 0; i < reserve_.ops.size(); ++i) {
        std::memcpy(reserve_.ops[i].slot.data(), setup_.Place(batch * kBatchBlocks + i).data(),
                    setup_.block_bytes);
      }
      seconds += watch.Seconds();
      for (const ReserveOp& op : reserve_.ops) reserved_.push_back(op.reservation);
    }
    setup_.caller->cache()->Abort(reserved_);
    return GigabytesPerSecond(setup_.memory.bytes().size(), seconds);
  }

  Result<double> Ours() override {
    AQ_RETURN_IF_ERROR(setup_.caller->EvictEverything());
    const Stopwatch watch;
    for (size_t batch = 0; batch < setup_.batches(); ++batch) {
      AQ_RETURN_IF_ERROR(Reserve(batch));
      commit_.ops.resize(reserve_.ops.size());
      for (size_t i = 0; i < reserve_.ops.size(); ++i) {
        commit_.ops[i].reservation = reserve_.ops[i].reservation;
        commit_.ops[i].sums = setup_.CopyIn(batch * kBatchBlocks + i, reserve_.ops[i].slot);
      }
      setup_.caller->cache()->Commit(&commit_);
      AQ_RETURN_IF_ERROR(setup_.caller->Finish(commit_));
      for (const CommitOp& op : commit_.ops) {
        AQ_RETURN_IF_ERROR(op.status);
        if (!op.published) return Status(Code::kInvalid, "a whole block was not published");
      }
    }
    return GigabytesPerSecond(setup_.memory.bytes().size(), watch.Seconds());
  }

 private:
  Status Reserve(size_t batch) {
    const size_t first = batch * kBatchBlocks;
    reserve_.chain = setup_.caller->Slice(setup_.Batch(batch));
    reserve_.parent = setup_.chain.ParentOf(first);
    reserve_.position = static_cast<uint32_t>(first);
    return setup_.caller->ReserveSlots(&reserve_);
  }

  Setup setup_;
  ReserveRequest reserve_;
  CommitRequest commit_;
  std::vector<ReservationId> reserved_;
};

// How long a client waits for one warm block, request after request.
class FirstSlotContest final : public Contest {
 public:
  explicit FirstSlotContest(Setup setup) : setup_(std::move(setup)) {}

  Result<double> Limit() override { return 20; }

  Result<double> Ours() override {
    constexpr size_t kFetches = 2000;
    std::vector<double> micros;
    micros.reserve(kFetches);
    for (size_t i = 0; i < kFetches; ++i) {
      fetch_.chain = setup_.caller->Slice(
          std::span(setup_.chain.keys).subspan(i % setup_.chain.keys.size(), 1));
      const Stopwatch watch;
      setup_.caller->cache()->Fetch(&fetch_);
      AQ_RETURN_IF_ERROR(setup_.caller->Finish(fetch_));
      micros.push_back(watch.Seconds() * 1e6);
      AQ_RETURN_IF_ERROR(fetch_.ops[0].status);
      const ReleaseOp release{.lease = fetch_.ops[0].lease};
      setup_.caller->cache()->Release(std::span(&release, 1));
    }
    std::nth_element(micros.begin(), micros.begin() + kFetches / 2, micros.end());
    return micros[kFetches / 2];
  }

 private:
  Setup setup_;
  FetchRequest fetch_;
};

constexpr uint64_t kLargeBlockBytes = uint64_t{1} << 20;

double GoalFor(uint64_t block_bytes) { return block_bytes >= kLargeBlockBytes ? 0.95 : 0.80; }

Result<std::unique_ptr<Contest>> PrepareFetch(uint64_t block_bytes,
                                              const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(Setup setup, MakeSetup(block_bytes, environment));
  AQ_ASSIGN_OR_RETURN(const CacheStats stats, setup.caller->Stats());
  return std::unique_ptr<Contest>(
      std::make_unique<FetchContest>(std::move(setup), stats.Counter(kCopiedCounter)));
}

template <class SomeContest>
Result<std::unique_ptr<Contest>> Prepare(uint64_t block_bytes,
                                         const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(Setup setup, MakeSetup(block_bytes, environment));
  return std::unique_ptr<Contest>(std::make_unique<SomeContest>(std::move(setup)));
}

}  // namespace

void AddDramRows(std::vector<Row>* rows) {
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "dram.fetch/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = "one memcpy of the same blocks, from the same slots to the same "
                                 "memory, in the same batches of 64",
                     .goal = GoalFor(block_bytes),
                     .prepare = [block_bytes](const BenchEnvironment& environment) {
                       return PrepareFetch(block_bytes, environment);
                     }});
  }
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "dram.store/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = "one memcpy of the same blocks, from the same memory to slots of "
                                 "the same pool, in the same batches of 64; no checksum",
                     .goal = GoalFor(block_bytes),
                     .prepare = [block_bytes](const BenchEnvironment& environment) {
                       return Prepare<StoreContest>(block_bytes, environment);
                     }});
  }
  constexpr uint64_t kSlotBytes = uint64_t{2} << 20;
  rows->push_back({.name = "dram.first_slot/" + SizeText(kSlotBytes),
                   .unit = "us",
                   .limit_is = "the design's figure: 20 us from the call to the first slot, back "
                               "to back",
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = [](const BenchEnvironment& environment) {
                     return Prepare<FirstSlotContest>(kSlotBytes, environment);
                   }});
}

}  // namespace aquifer
