#include "testing/cache/test_engine.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <ostream>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr int64_t kPatienceNanos = 120 * kDefaultTimeoutNanos;
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;
constexpr size_t kMaxBatchBlocks = 256;

BlockRange Clamp(const Chain& chain, const BlockRange& range) {
  BlockRange clamped = range;
  clamped.first = std::min(range.first, chain.size());
  clamped.count = std::min(range.count, chain.size() - clamped.first);
  return clamped;
}

bool HasRefusal(const ReserveRequest& reserve, Refusal refusal) {
  return std::any_of(reserve.ops.begin(), reserve.ops.end(), [&](const ReserveOp& op) {
    return op.outcome == ReserveOutcome::kRefused && op.refusal == refusal;
  });
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Recalled& recalled) {
  return out << recalled.right << " right, " << recalled.missed << " missed, " << recalled.late
             << " late, " << recalled.corrupt << " corrupt, " << recalled.failed << " failed, "
             << recalled.wrong << " wrong";
}

void PrintTo(Code code, std::ostream* out) { *out << CodeName(code); }
void PrintTo(Refusal refusal, std::ostream* out) { *out << RefusalName(refusal); }

TestEngine::TestEngine(Cache* cache, const Layout& layout) : cache_(cache), layout_(layout) {
  RegisterLayoutRequest request;
  request.layout = layout;
  cache_->RegisterLayout(&request);
  Finish(request);
  AQ_CHECK(request.status.ok());
  handle_ = request.handle;
}

ChainSlice TestEngine::Slice(const Chain& chain, const BlockRange& range) const {
  const BlockRange clamped = Clamp(chain, range);
  return {.layout = handle_,
          .group = range.group,
          .part = range.part,
          .keys = chain.keys(clamped.first, clamped.count)};
}

void TestEngine::Finish(const Request& request) const {
  AQ_CHECK(cache_->Wait(request, kPatienceNanos));
}

bool TestEngine::Eventually(const std::function<bool()>& holds, int seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    // Leaves the processor to whoever makes it come true.
    poll(nullptr, 0, 1);
  }
  return true;
}

std::unique_ptr<ReserveRequest> TestEngine::Reserve(const Chain& chain, const BlockRange& range) {
  auto request = std::make_unique<ReserveRequest>();
  request->chain = Slice(chain, range);
  request->parent = chain.parent(range.first);
  request->position = static_cast<uint32_t>(range.first);
  Eventually([&] {
    cache_->Reserve(request.get());
    Finish(*request);
    if (!request->status.ok() || !HasRefusal(*request, Refusal::kWarming)) return true;
    std::vector<ReservationId> given;
    for (const ReserveOp& op : request->ops) {
      if (op.outcome == ReserveOutcome::kSlot) given.push_back(op.reservation);
    }
    cache_->Abort(given);
    return false;
  });
  return request;
}

std::unique_ptr<CommitRequest> TestEngine::FillAndCommit(const Chain& chain,
                                                         const BlockRange& range,
                                                         const ReserveRequest& reserve) {
  auto commit = std::make_unique<CommitRequest>();
  for (size_t i = 0; i < reserve.ops.size(); ++i) {
    const ReserveOp& op = reserve.ops[i];
    if (op.outcome != ReserveOutcome::kSlot) continue;
    AQ_CHECK(op.slot.size() == BlockBytes(layout_, range.group));
    FillPayload(chain[range.first + i], range.group, op.slot);
    CommitOp& added = commit->ops.emplace_back();
    added.reservation = op.reservation;
    added.sums = SumLanes(op.slot, 0);
  }
  cache_->Commit(commit.get());
  Finish(*commit);
  return commit;
}

size_t TestEngine::BatchBlocks(uint16_t group) const {
  return std::clamp<size_t>(kBatchBytes / BlockBytes(layout_, group), 1, kMaxBatchBlocks);
}

size_t TestEngine::StoreOnce(const Chain& chain, const BlockRange& range) {
  auto reserve = Reserve(chain, range);
  size_t there = 0;
  for (const ReserveOp& op : reserve->ops) there += op.outcome == ReserveOutcome::kHave ? 1 : 0;
  const auto commit = FillAndCommit(chain, range, *reserve);
  for (const CommitOp& op : commit->ops) there += op.status.ok() && op.published ? 1 : 0;
  return there;
}

size_t TestEngine::Store(const Chain& chain, const BlockRange& range) {
  const BlockRange all = Clamp(chain, range);
  const size_t batch = BatchBlocks(range.group);
  size_t there = 0;
  for (size_t done = 0; done < all.count; done += batch) {
    BlockRange piece = all;
    piece.first = all.first + done;
    piece.count = std::min(batch, all.count - done);
    there += StoreOnce(chain, piece);
  }
  return there;
}

size_t TestEngine::StorePatiently(const Chain& chain, const BlockRange& range) {
  const BlockRange all = Clamp(chain, range);
  const size_t batch = BatchBlocks(range.group);
  size_t there = 0;
  for (size_t done = 0; done < all.count; done += batch) {
    BlockRange piece = all;
    piece.first = all.first + done;
    piece.count = std::min(batch, all.count - done);
    size_t stored = 0;
    Eventually([&] {
      stored = StoreOnce(chain, piece);
      if (stored == piece.count) return true;
      // The reason why the flush failed will show as blocks that find no room.
      static_cast<void>(Flush());
      return false;
    });
    there += stored;
  }
  return there;
}

std::unique_ptr<MatchRequest> TestEngine::Match(const Chain& chain, const BlockRange& range,
                                                size_t have) {
  auto request = std::make_unique<MatchRequest>();
  request->chain = Slice(chain, range);
  request->have = have;
  cache_->Match(request.get());
  Finish(*request);
  return request;
}

std::unique_ptr<FetchRequest> TestEngine::Fetch(const Chain& chain, const BlockRange& range,
                                                int64_t timeout_nanos) {
  auto request = std::make_unique<FetchRequest>();
  request->chain = Slice(chain, range);
  request->timeout_nanos = timeout_nanos;
  cache_->Fetch(request.get());
  Finish(*request);
  return request;
}

Recalled TestEngine::CheckAndRelease(const Chain& chain, const BlockRange& range,
                                     const FetchRequest& fetch) {
  Recalled recalled;
  for (size_t i = 0; i < fetch.ops.size(); ++i) {
    const FetchOp& op = fetch.ops[i];
    switch (op.status.code()) {
      case Code::kOk: {
        const bool right = op.bytes.size() == BlockBytes(layout_, range.group) &&
                           IsPayload(chain[range.first + i], range.group, op.bytes) &&
                           op.checksum == ChecksumOf(op.bytes) && op.lease != 0;
        ++(right ? recalled.right : recalled.wrong);
        break;
      }
      case Code::kNotFound:
        ++recalled.missed;
        break;
      case Code::kLate:
        ++recalled.late;
        break;
      case Code::kCorrupt:
        ++recalled.corrupt;
        break;
      default:
        ++recalled.failed;
    }
  }
  Release(fetch);
  return recalled;
}

Recalled TestEngine::Recall(const Chain& chain, const BlockRange& range) {
  const BlockRange all = Clamp(chain, range);
  const size_t batch = BatchBlocks(range.group);
  Recalled total;
  for (size_t done = 0; done < all.count; done += batch) {
    BlockRange piece = all;
    piece.first = all.first + done;
    piece.count = std::min(batch, all.count - done);
    const auto fetch = Fetch(chain, piece);
    const Recalled part = CheckAndRelease(chain, piece, *fetch);
    total.right += part.right;
    total.missed += part.missed;
    total.late += part.late;
    total.corrupt += part.corrupt;
    total.failed += part.failed + (fetch->status.ok() ? 0 : piece.count);
    total.wrong += part.wrong;
  }
  return total;
}

void TestEngine::Release(const FetchRequest& fetch) {
  std::vector<ReleaseOp> leases;
  for (const FetchOp& op : fetch.ops) {
    if (op.lease != 0) leases.push_back({.lease = op.lease, .corrupt = false});
  }
  cache_->Release(leases);
}

Status TestEngine::Flush(int64_t timeout_nanos) {
  FlushRequest request;
  request.timeout_nanos = timeout_nanos;
  cache_->Flush(&request);
  Finish(request);
  return request.status;
}

size_t TestEngine::Pin(const Chain& chain, int64_t seconds, const BlockRange& range) {
  PinRequest request;
  request.chain = Slice(chain, range);
  request.seconds = seconds;
  cache_->Pin(&request);
  Finish(request);
  return request.pinned;
}

std::unique_ptr<PrestageRequest> TestEngine::Prestage(const Chain& chain, const BlockRange& range) {
  auto request = std::make_unique<PrestageRequest>();
  request->chain = Slice(chain, range);
  request->timeout_nanos = 30 * kDefaultTimeoutNanos;
  cache_->Prestage(request.get());
  Finish(*request);
  return request;
}

std::unique_ptr<PrestageRequest> TestEngine::PrestageSession(const std::string& session) {
  auto request = std::make_unique<PrestageRequest>();
  request->chain.layout = handle_;
  request->session = session;
  request->timeout_nanos = 30 * kDefaultTimeoutNanos;
  cache_->Prestage(request.get());
  Finish(*request);
  return request;
}

std::unique_ptr<EvictRequest> TestEngine::Evict(const Chain& chain, const BlockRange& range) {
  auto request = std::make_unique<EvictRequest>();
  request->chain = Slice(chain, range);
  cache_->Evict(request.get());
  Finish(*request);
  return request;
}

std::unique_ptr<EvictRequest> TestEngine::EvictSession(const std::string& session) {
  auto request = std::make_unique<EvictRequest>();
  request->chain.layout = handle_;
  request->session = session;
  cache_->Evict(request.get());
  Finish(*request);
  return request;
}

std::unique_ptr<EvictRequest> TestEngine::EvictEverything() {
  auto request = std::make_unique<EvictRequest>();
  request->everything = true;
  cache_->Evict(request.get());
  Finish(*request);
  return request;
}

std::unique_ptr<DrainRequest> TestEngine::Drain() {
  auto request = std::make_unique<DrainRequest>();
  cache_->Drain(request.get());
  Finish(*request);
  return request;
}

void TestEngine::NameSession(const std::string& session, const Chain& chain, int64_t ttl_seconds) {
  SessionForecast forecast;
  forecast.session = session;
  forecast.chain = Slice(chain, {.first = chain.size() - 1, .count = 1});
  forecast.ttl_seconds = ttl_seconds;
  cache_->Hint(forecast);
}

CacheStats TestEngine::Stats() {
  StatsRequest request;
  cache_->Stats(&request);
  Finish(request);
  return std::move(request.stats);
}

TierStats TestEngine::StatsOf(TierKind tier) {
  const CacheStats all = Stats();
  for (const TierStats& stats : all.tiers) {
    if (stats.tier == tier) return stats;
  }
  TierStats none;
  none.in_service = false;
  return none;
}

}  // namespace aquifer
