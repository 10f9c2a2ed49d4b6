#include "bench/bench_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "bench/peers/bench_layout.h"

namespace aquifer {
namespace {

constexpr std::string_view kCopiedCounter = "dram_copied_bytes";
constexpr uint64_t kLargeBlockBytes = uint64_t{1} << 20;

}  // namespace

Result<WarmBlocks> StoreWarmBlocks(std::unique_ptr<CacheCaller> caller, uint64_t block_bytes,
                                   uint64_t bytes) {
  WarmBlocks blocks;
  blocks.block_bytes = block_bytes;
  blocks.caller = std::move(caller);
  AQ_RETURN_IF_ERROR(blocks.caller->WaitForPool());
  AQ_ASSIGN_OR_RETURN(blocks.chain, MakeChain(BenchLayout(block_bytes), ClientOptions{}.tenant,
                                              "bench.warm", bytes / block_bytes));
  AQ_ASSIGN_OR_RETURN(blocks.memory, BenchMemory::New(bytes));
  FillFromSeed(blocks.memory.bytes(), block_bytes);
  AQ_RETURN_IF_ERROR(blocks.caller
                         ->Store(blocks.chain,
                                 [&](size_t block, std::span<std::byte> slot) {
                                   return blocks.CopyIn(block, slot);
                                 })
                         .status());
  return blocks;
}

Status BatchFetcher::Lease(size_t batch) {
  Ask(batch);
  return Finish();
}

void BatchFetcher::Ask(size_t batch) {
  fetch_.chain = blocks_->caller->Slice(blocks_->Batch(batch));
  blocks_->caller->cache()->Fetch(&fetch_);
}

Status BatchFetcher::Finish() const {
  AQ_RETURN_IF_ERROR(blocks_->caller->Finish(fetch_));
  return Check();
}

Status BatchFetcher::Check() const {
  AQ_RETURN_IF_ERROR(fetch_.status);
  for (const FetchOp& op : fetch_.ops) {
    AQ_RETURN_IF_ERROR(op.status);
    if (op.tier != TierKind::kDram) return Status(Code::kInvalid, "a block was not in DRAM");
  }
  return Status();
}

Status BatchFetcher::CopyOut(size_t batch) const {
  for (size_t i = 0; i < fetch_.ops.size(); ++i) {
    const FetchOp& op = fetch_.ops[i];
    const LaneSums sums = CopyAndSumLanes(op.bytes, 0, PlaceOf(batch, i));
    if (FinishChecksum(sums, op.bytes.size()) != op.checksum) {
      return Status(Code::kCorrupt, "a block is not what its checksum says");
    }
  }
  return Status();
}

void BatchFetcher::MemcpyOut(size_t batch) const {
  for (size_t i = 0; i < fetch_.ops.size(); ++i) {
    std::memcpy(PlaceOf(batch, i), fetch_.ops[i].bytes.data(), blocks_->block_bytes);
  }
}

std::byte* BatchFetcher::PlaceOf(size_t batch, size_t op) const {
  return blocks_->Place(batch * kFetchBatchBlocks + op).data();
}

void BatchFetcher::Release() {
  releases_.clear();
  for (const FetchOp& op : fetch_.ops) releases_.push_back({.lease = op.lease});
  blocks_->caller->cache()->Release(releases_);
}

double FetchContest::GoalFor(uint64_t block_bytes) {
  return block_bytes >= kLargeBlockBytes ? 0.95 : 0.80;
}

Result<uint64_t> FetchContest::CopiedBytes(const WarmBlocks& blocks) {
  AQ_ASSIGN_OR_RETURN(const CacheStats stats, blocks.caller->Stats());
  return stats.Counter(kCopiedCounter);
}

Result<double> FetchContest::Limit() {
  double seconds = 0;
  for (size_t batch = 0; batch < blocks_.batches(); ++batch) {
    AQ_RETURN_IF_ERROR(fetchers_[0].Lease(batch));
    const Stopwatch watch;
    fetchers_[0].MemcpyOut(batch);
    seconds += watch.Seconds();
    fetchers_[0].Release();
  }
  return GigabytesPerSecond(blocks_.memory.bytes().size(), seconds);
}

Result<double> FetchContest::Ours() {
  const size_t batches = blocks_.batches();
  const Stopwatch watch;
  fetchers_[0].Ask(0);
  for (size_t batch = 0; batch < batches; ++batch) {
    BatchFetcher& fetcher = fetchers_[batch % fetchers_.size()];
    AQ_RETURN_IF_ERROR(fetcher.Finish());
    if (batch + 1 < batches) fetchers_[(batch + 1) % fetchers_.size()].Ask(batch + 1);
    AQ_RETURN_IF_ERROR(fetcher.CopyOut(batch));
    fetcher.Release();
  }
  const double seconds = watch.Seconds();
  AQ_ASSIGN_OR_RETURN(const uint64_t copied, CopiedBytes(blocks_));
  if (copied != copied_before_) {
    return Status(Code::kInvalid, "the cache copied payload to lend it");
  }
  return GigabytesPerSecond(blocks_.memory.bytes().size(), seconds);
}

Result<double> FirstSlotContest::Ours() {
  const bool idle = pause_.count() > 0;
  const size_t fetches = idle ? 100 : 2000;
  std::vector<double> micros;
  micros.reserve(fetches);
  for (size_t i = 0; i < fetches; ++i) {
    fetch_.chain = blocks_.caller->Slice(
        std::span(blocks_.chain.keys).subspan(i % blocks_.chain.keys.size(), 1));
    if (idle) std::this_thread::sleep_for(pause_);
    const Stopwatch watch;
    blocks_.caller->cache()->Fetch(&fetch_);
    AQ_RETURN_IF_ERROR(blocks_.caller->Finish(fetch_));
    micros.push_back(watch.Seconds() * 1e6);
    AQ_RETURN_IF_ERROR(fetch_.ops[0].status);
    const ReleaseOp release{.lease = fetch_.ops[0].lease};
    blocks_.caller->cache()->Release(std::span(&release, 1));
  }
  all_micros_.insert(all_micros_.end(), micros.begin(), micros.end());
  const auto middle = micros.begin() + static_cast<std::ptrdiff_t>(fetches / 2);
  std::nth_element(micros.begin(), middle, micros.end());
  return *middle;
}

std::string FirstSlotContest::Note() const {
  std::vector<double> micros = all_micros_;
  if (micros.empty()) return {};
  const auto at = micros.begin() + static_cast<std::ptrdiff_t>(micros.size() * 99 / 100);
  std::nth_element(micros.begin(), at, micros.end());
  return fmt::format("p99 {:.1f} us, over {} fetches", *at, micros.size());
}

}  // namespace aquifer
