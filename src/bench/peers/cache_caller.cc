#include "bench/peers/cache_caller.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kBatchBlocks = 64;
constexpr int64_t kPatienceNanos = 60 * kDefaultTimeoutNanos;
constexpr auto kRetryPause = std::chrono::milliseconds(1);
constexpr auto kPoolPause = std::chrono::milliseconds(10);
constexpr uint64_t kExtentBytes = uint64_t{64} << 20;
constexpr int kMaxRetries = 60'000;  // A minute of pauses.

}  // namespace

Result<NamedChain> MakeChain(const Layout& layout, std::string_view tenant, std::string_view name,
                             size_t blocks) {
  NamedChain chain;
  AQ_ASSIGN_OR_RETURN(chain.root, DeriveRoot({.tenant = tenant,
                                              .layout_fingerprint = LayoutFingerprint(layout),
                                              .cache_salt = name}));
  std::vector<uint32_t> tokens(blocks * layout.tokens_per_block);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i % 128'000);
  chain.keys.resize(blocks);
  AQ_RETURN_IF_ERROR(
      DeriveChain(chain.root, tokens, layout.tokens_per_block, {}, chain.keys).status());
  return chain;
}

Result<std::unique_ptr<CacheCaller>> CacheCaller::Open(const CacheOptions& options,
                                                       const Layout& layout) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Cache> cache, aquifer::Open(options, ClientOptions{}));
  return New(std::move(cache), layout);
}

Result<std::unique_ptr<CacheCaller>> CacheCaller::New(std::unique_ptr<Cache> cache,
                                                      const Layout& layout) {
  RegisterLayoutRequest request;
  request.layout = layout;
  cache->RegisterLayout(&request);
  if (!cache->Wait(request, kPatienceNanos)) {
    return Status(Code::kLate, "the cache does not answer");
  }
  AQ_RETURN_IF_ERROR(request.status);
  return std::unique_ptr<CacheCaller>(new CacheCaller(std::move(cache), request.handle));
}

Status CacheCaller::Finish(const Request& request) {
  if (!cache_->Wait(request, kPatienceNanos)) {
    return Status(Code::kLate, "the cache does not answer");
  }
  return request.status;
}

Result<size_t> CacheCaller::Store(const NamedChain& chain, const FillBlock& fill) {
  size_t stored = 0;
  int retries = 0;
  for (size_t first = 0; first < chain.keys.size(); first += kBatchBlocks) {
    const size_t count = std::min(kBatchBlocks, chain.keys.size() - first);
    std::vector<size_t> pending(count);
    for (size_t i = 0; i < count; ++i) pending[i] = first + i;
    while (!pending.empty()) {
      // Runs of neighbours go together: all of the batch at first, what was refused later.
      std::vector<size_t> refused;
      for (size_t begin = 0; begin < pending.size();) {
        size_t end = begin + 1;
        while (end < pending.size() && pending[end] == pending[end - 1] + 1) ++end;
        const size_t block = pending[begin];
        reserve_.chain = Slice(std::span(chain.keys).subspan(block, end - begin));
        reserve_.parent = chain.ParentOf(block);
        reserve_.position = static_cast<uint32_t>(block);
        cache_->Reserve(&reserve_);
        AQ_RETURN_IF_ERROR(Finish(reserve_));
        AQ_ASSIGN_OR_RETURN(const size_t filled, FillReserved(block, fill, &refused));
        stored += filled;
        begin = end;
      }
      pending = std::move(refused);
      if (pending.empty()) continue;
      if (++retries > kMaxRetries) {
        return Status(Code::kLate, "no memory to store in has become free for a minute");
      }
      std::this_thread::sleep_for(kRetryPause);
    }
  }
  return stored;
}

Result<size_t> CacheCaller::FillReserved(size_t first, const FillBlock& fill,
                                         std::vector<size_t>* refused) {
  commit_.ops.clear();
  for (size_t i = 0; i < reserve_.ops.size(); ++i) {
    const ReserveOp& op = reserve_.ops[i];
    switch (op.outcome) {
      case ReserveOutcome::kSlot: {
        CommitOp& commit = commit_.ops.emplace_back();
        commit.reservation = op.reservation;
        commit.sums = fill(first + i, op.slot);
        break;
      }
      case ReserveOutcome::kHave:
        break;
      case ReserveOutcome::kBeingFilled:
        refused->push_back(first + i);
        break;
      case ReserveOutcome::kRefused:
        if (op.refusal == Refusal::kQuota || op.refusal == Refusal::kDraining) {
          return Status(Code::kNoSpace,
                        fmt::format("the cache refuses a block: {}", RefusalName(op.refusal)));
        }
        refused->push_back(first + i);
        break;
    }
  }
  if (commit_.ops.empty()) return size_t{0};
  cache_->Commit(&commit_);
  AQ_RETURN_IF_ERROR(Finish(commit_));
  for (const CommitOp& op : commit_.ops) {
    AQ_RETURN_IF_ERROR(op.status);
    if (!op.published) return Status(Code::kUnavailable, "a whole block was not published");
  }
  return commit_.ops.size();
}

Status CacheCaller::ReserveSlots(ReserveRequest* request) {
  cache_->Reserve(request);
  return FinishSlots(request);
}

Status CacheCaller::FinishSlots(ReserveRequest* request) {
  for (int tries = 1;; ++tries) {
    AQ_RETURN_IF_ERROR(Finish(*request));
    const auto refused =
        std::find_if(request->ops.begin(), request->ops.end(),
                     [](const ReserveOp& op) { return op.outcome != ReserveOutcome::kSlot; });
    if (refused == request->ops.end()) return Status();
    if (refused->outcome == ReserveOutcome::kHave) {
      return Status(Code::kInvalid, "a block that should be new is there already");
    }
    std::vector<ReservationId> got;
    for (const ReserveOp& op : request->ops) {
      if (op.outcome == ReserveOutcome::kSlot) got.push_back(op.reservation);
    }
    cache_->Abort(got);
    if (tries == kMaxRetries) {
      return Status(Code::kLate, "no memory to store in has become free for a minute");
    }
    std::this_thread::sleep_for(kRetryPause);
    cache_->Reserve(request);
  }
}

Status CacheCaller::WaitForPool() {
  constexpr int kLooks = 100;  // Without a change.
  uint64_t pool_bytes = 0;
  for (int look = 0; look < kLooks; ++look) {
    AQ_ASSIGN_OR_RETURN(const CacheStats stats, Stats());
    const uint64_t now_bytes = stats.Counter("pool_bytes");
    if (now_bytes != pool_bytes) look = 0;
    pool_bytes = now_bytes;
    if (pool_bytes + kExtentBytes > stats.tiers[0].capacity_bytes) break;
    std::this_thread::sleep_for(kPoolPause);
  }
  return Status();
}

Status CacheCaller::Flush() {
  FlushRequest request;
  request.timeout_nanos = kPatienceNanos;
  cache_->Flush(&request);
  return Finish(request);
}

Status CacheCaller::EvictEverything() {
  EvictRequest request;
  request.everything = true;
  for (int tries = 0; tries < kMaxRetries; ++tries) {
    cache_->Evict(&request);
    Status status = Finish(request);
    if (status.code() != Code::kBusy) return status;
    std::this_thread::sleep_for(kRetryPause);  // The tiers have more to delete than they queue.
  }
  return request.status;
}

Result<CacheStats> CacheCaller::Stats() {
  StatsRequest request;
  cache_->Stats(&request);
  AQ_RETURN_IF_ERROR(Finish(request));
  return std::move(request.stats);
}

}  // namespace aquifer
