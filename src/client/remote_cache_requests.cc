// Sends the caller's requests, and everything that the caller gives back.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/request_progress.h"
#include "client/remote_cache.h"
#include "client/wake_event.h"

namespace aquifer {
namespace {

const Status kVoid(Code::kInvalid, "the reservation is void: the node that gave it is gone");

uint64_t IdOf(const ReleaseOp& op) { return op.lease; }
uint64_t IdOf(ReservationId id) { return id; }
ReleaseOp WithId(const ReleaseOp& op, uint64_t id) { return {.lease = id, .corrupt = op.corrupt}; }
ReservationId WithId(ReservationId, uint64_t id) { return id; }

// The node answers at the deadline. The answer takes a little longer on a busy host.
constexpr int64_t kGraceNanos = 50'000'000;

// How long a request may take. INT64_MAX: the client sets no limit.
int64_t TimeoutOf(const Request&) { return INT64_MAX; }
int64_t TimeoutOf(const FetchRequest& request) { return request.timeout_nanos; }
int64_t TimeoutOf(const PrestageRequest& request) { return request.timeout_nanos; }

std::string_view SessionName(const std::string& session) {
  return std::string_view(session).substr(0, kMaxNameBytes);
}

}  // namespace

uint64_t RemoteCache::Begin(Request* request, FrameKind kind, int64_t timeout_nanos) {
  if (session_ == nullptr) {
    SettleUnavailable({.request = request, .kind = kind}, kVoid);
    return 0;
  }
  const int64_t now = SystemClock()->NowNanos();
  const int64_t settle =
      DeadlineAfter(DeadlineAfter(now, std::max<int64_t>(timeout_nanos, 0)), kGraceNanos);
  const uint64_t number = session_->Begin(request, kind, settle);
  if (number == 0) {
    Settle(request, Status(Code::kBusy, "too many requests under way; wait for some"), 0);
  }
  look_nanos_ = std::min({look_nanos_, settle, now + Liveness::kLookNanos});
  return number;
}

// Wakes the node before anything else: the node has more to do.
void RemoteCache::Transmit() {
  session_->link()->Send(writer_.Finish());
  if (look_nanos_ >= awaken_nanos_) return;
  awaken_nanos_ = look_nanos_;
  Signal(changed_event_);
}

void RemoteCache::Settle(Request* request, const Status& status, size_t completed) {
  request->status = status;
  settled_.push_back({request, completed});
  SignalSelf();
}

bool RemoteCache::MayChange(Request* request) {
  if (!options_.observe) return true;
  Settle(request,
         Status(Code::kInvalid,
                "this client only observes (ConnectOptions::observe): it cannot flush, evict or "
                "drain"),
         0);
  return false;
}

// ---- Layouts ----

void RemoteCache::RegisterLayout(RegisterLayoutRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  request->handle = 0;
  SendLayout(request);
}

void RemoteCache::SendLayout(RegisterLayoutRequest* request) {
  // The client refuses a layout that cannot be encoded, with the node's own message.
  if (const Status valid = ValidateLayout(request->layout); !valid.ok()) {
    return Settle(request, valid, 0);
  }
  if (session_ == nullptr) {  // The client registers the layout when the node is back.
    request->handle = Know(request->layout, 0);
    return Settle(request, Status(), 1);
  }
  const uint64_t number = Begin(request, FrameKind::kRegisterLayout);
  if (number == 0) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kRegisterLayout), number);
  Encode(request->layout, &writer_);
  Transmit();
}

LayoutHandle RemoteCache::Know(const Layout& layout, LayoutHandle at_node) {
  const Digest fingerprint = LayoutFingerprint(layout);
  auto known = std::find_if(layouts_.begin(), layouts_.end(), [&](const KnownLayout& other) {
    return other.fingerprint == fingerprint;
  });
  if (known == layouts_.end()) known = layouts_.insert(known, {layout, fingerprint, 0});
  if (at_node != 0) known->at_node = at_node;
  return static_cast<LayoutHandle>(known - layouts_.begin()) + 1;
}

LayoutHandle RemoteCache::AtNode(LayoutHandle handle) const {
  return handle == 0 || handle > layouts_.size() ? 0 : layouts_[handle - 1].at_node;
}

// ---- Requests about a chain ----

// A request with more keys than fit in a frame goes on in further frames.
template <class R, class Call>
void RemoteCache::SendChain(R* request, FrameKind kind, Call call,
                            std::span<const uint64_t> hashes) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  const std::span<const Key> keys = request->chain.keys;
  if (keys.size() > kMaxItems) {
    return Settle(request, Status(Code::kInvalid, "chain.keys holds more than a million keys"), 0);
  }
  if (kind == FrameKind::kEvict && !MayChange(request)) return;
  const uint64_t number = Begin(request, kind, TimeoutOf(*request));
  if (number == 0) return;
  const auto items = [&](size_t first) {
    const size_t count = std::min<size_t>(keys.size() - first, kMaxItemsPerFrame);
    KeyItems some{.keys = keys.subspan(first, count), .engine_hashes = {}};
    if (!hashes.empty()) some.engine_hashes = std::as_bytes(hashes.subspan(first, count));
    return some;
  };
  call.chain.layout = AtNode(request->chain.layout);
  call.chain.group = request->chain.group;
  call.chain.part = request->chain.part;
  call.chain.total = static_cast<uint32_t>(keys.size());
  call.chain.items = items(0);
  writer_.Begin(static_cast<uint16_t>(kind), number);
  Encode(call, &writer_);
  Transmit();
  for (size_t first = kMaxItemsPerFrame; first < keys.size(); first += kMaxItemsPerFrame) {
    writer_.Begin(static_cast<uint16_t>(FrameKind::kMore), number);
    Encode(items(first), &writer_);
    Transmit();
  }
}

void RemoteCache::Match(MatchRequest* request) {
  SendChain(request, FrameKind::kMatch, MatchCall{.chain = {}, .have = request->have});
}

void RemoteCache::Fetch(FetchRequest* request) {
  SendChain(request, FrameKind::kFetch,
            FetchCall{.chain = {}, .timeout_nanos = request->timeout_nanos});
}

void RemoteCache::Reserve(ReserveRequest* request) {
  if (!request->engine_hashes.empty() &&
      request->engine_hashes.size() != request->chain.keys.size()) {
    RequestProgress::Begin(request);
    const MutexLock lock(&mutex_);
    return Settle(request,
                  Status(Code::kInvalid, "engine_hashes is neither empty nor one for each key"), 0);
  }
  SendChain(request, FrameKind::kReserve,
            ReserveCall{.chain = {}, .parent = request->parent, .position = request->position},
            request->engine_hashes);
}

void RemoteCache::Pin(PinRequest* request) {
  request->pinned = 0;
  SendChain(request, FrameKind::kPin, PinCall{.chain = {}, .seconds = request->seconds});
}

void RemoteCache::Prestage(PrestageRequest* request) {
  request->found = request->staged = 0;
  SendChain(request, FrameKind::kPrestage,
            PrestageCall{.chain = {},
                         .session = SessionName(request->session),
                         .timeout_nanos = request->timeout_nanos});
}

void RemoteCache::Evict(EvictRequest* request) {
  request->evicted = 0;
  SendChain(request, FrameKind::kEvict,
            EvictCall{.chain = {},
                      .session = SessionName(request->session),
                      .everything = request->everything});
}

// ---- Other requests ----

void RemoteCache::Commit(CommitRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  if (request->ops.size() > kMaxItems) {
    return Settle(request, Status(Code::kInvalid, "ops holds too many operations"), 0);
  }
  const uint64_t number = Begin(request, FrameKind::kCommit);
  if (number == 0) return;
  const std::span<const CommitOp> ops = request->ops;
  size_t first = 0;
  do {
    const size_t count = std::min<size_t>(ops.size() - first, kMaxItemsPerFrame);
    PackOps(ops.subspan(first, count));
    if (first == 0) {
      writer_.Begin(static_cast<uint16_t>(FrameKind::kCommit), number);
      Encode(CommitCall{.total = static_cast<uint32_t>(ops.size()), .ops = ops_}, &writer_);
    } else {
      writer_.Begin(static_cast<uint16_t>(FrameKind::kMore), number);
      EncodeOps(ops_, &writer_);
    }
    Transmit();
    first += count;
  } while (first < ops.size());
}

void RemoteCache::PackOps(std::span<const CommitOp> ops) {
  ops_.resize(ops.size() * kCommitOpBytes);
  for (size_t i = 0; i < ops.size(); ++i) {
    CommitOp op;
    op.head_begin = ops[i].head_begin;
    op.head_end = ops[i].head_end;
    op.sums = ops[i].sums;
    // A reservation that this node did not give becomes 0, which the node refuses.
    const Loan* const loan = loans_.Find(ops[i].reservation, true);
    if (loan != nullptr && loan->link == session_->link()) op.reservation = loan->node_id;
    EncodeCommitOp(op, std::span(ops_).subspan(i * kCommitOpBytes).first<kCommitOpBytes>());
  }
}

void RemoteCache::Flush(FlushRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  if (!MayChange(request)) return;
  const uint64_t number = Begin(request, FrameKind::kFlush, request->timeout_nanos);
  if (number == 0) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kFlush), number);
  Encode(FlushCall{.tier = request->tier, .timeout_nanos = request->timeout_nanos}, &writer_);
  Transmit();
}

void RemoteCache::Drain(DrainRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  request->left = 0;
  if (!MayChange(request)) return;
  const uint64_t number = Begin(request, FrameKind::kDrain, request->timeout_nanos);
  if (number == 0) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kDrain), number);
  Encode(DrainCall{.timeout_nanos = request->timeout_nanos}, &writer_);
  Transmit();
}

void RemoteCache::Stats(StatsRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  const uint64_t number = Begin(request, FrameKind::kStats);
  if (number == 0) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kStats), number);
  Transmit();
}

void RemoteCache::Cancel(Request* request) {
  if (!RequestProgress::BeginCancel(request)) return;
  const MutexLock lock(&mutex_);
  const uint64_t number = session_ == nullptr ? 0 : session_->NumberOf(request);
  if (number == 0) return;  // The request was completed already, or will be in the next Poll().
  SentRequest* const sent = session_->Find(number);
  // A layout is registered again with the next node. For a commit, only the node knows the outcome:
  // the caller sees a failure. At worst the node then has a block that the caller believes lost.
  if (sent->kind != FrameKind::kRegisterLayout) {
    const int64_t settle = SystemClock()->NowNanos() + kGraceNanos;
    session_->SettleBy(sent, settle);
    look_nanos_ = std::min(look_nanos_, settle);
  }
  writer_.Begin(static_cast<uint16_t>(FrameKind::kCancel), number);
  Transmit();
}

// ---- Notes ----

// Returns true if a hint or report can be sent. They do not queue up when the node is slow.
bool RemoteCache::TakeNote() {
  if (session_ == nullptr) return false;
  Link* const link = session_->link();
  if (!link->has_room()) link->Flush();
  if (link->has_room()) return true;
  ++dropped_notes_;
  return false;
}

void RemoteCache::Hint(const SessionForecast& forecast) {
  if (forecast.chain.keys.empty() || forecast.session.size() > kMaxNameBytes) return;
  const MutexLock lock(&mutex_);
  if (!TakeNote()) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kHint), 0);
  Encode(HintCall{.layout = AtNode(forecast.chain.layout),
                  .group = forecast.chain.group,
                  .part = forecast.chain.part,
                  .head = forecast.chain.keys.back(),
                  .session = forecast.session,
                  .state = forecast.state,
                  .priority = forecast.priority,
                  .ttl_seconds = forecast.ttl_seconds,
                  .durability = forecast.durability,
                  .return_seconds = forecast.return_seconds},
         session_->link()->version(), &writer_);
  Transmit();
}

void RemoteCache::ReportPrefill(const PrefillReport& report) {
  const MutexLock lock(&mutex_);
  if (!TakeNote()) return;
  PrefillReport known = report;
  known.layout = AtNode(report.layout);
  writer_.Begin(static_cast<uint16_t>(FrameKind::kReportPrefill), 0);
  Encode(known, &writer_);
  Transmit();
}

// ---- What is given back ----

void RemoteCache::Release(std::span<const ReleaseOp> leases) {
  const MutexLock lock(&mutex_);
  GiveBack(leases, FrameKind::kRelease);
}

void RemoteCache::Abort(std::span<const ReservationId> reservations) {
  const MutexLock lock(&mutex_);
  GiveBack(reservations, FrameKind::kAbort);
}

// Returns go also to a node that has cut us off: it waits for them.
template <class Op>
void RemoteCache::GiveBack(std::span<const Op> ops, FrameKind kind) {
  std::vector<Op> given;
  std::vector<uint32_t> extents;
  Link* to = nullptr;
  for (const Op& op : ops) {
    const Loan* const loan = loans_.Find(IdOf(op), kind == FrameKind::kAbort);
    if (loan == nullptr) continue;
    if (loan->link != to || given.size() == kMaxItemsPerFrame) {
      SendBack(std::span<const Op>(given), kind, to);
      LetGo(to, &extents);
      given.clear();
    }
    to = loan->link;
    given.push_back(WithId(op, loan->node_id));
    extents.push_back(loan->extent);
    loans_.Remove(IdOf(op));
  }
  SendBack(std::span<const Op>(given), kind, to);
  LetGo(to, &extents);
}

template void RemoteCache::GiveBack(std::span<const ReleaseOp>, FrameKind);
template void RemoteCache::GiveBack(std::span<const ReservationId>, FrameKind);

template <class Op>
void RemoteCache::SendBack(std::span<const Op> given, FrameKind kind, Link* to) {
  if (given.empty()) return;
  writer_.Begin(static_cast<uint16_t>(kind), 0);
  Encode(given, &writer_);
  to->Send(writer_.Finish());
}

template void RemoteCache::SendBack(std::span<const ReleaseOp>, FrameKind, Link*);
template void RemoteCache::SendBack(std::span<const ReservationId>, FrameKind, Link*);

// Called after the node was told of every return in these extents: it may now hear of the extents.
void RemoteCache::LetGo(Link* link, std::vector<uint32_t>* extents) {
  if (extents->empty()) return;
  for (const uint32_t extent : *extents) link->LetGo(extent);
  extents->clear();
  const bool last = link->over() && link->held() == 0;
  if (last || link->has_unsent()) Signal(changed_event_);  // The link thread does the rest.
}

// A node that has cut us off keeps the slot until it hears that nobody writes there.
void RemoteCache::EndReservation(ReservationId id) {
  const Loan* const loan = loans_.Find(id, true);
  if (loan == nullptr) return;
  Link* const link = loan->link;
  if (link->over()) return GiveBack(std::span<const ReservationId>(&id, 1), FrameKind::kAbort);
  link->LetGo(loan->extent);
  loans_.Remove(id);
}

}  // namespace aquifer
