// Warm blocks through the cache, against one copy of the same blocks between the same places. The
// cache adds nothing but bookkeeping: it never touches the bytes itself.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "base/text/size_text.h"
#include "bench/bench_fetch.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_layout.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/cache_caller.h"

namespace aquifer {
namespace {

// A cache in DRAM alone, with room for the working set.
Result<WarmBlocks> MakeBlocks(uint64_t block_bytes, const BenchEnvironment& environment) {
  const uint64_t bytes = WorkingSetBytes(block_bytes, environment.memory_available_bytes);
  CacheOptions options;
  options.dram_bytes = bytes + kPoolSlackBytes;
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<CacheCaller> caller,
                      CacheCaller::Open(options, BenchLayout(block_bytes)));
  return StoreWarmBlocks(std::move(caller), block_bytes, bytes);
}

// Reserve, one copy into each slot by the client (with the checksum in the same pass), commit. The
// next batch is reserved and the last one committed while one is copied: the calls are
// asynchronous.
class StoreContest final : public Contest {
 public:
  explicit StoreContest(WarmBlocks blocks) : blocks_(std::move(blocks)) {}

  // The slots stay reserved until the round is over, so that it walks as much memory as ours.
  Result<double> Limit() override {
    AQ_RETURN_IF_ERROR(blocks_.caller->EvictEverything());
    double seconds = 0;
    reserved_.clear();
    ReserveRequest& reserve = turns_[0].reserve;
    for (size_t batch = 0; batch < blocks_.batches(); ++batch) {
      AskForSlots(batch, &reserve);
      AQ_RETURN_IF_ERROR(blocks_.caller->FinishSlots(&reserve));
      const Stopwatch watch;
      for (size_t i = 0; i < reserve.ops.size(); ++i) {
        std::memcpy(reserve.ops[i].slot.data(), blocks_.Place(batch * kFetchBatchBlocks + i).data(),
                    blocks_.block_bytes);
      }
      seconds += watch.Seconds();
      for (const ReserveOp& op : reserve.ops) reserved_.push_back(op.reservation);
    }
    blocks_.caller->cache()->Abort(reserved_);
    return GigabytesPerSecond(blocks_.memory.bytes().size(), seconds);
  }

  Result<double> Ours() override {
    AQ_RETURN_IF_ERROR(blocks_.caller->EvictEverything());
    const size_t batches = blocks_.batches();
    const Stopwatch watch;
    AskForSlots(0, &TurnOf(0).reserve);
    for (size_t batch = 0; batch < batches; ++batch) {
      Turn& turn = TurnOf(batch);
      AQ_RETURN_IF_ERROR(blocks_.caller->FinishSlots(&turn.reserve));
      if (batch + 1 < batches) AskForSlots(batch + 1, &TurnOf(batch + 1).reserve);
      if (batch >= turns_.size()) AQ_RETURN_IF_ERROR(FinishCommit(turn.commit));
      FillAndCommit(batch, &turn);
    }
    for (size_t turn = 0; turn < std::min(turns_.size(), batches); ++turn) {
      AQ_RETURN_IF_ERROR(FinishCommit(turns_[turn].commit));
    }
    return GigabytesPerSecond(blocks_.memory.bytes().size(), watch.Seconds());
  }

 private:
  struct Turn {
    ReserveRequest reserve;
    CommitRequest commit;
  };

  Turn& TurnOf(size_t batch) { return turns_[batch % turns_.size()]; }

  void AskForSlots(size_t batch, ReserveRequest* reserve) {
    const size_t first = batch * kFetchBatchBlocks;
    reserve->chain = blocks_.caller->Slice(blocks_.Batch(batch));
    reserve->parent = blocks_.chain.ParentOf(first);
    reserve->position = static_cast<uint32_t>(first);
    blocks_.caller->cache()->Reserve(reserve);
  }

  void FillAndCommit(size_t batch, Turn* turn) {
    turn->commit.ops.resize(turn->reserve.ops.size());
    for (size_t i = 0; i < turn->reserve.ops.size(); ++i) {
      turn->commit.ops[i].reservation = turn->reserve.ops[i].reservation;
      turn->commit.ops[i].sums =
          blocks_.CopyIn(batch * kFetchBatchBlocks + i, turn->reserve.ops[i].slot);
    }
    blocks_.caller->cache()->Commit(&turn->commit);
  }

  Status FinishCommit(const CommitRequest& commit) {
    AQ_RETURN_IF_ERROR(blocks_.caller->Finish(commit));
    for (const CommitOp& op : commit.ops) {
      AQ_RETURN_IF_ERROR(op.status);
      if (!op.published) return Status(Code::kInvalid, "a whole block was not published");
    }
    return Status();
  }

  std::array<Turn, 2> turns_;  // They outlive the cache, which may have them still after an error.
  const WarmBlocks blocks_;
  std::vector<ReservationId> reserved_;
};

Result<std::unique_ptr<Contest>> PrepareFetch(uint64_t block_bytes,
                                              const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(WarmBlocks blocks, MakeBlocks(block_bytes, environment));
  AQ_ASSIGN_OR_RETURN(const uint64_t copied, FetchContest::CopiedBytes(blocks));
  return std::unique_ptr<Contest>(std::make_unique<FetchContest>(std::move(blocks), copied));
}

template <class SomeContest>
Result<std::unique_ptr<Contest>> Prepare(uint64_t block_bytes,
                                         const BenchEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(WarmBlocks blocks, MakeBlocks(block_bytes, environment));
  return std::unique_ptr<Contest>(std::make_unique<SomeContest>(std::move(blocks)));
}

}  // namespace

void AddDramRows(std::vector<Row>* rows) {
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "dram.fetch/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = FetchContest::kLimitIs,
                     .goal = FetchContest::GoalFor(block_bytes),
                     .prepare = [block_bytes](const BenchEnvironment& environment) {
                       return PrepareFetch(block_bytes, environment);
                     }});
  }
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back({.name = "dram.store/" + SizeText(block_bytes),
                     .unit = "GB/s",
                     .limit_is = "one memcpy of the same blocks, from the same memory to slots of "
                                 "the same pool, in the same batches of 64; no checksum",
                     .goal = FetchContest::GoalFor(block_bytes),
                     .prepare = [block_bytes](const BenchEnvironment& environment) {
                       return Prepare<StoreContest>(block_bytes, environment);
                     }});
  }
  constexpr uint64_t kSlotBytes = uint64_t{2} << 20;
  rows->push_back({.name = "dram.first_slot/" + SizeText(kSlotBytes),
                   .unit = "us",
                   .limit_is = FirstSlotContest::kLimitIs,
                   .goal = 1,
                   .higher_is_better = false,
                   .prepare = [](const BenchEnvironment& environment) {
                     return Prepare<FirstSlotContest>(kSlotBytes, environment);
                   }});
}

}  // namespace aquifer
