// When the tier leaves service, and how it comes back.
//
// A store that answers is well, whatever the answer: a miss, a full disk and a damaged blob say
// that it can be reached. It is out when it fails so many times in a row, or is silent for too long
// although it was asked. Who may read and write may be denied to remove (a bucket with an object
// lock): where a removal fails, the store is asked for something else, and that counts.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tier/durable/durable_tier_impl.h"

namespace aquifer {
namespace {

constexpr uint32_t kLatesToLeave = 3;
// What even a slow store moves: a large block may take as much longer than a stall.
constexpr int64_t kSlowNanosPerByte = 250;
constexpr int64_t kProbeDeadlineNanos = 5'000'000'000;
constexpr char kProbeName[] = "probe";  // It need not be there.

bool IsGone(const Status& status) {
  return status.code() == Code::kUnavailable || status.code() == Code::kLate;
}

}  // namespace

void DurableTierImpl::OnAnswer(const Trip& trip) {
  const BlobRequest& request = trip.request;
  const int64_t now = clock_->NowNanos();
  outstanding_.erase(trip.number);
  const bool moved = request.status.ok() && !request.existed;
  pace_.End(
      now, moved ? std::max(request.body_bytes, request.body.empty() ? 0 : request.blob_bytes) : 0);
  switch (request.status.code()) {
    case Code::kUnavailable:
      ++counters_.failed;
      silent_since_ = outstanding_.empty() ? INT64_MAX : now;
      // It may be denied what others are not: a server that takes no writes can be read.
      if (request.kind == BlobKind::kRemove || request.kind == BlobKind::kWrite) {
        return DoubtStore();
      }
      if (++failures_ >= options_.failures_to_leave) LeaveService(request.status);
      return;
    case Code::kLate:  // Not a word from the store.
      ++lates_;
      return;
    case Code::kBusy:
      ++counters_.busy;
      [[fallthrough]];
    default:
      failures_ = 0;
      lates_ = 0;
      silent_since_ = outstanding_.empty() ? INT64_MAX : now;
  }
}

int64_t DurableTierImpl::Allowance(const Trip& trip) const {
  return options_.stall_nanos + static_cast<int64_t>(trip.request.body.size()) * kSlowNanosPerByte;
}

void DurableTierImpl::ArmStall() {
  if (std::exchange(stall_armed_, true)) return;
  PostAt(clock_->NowNanos() + options_.stall_nanos / 4, [this] {
    stall_armed_ = false;
    CheckStall();
    if (silent_since_ != INT64_MAX) ArmStall();
  });
}

// One request that is under way for too long with no answer to any, or several that were given up
// by their callers over such a time.
void DurableTierImpl::CheckStall() {
  if (!in_service_ || silent_since_ == INT64_MAX) return;
  const int64_t now = clock_->NowNanos();
  bool stalled = lates_ >= kLatesToLeave && now - silent_since_ >= options_.stall_nanos;
  if (!outstanding_.empty()) {
    const Trip& oldest = *outstanding_.begin()->second;
    const int64_t since = std::max(oldest.submitted_nanos, silent_since_);
    stalled = stalled || now - since >= Allowance(oldest);
  } else if (lates_ < kLatesToLeave) {
    silent_since_ = INT64_MAX;  // Nobody asks any more; that is no silence.
  }
  if (!stalled) return;
  LeaveService(Status(Code::kUnavailable,
                      fmt::format("{} has answered nothing for {:.1f} s", store_->Describe(),
                                  static_cast<double>(now - silent_since_) / 1e9)));
}

void DurableTierImpl::LeaveService(const Status& why) {
  if (!in_service_) return;
  in_service_ = false;
  why_ = why;
  ++counters_.times_left;
  for (const auto& [id, batch] : ledger_.all()) SettleRest(batch, why_);
  if (listener_ != nullptr) {
    Post([this, why] { listener_->OnHealth(false, why); });
  }
  probe_after_nanos_ = options_.probe_interval_nanos;
  PostAt(clock_->NowNanos() + Jittered(probe_after_nanos_), [this] { ProbeStore(); });
}

void DurableTierImpl::AskStore(StoreTrips::Done then) {
  ++counters_.probes;
  const std::shared_ptr<Trip> trip =
      NewTrip(BlobKind::kLook, kProbeName, clock_->NowNanos() + kProbeDeadlineNanos);
  trip->request.head = {};
  Submit(trip, std::move(then));
}

// Until it answers, or has failed so often that it is out.
void DurableTierImpl::DoubtStore() {
  if (!in_service_ || std::exchange(doubted_, true)) return;
  AskStore([this](Trip& done) {
    doubted_ = false;
    if (IsGone(done.request.status)) DoubtStore();
  });
}

void DurableTierImpl::ProbeStore() {
  AskStore([this](Trip& done) { OnProbed(done); });
}

void DurableTierImpl::OnProbed(const Trip& trip) {
  const Status& status = trip.request.status;
  if (in_service_) {  // The first one, at the start.
    if (IsGone(status)) LeaveService(status);
    return;
  }
  if (IsGone(status)) {
    if (status.code() == Code::kUnavailable) why_ = status;
    probe_after_nanos_ = std::min(probe_after_nanos_ * 2, options_.max_probe_interval_nanos);
    return PostAt(clock_->NowNanos() + Jittered(probe_after_nanos_), [this] { ProbeStore(); });
  }
  in_service_ = true;
  why_ = Status();
  failures_ = 0;
  SweepAllSoon();
  if (listener_ != nullptr) {
    Post([this] { listener_->OnHealth(true, Status()); });
  }
}

// Within a quarter, so that nodes that lost a server together do not ask it together.
int64_t DurableTierImpl::Jittered(int64_t nanos) {
  const auto spread = static_cast<uint64_t>(std::max<int64_t>(nanos / 2, 1));
  return nanos - nanos / 4 + static_cast<int64_t>(random_->Next64() % spread);
}

}  // namespace aquifer
