#include "client/remote_cache.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "base/request_progress.h"
#include "base/thread_name.h"
#include "net/default_socket.h"

namespace aquifer {
namespace {

constexpr int64_t kSpinNanos = 50'000;
constexpr int64_t kYieldNanos = 5'000;  // An answer usually takes less.
constexpr int64_t kFirstRetryNanos = 20'000'000;
constexpr int64_t kLastRetryNanos = 500'000'000;
constexpr int64_t kDialNanos = 2'000'000'000;
constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr size_t kFramesPerPoll = 64;

const Status kNoNode(Code::kUnavailable, "the node is away; the client looks for it");

const Status kVoid(Code::kInvalid, "the reservation is void: the node that gave it is gone");
constexpr std::string_view kDroppedNotes = "dropped_notes";

std::string DefaultSocket() {
  if (const char* named = std::getenv("AQUIFER_SOCKET"); named != nullptr) return named;
  SocketPlaces places;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr) {
    places.runtime_directory = runtime;
  }
  const std::vector<std::string> sockets = DefaultSockets(places, ::geteuid());
  const auto there = std::find_if(sockets.begin(), sockets.end(), [](const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
  });
  return there == sockets.end() ? sockets.front() : *there;
}

// All ranks of an engine name it; one that does not is an engine of its own, and stays the same one
// when it connects again.
std::string NameOf(const std::string& engine) {
  if (!engine.empty()) return engine;
  return fmt::format("unnamed-{:016x}{:016x}", SystemRandom()->Next64(), SystemRandom()->Next64());
}

int MillisFor(int64_t nanos) {
  // Rounded up, so that nobody wakes just before the time is over and spins.
  return static_cast<int>(std::clamp<int64_t>(nanos / kNanosPerMilli + 1, 0, INT_MAX));
}

uint64_t IdOf(const ReleaseOp& op) { return op.lease; }
uint64_t IdOf(ReservationId id) { return id; }
ReleaseOp WithId(const ReleaseOp& op, uint64_t id) { return {.lease = id, .corrupt = op.corrupt}; }
ReservationId WithId(ReservationId, uint64_t id) { return id; }

void Signal(const Descriptor& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
}

void Clear(const Descriptor& event) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event.get(), &count, sizeof(count));
}

}  // namespace

Result<std::unique_ptr<Cache>> Connect(const ConnectOptions& options, const ClientOptions& client) {
  return RemoteCache::New(options, client);
}

// ---- Life ----

Result<std::unique_ptr<Cache>> RemoteCache::New(const ConnectOptions& options,
                                                const ClientOptions& client) {
  if (client.tenant.empty() || client.tenant.size() > 64) {
    return Status(Code::kInvalid, "tenant is not 1 to 64 bytes long");
  }
  for (const std::string* const text : {&client.engine, &options.token}) {
    if (text->size() > kMaxNameBytes) {
      return Status(Code::kInvalid, "engine and token are at most 256 bytes long");
    }
  }
  std::unique_ptr<RemoteCache> cache(new RemoteCache(options, client));
  AQ_RETURN_IF_ERROR(cache->Start());
  return std::unique_ptr<Cache>(std::move(cache));
}

RemoteCache::RemoteCache(const ConnectOptions& options, const ClientOptions& client)
    : options_{.socket = options.socket.empty() ? DefaultSocket() : options.socket,
               .token = options.token,
               .observe = options.observe,
               .timeout_nanos = options.timeout_nanos},
      client_{.tenant = client.tenant, .engine = NameOf(client.engine)},
      event_(::epoll_create1(EPOLL_CLOEXEC)),
      self_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Status RemoteCache::Start() {
  epoll_event wanted{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!event_.valid() || !self_event_.valid() || !stop_event_.valid() ||
      ::epoll_ctl(event_.get(), EPOLL_CTL_ADD, self_event_.get(), &wanted) != 0) {
    return Status(Code::kUnavailable, std::string("eventfd: ") + std::strerror(errno) +
                                          "; raise the limit on open files (ulimit -n)");
  }
  const int64_t now = SystemClock()->NowNanos();
  const int64_t deadline_nanos =
      options_.timeout_nanos > INT64_MAX - now ? INT64_MAX : now + options_.timeout_nanos;
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, Dial(deadline_nanos));
  {
    const MutexLock lock(&mutex_);
    Adopt(std::move(link));
  }
  thread_ = std::thread([this] { Watch(); });
  return Status();
}

RemoteCache::~RemoteCache() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Signal(stop_event_);
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<Cache>> RemoteCache::Join(const ClientOptions& options) {
  return New(options_, options);
}

Result<std::unique_ptr<Link>> RemoteCache::Dial(int64_t deadline_nanos) const {
  return Link::Open(options_.socket,
                    {.tenant = client_.tenant,
                     .token = options_.token,
                     .engine = client_.engine,
                     .observe = options_.observe},
                    deadline_nanos);
}

void RemoteCache::Adopt(std::unique_ptr<Link> link) {
  link_ = std::move(link);
  epoll_event wanted{.events = EPOLLIN, .data = {.u64 = 0}};
  ::epoll_ctl(event_.get(), EPOLL_CTL_ADD, link_->event(), &wanted);
  free_sent_.clear();
  sent_.resize(link_->max_requests());
  for (uint32_t i = 0; i < sent_.size(); ++i) free_sent_.push_back(i);
}

void RemoteCache::Lose() {
  // What was answered before the end still counts.
  while (ReadAnswers() > 0) {
  }
  for (Sent& sent : sent_) {
    if (sent.request == nullptr) continue;
    SettleUnavailable(sent, kNoNode);
    sent.request = nullptr;
    ++sent.generation;
  }
  for (KnownLayout& known : layouts_) known.at_node = 0;
  ::epoll_ctl(event_.get(), EPOLL_CTL_DEL, link_->event(), nullptr);
  link_->SetOver();
  unmapped_ = link_->TakeUnheld();
  old_links_.push_back(std::move(link_));
  DropOldLinks();
  SignalSelf();
}

void RemoteCache::DropOldLinks() {
  std::erase_if(old_links_, [](const std::unique_ptr<Link>& link) { return link->held() == 0; });
}

void RemoteCache::SignalSelf() {
  may_be_readable_ = true;
  Signal(self_event_);
}

// ---- The thread ----

void RemoteCache::Watch() {
  NameThisThread("aq-link");
  while (true) {
    int socket = -1;
    {
      const MutexLock lock(&mutex_);
      if (stopping_) return;
      if (link_ != nullptr) socket = link_->socket();
    }
    if (socket < 0) {
      Reconnect();
      continue;
    }
    if (SleepFor(INT64_MAX, socket)) return;
    std::vector<SharedMemory> unmapped;
    const MutexLock lock(&mutex_);
    if (link_ != nullptr && !link_->ReadSocket().ok()) Lose();
    unmapped.swap(unmapped_);
  }
}

// True: it is time to stop.
bool RemoteCache::SleepFor(int64_t nanos, int descriptor) {
  pollfd waits[] = {{.fd = stop_event_.get(), .events = POLLIN, .revents = 0},
                    {.fd = descriptor, .events = POLLIN, .revents = 0}};
  [[maybe_unused]] const int ready =
      ::poll(waits, descriptor < 0 ? 1 : 2, nanos == INT64_MAX ? -1 : MillisFor(nanos));
  return waits[0].revents != 0;
}

void RemoteCache::Reconnect() {
  for (int64_t wait = kFirstRetryNanos;; wait = std::min(2 * wait, kLastRetryNanos)) {
    if (SleepFor(wait, -1)) return;
    Result<std::unique_ptr<Link>> link = Dial(SystemClock()->NowNanos() + kDialNanos);
    if (!link.ok()) continue;
    std::vector<Layout> layouts;
    {
      const MutexLock lock(&mutex_);
      for (const KnownLayout& known : layouts_) layouts.push_back(known.layout);
    }
    std::vector<LayoutHandle> handles;
    if (!RegisterLayoutsAt(link->get(), layouts, &handles).ok()) continue;
    const MutexLock lock(&mutex_);
    if (layouts_.size() != handles.size()) continue;  // There are more by now.
    for (size_t i = 0; i < handles.size(); ++i) layouts_[i].at_node = handles[i];
    Adopt(*std::move(link));
    SignalSelf();
    return;
  }
}

// One after the other: there are few, and nobody else uses the link yet.
Status RemoteCache::RegisterLayoutsAt(Link* link, const std::vector<Layout>& layouts,
                                      std::vector<LayoutHandle>* handles) {
  const int64_t deadline_nanos = SystemClock()->NowNanos() + kDialNanos;
  FrameWriter writer;
  std::vector<std::byte> frame;
  for (const Layout& layout : layouts) {
    writer.Begin(static_cast<uint16_t>(FrameKind::kRegisterLayout), 0);
    Encode(layout, &writer);
    link->Send(writer.Finish());
    while (true) {
      Status status = link->Receive(&frame);
      if (status.ok()) break;
      if (status.code() != Code::kNotFound) return status;
      if (SystemClock()->NowNanos() > deadline_nanos) return Status(Code::kLate);
      if (!link->PrepareToSleep()) continue;
      if (SleepFor(kLastRetryNanos, link->event())) return Status(Code::kUnavailable);
      link->ClearEvent();
    }
    FrameReader reader(frame);
    AnswerHead head;
    Decode(&reader, &head);
    CountsAnswer counts;
    Decode(&reader, &counts);
    AQ_RETURN_IF_ERROR(reader.End());
    handles->push_back(static_cast<LayoutHandle>(counts.first));
  }
  return Status();
}

// ---- Requests ----

uint64_t RemoteCache::Begin(Request* request, FrameKind kind) {
  if (link_ == nullptr) {
    SettleUnavailable({.request = request, .kind = kind}, kVoid);
    return 0;
  }
  if (free_sent_.empty()) {
    Settle(request, Status(Code::kBusy, "too many requests under way; wait for some"), 0);
    return 0;
  }
  const uint32_t place = free_sent_.back();
  free_sent_.pop_back();
  sent_[place].request = request;
  sent_[place].kind = kind;
  sent_[place].received = 0;
  return uint64_t{sent_[place].generation} << 32 | place;
}

void RemoteCache::Settle(Request* request, const Status& status, size_t completed) {
  request->status = status;
  settled_.push_back({request, completed});
  SignalSelf();
}

// Everything is missing.
void RemoteCache::SettleUnavailable(const Sent& sent, const Status& commits) {
  size_t completed = 0;
  switch (sent.kind) {
    case FrameKind::kMatch: {
      auto* const match = static_cast<MatchRequest*>(sent.request);
      match->matched = match->pays = 0;
      match->load_ms = match->recompute_ms = 0;
      match->runs.clear();
      break;
    }
    case FrameKind::kFetch: {
      auto* const fetch = static_cast<FetchRequest*>(sent.request);
      completed = fetch->ops.size();
      for (size_t i = sent.received; i < completed; ++i) {
        fetch->ops[i] = FetchOp{};
        fetch->ops[i].status = kNoNode;
      }
      break;
    }
    case FrameKind::kReserve: {
      auto* const reserve = static_cast<ReserveRequest*>(sent.request);
      completed = reserve->ops.size();
      for (size_t i = sent.received; i < completed; ++i) {
        reserve->ops[i] = ReserveOp{};
        reserve->ops[i].refusal = Refusal::kFull;
      }
      break;
    }
    case FrameKind::kCommit: {
      auto* const commit = static_cast<CommitRequest*>(sent.request);
      completed = commit->ops.size();
      for (size_t i = sent.received; i < completed; ++i) {
        CommitOp& op = commit->ops[i];
        op.status = commits;
        op.published = false;
        if (Held* const held = FindHeld(op.reservation, true); held != nullptr) FreeHeld(held);
      }
      break;
    }
    default:
      break;
  }
  Settle(sent.request, kNoNode, completed);
}

LayoutHandle RemoteCache::AtNode(LayoutHandle handle) const {
  return handle == 0 || handle > layouts_.size() ? 0 : layouts_[handle - 1].at_node;
}

void RemoteCache::RegisterLayout(RegisterLayoutRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  request->handle = 0;
  if (link_ == nullptr) {  // The node will hear of it when it is back.
    const Status valid = ValidateLayout(request->layout);
    if (valid.ok()) {
      layouts_.push_back({request->layout, 0});
      request->handle = static_cast<LayoutHandle>(layouts_.size());
    }
    return Settle(request, valid, 1);
  }
  const uint64_t number = Begin(request, FrameKind::kRegisterLayout);
  if (number == 0) return;
  if (const Status valid = ValidateLayout(request->layout); !valid.ok()) {
    // What cannot be encoded is refused here, in the node's words.
    sent_[static_cast<uint32_t>(number)].request = nullptr;
    free_sent_.push_back(static_cast<uint32_t>(number));
    return Settle(request, valid, 0);
  }
  writer_.Begin(static_cast<uint16_t>(FrameKind::kRegisterLayout), number);
  Encode(request->layout, &writer_);
  Transmit();
}

// A request of more keys than fit in a frame goes on in further ones.
template <class R, class Call>
void RemoteCache::SendChain(R* request, FrameKind kind, Call call,
                            std::span<const uint64_t> hashes) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  const std::span<const Key> keys = request->chain.keys;
  if (keys.size() > kMaxItems) {
    return Settle(request, Status(Code::kInvalid, "chain.keys holds more than a million keys"), 0);
  }
  const uint64_t number = Begin(request, kind);
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
                         .session = std::string_view(request->session).substr(0, kMaxNameBytes),
                         .timeout_nanos = request->timeout_nanos});
}

void RemoteCache::Evict(EvictRequest* request) {
  request->evicted = 0;
  SendChain(request, FrameKind::kEvict,
            EvictCall{.chain = {},
                      .session = std::string_view(request->session).substr(0, kMaxNameBytes),
                      .everything = request->everything});
}

void RemoteCache::Commit(CommitRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  if (request->ops.size() > kMaxItems) {
    return Settle(request, Status(Code::kInvalid, "ops holds too many operations"), 0);
  }
  const uint64_t number = Begin(request, FrameKind::kCommit);
  if (number == 0) return;
  size_t first = 0;
  do {
    const size_t count = std::min<size_t>(request->ops.size() - first, kMaxItemsPerFrame);
    ops_.resize(count * kCommitOpBytes);
    for (size_t i = 0; i < count; ++i) {
      CommitOp op;
      op.head_begin = request->ops[first + i].head_begin;
      op.head_end = request->ops[first + i].head_end;
      op.sums = request->ops[first + i].sums;
      // One that this node did not give is none: 0 is refused.
      const Held* const held = FindHeld(request->ops[first + i].reservation, true);
      op.reservation = held != nullptr && held->link == link_.get() ? held->node_id : 0;
      EncodeCommitOp(op, std::span(ops_).subspan(i * kCommitOpBytes).first<kCommitOpBytes>());
    }
    if (first == 0) {
      writer_.Begin(static_cast<uint16_t>(FrameKind::kCommit), number);
      Encode(CommitCall{.total = static_cast<uint32_t>(request->ops.size()), .ops = ops_},
             &writer_);
    } else {
      writer_.Begin(static_cast<uint16_t>(FrameKind::kMore), number);
      EncodeOps(ops_, &writer_);
    }
    Transmit();
    first += count;
  } while (first < request->ops.size());
}

void RemoteCache::Flush(FlushRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  const uint64_t number = Begin(request, FrameKind::kFlush);
  if (number == 0) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kFlush), number);
  Encode(FlushCall{.tier = request->tier, .timeout_nanos = request->timeout_nanos}, &writer_);
  Transmit();
}

void RemoteCache::Drain(DrainRequest* request) {
  RequestProgress::Begin(request);
  const MutexLock lock(&mutex_);
  request->left = 0;
  const uint64_t number = Begin(request, FrameKind::kDrain);
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
  if (link_ == nullptr) return;
  const auto found = std::find_if(sent_.begin(), sent_.end(),
                                  [request](const Sent& sent) { return sent.request == request; });
  if (found == sent_.end()) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kCancel),
                uint64_t{found->generation} << 32 | static_cast<uint32_t>(found - sent_.begin()));
  Transmit();
}

// Hints and reports do not queue up when the node is slow.
bool RemoteCache::TakeNote() {
  if (link_ == nullptr) return false;
  if (!link_->has_room()) link_->Flush();
  if (link_->has_room()) return true;
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
                  .ttl_seconds = forecast.ttl_seconds},
         &writer_);
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

// ---- What is held ----

uint64_t RemoteCache::NewHeld(uint64_t node_id, uint32_t extent, bool reservation) {
  uint32_t place = 0;
  if (free_held_.empty()) {
    place = static_cast<uint32_t>(held_.size());
    held_.emplace_back().place = place;
  } else {
    place = free_held_.back();
    free_held_.pop_back();
  }
  Held& held = held_[place];
  held.node_id = node_id;
  held.link = link_.get();
  held.extent = extent;
  held.reservation = reservation;
  return uint64_t{held.generation} << 32 | place;
}

RemoteCache::Held* RemoteCache::FindHeld(uint64_t id, bool reservation) {
  const auto place = static_cast<uint32_t>(id);
  if (place >= held_.size()) return nullptr;
  Held& held = held_[place];
  const bool same =
      held.link != nullptr && held.generation == id >> 32 && held.reservation == reservation;
  return same ? &held : nullptr;
}

void RemoteCache::FreeHeld(Held* held) {
  held->link->LetGo(held->extent);
  held->link = nullptr;
  ++held->generation;
  free_held_.push_back(held->place);
}

// Also to a node that has cut us off: it waits for these.
template <class Op>
void RemoteCache::GiveBack(std::span<const Op> ops, FrameKind kind) {
  std::vector<Op> given;
  Link* to = nullptr;
  for (const Op& op : ops) {
    Held* const held = FindHeld(IdOf(op), kind == FrameKind::kAbort);
    if (held == nullptr) continue;
    if (held->link != to || given.size() == kMaxItemsPerFrame) {
      SendBack(std::span<const Op>(given), kind, to);
      given.clear();
    }
    to = held->link;
    given.push_back(WithId(op, held->node_id));
    FreeHeld(held);
  }
  SendBack(std::span<const Op>(given), kind, to);
  DropOldLinks();
}

template <class Op>
void RemoteCache::SendBack(std::span<const Op> given, FrameKind kind, Link* to) {
  if (given.empty()) return;
  writer_.Begin(static_cast<uint16_t>(kind), 0);
  Encode(given, &writer_);
  to->Send(writer_.Finish());
}

void RemoteCache::Release(std::span<const ReleaseOp> leases) {
  const MutexLock lock(&mutex_);
  GiveBack(leases, FrameKind::kRelease);
}

void RemoteCache::Abort(std::span<const ReservationId> reservations) {
  const MutexLock lock(&mutex_);
  GiveBack(reservations, FrameKind::kAbort);
}

// ---- Answers ----

size_t RemoteCache::Poll() {
  std::vector<SharedMemory> unmapped;
  const MutexLock lock(&mutex_);
  size_t moved = Apply();
  while (moved == 0 && !PrepareToSleep()) moved = Apply();
  unmapped.swap(unmapped_);
  return moved;
}

size_t RemoteCache::Apply() {
  size_t moved = 0;
  if (link_ != nullptr) {
    const bool flushed = link_->Flush();
    moved += ReadAnswers();
    if (!flushed || link_->over()) Lose();
  }
  for (const Settled& settled : settled_) {
    RequestProgress::Advance(settled.request, settled.completed, true);
  }
  moved += settled_.size();
  settled_.clear();
  return moved;
}

bool RemoteCache::PrepareToSleep() {
  if (std::exchange(may_be_readable_, false)) {
    Clear(self_event_);
    if (link_ != nullptr) link_->ClearEvent();
  }
  if (link_ == nullptr) return true;
  if (!link_->PrepareToSleep()) return false;
  may_be_readable_ = true;  // From now on.
  return true;
}

size_t RemoteCache::ReadAnswers() {
  size_t moved = 0;
  while (link_ != nullptr && moved < kFramesPerPoll) {
    Status status = link_->Receive(&frame_);
    if (status.code() == Code::kNotFound) break;
    if (status.ok()) status = TakeAnswer(frame_);
    if (!status.ok()) {
      link_->SetOver();
      break;
    }
    ++moved;
  }
  return moved;
}

Status RemoteCache::TakeAnswer(std::span<const std::byte> frame) {
  FrameReader reader(frame);
  if (reader.header().kind != static_cast<uint16_t>(FrameKind::kAnswer)) {
    return Status(Code::kInvalid, "a kind of frame that there is not");
  }
  AnswerHead head;
  Decode(&reader, &head);
  const uint64_t number = reader.header().number;
  const auto place = static_cast<uint32_t>(number);
  if (place >= sent_.size() || sent_[place].request == nullptr ||
      sent_[place].generation != number >> 32) {
    return Status(Code::kInvalid, "an answer to a question that was not asked");
  }
  Sent& sent = sent_[place];
  if (head.first != sent.received) return Status(Code::kInvalid, "answers out of their order");
  if (head.done) TakeSummary(&sent, &reader);
  AQ_RETURN_IF_ERROR(TakeItems(&sent, head, &reader));
  AQ_RETURN_IF_ERROR(reader.End());
  sent.received += head.count;
  Request* const request = sent.request;
  if (head.done) {
    request->status =
        head.code == Code::kOk ? Status() : Status(head.code, std::string(head.message));
    sent.request = nullptr;
    ++sent.generation;
    free_sent_.push_back(place);
  }
  const bool has_ops = sent.kind == FrameKind::kFetch || sent.kind == FrameKind::kReserve ||
                       sent.kind == FrameKind::kCommit;
  RequestProgress::Advance(
      request, has_ops ? sent.received : (head.done && head.code == Code::kOk ? 1 : 0), head.done);
  return Status();
}

Status RemoteCache::TakeItems(Sent* sent, const AnswerHead& head, FrameReader* frame) {
  const auto room = [&head](size_t ops) {
    return head.first <= ops && head.count <= ops - head.first;
  };
  switch (sent->kind) {
    case FrameKind::kMatch: {
      auto* const match = static_cast<MatchRequest*>(sent->request);
      if (head.first == 0) match->runs.clear();
      for (uint32_t i = 0; i < head.count && frame->left() > 0; ++i) {
        Decode(frame, &match->runs.emplace_back());
      }
      return Status();
    }
    case FrameKind::kFetch: {
      auto* const fetch = static_cast<FetchRequest*>(sent->request);
      if (!room(fetch->ops.size())) break;
      TakeFetched(fetch, head, frame);
      return Status();
    }
    case FrameKind::kReserve: {
      auto* const reserve = static_cast<ReserveRequest*>(sent->request);
      if (!room(reserve->ops.size())) break;
      TakeReserved(reserve, head, frame);
      return Status();
    }
    case FrameKind::kCommit: {
      auto* const commit = static_cast<CommitRequest*>(sent->request);
      if (!room(commit->ops.size())) break;
      TakeCommitted(commit, head, frame);
      return Status();
    }
    default:
      if (head.count == 0) return Status();
  }
  return Status(Code::kInvalid, "more answers than questions");
}

void RemoteCache::TakeFetched(FetchRequest* request, const AnswerHead& head, FrameReader* frame) {
  for (uint32_t i = 0; i < head.count; ++i) {
    FetchAnswer answer;
    Decode(frame, &answer);
    FetchOp& op = request->ops[head.first + i];
    op.status = Status(answer.code);
    op.tier = answer.tier;
    op.checksum = answer.checksum;
    if (answer.lease == 0) continue;
    const Result<std::span<std::byte>> bytes = link_->Find(answer.slot);
    if (!bytes.ok()) {  // It cannot be mapped here: it goes back unread.
      op.status = bytes.status();
      const ReleaseOp release{.lease = answer.lease};
      SendBack(std::span(&release, 1), FrameKind::kRelease, link_.get());
      continue;
    }
    op.bytes = *bytes;
    op.lease = NewHeld(answer.lease, answer.slot.extent, false);
  }
}

void RemoteCache::TakeReserved(ReserveRequest* request, const AnswerHead& head,
                               FrameReader* frame) {
  for (uint32_t i = 0; i < head.count; ++i) {
    ReserveAnswer answer;
    Decode(frame, &answer);
    ReserveOp& op = request->ops[head.first + i];
    op.outcome = answer.outcome;
    op.refusal = answer.refusal;
    op.wait_ms = answer.wait_ms;
    if (answer.reservation == 0) continue;
    const Result<std::span<std::byte>> bytes = link_->Find(answer.slot);
    if (!bytes.ok()) {
      op.outcome = ReserveOutcome::kRefused;
      op.refusal = Refusal::kFull;
      SendBack(std::span<const ReservationId>(&answer.reservation, 1), FrameKind::kAbort,
               link_.get());
      continue;
    }
    op.slot = *bytes;
    op.reservation = NewHeld(answer.reservation, answer.slot.extent, true);
  }
}

void RemoteCache::TakeCommitted(CommitRequest* request, const AnswerHead& head,
                                FrameReader* frame) {
  for (uint32_t i = 0; i < head.count; ++i) {
    CommitAnswer answer;
    Decode(frame, &answer);
    CommitOp& op = request->ops[head.first + i];
    op.published = answer.published;
    op.status = answer.code == Code::kOk
                    ? Status()
                    : Status(answer.code, "the reservation is unknown, void or overlapping");
    if (!answer.over) continue;
    if (Held* const held = FindHeld(op.reservation, true); held != nullptr) FreeHeld(held);
  }
}

void RemoteCache::TakeSummary(Sent* sent, FrameReader* frame) {
  switch (sent->kind) {
    case FrameKind::kMatch: {
      MatchAnswer answer;
      Decode(frame, &answer);
      auto* const match = static_cast<MatchRequest*>(sent->request);
      match->matched = answer.matched;
      match->pays = answer.pays;
      match->load_ms = answer.load_ms;
      match->recompute_ms = answer.recompute_ms;
      return;
    }
    case FrameKind::kStats: {
      CacheStats& stats = static_cast<StatsRequest*>(sent->request)->stats;
      Decode(frame, &stats);
      for (auto& [name, value] : stats.counters)
        value += name == kDroppedNotes ? dropped_notes_ : 0;
      return;
    }
    case FrameKind::kFetch:
    case FrameKind::kReserve:
    case FrameKind::kCommit:
    case FrameKind::kFlush:
      return;
    default:
      break;
  }
  CountsAnswer counts;
  Decode(frame, &counts);
  switch (sent->kind) {
    case FrameKind::kRegisterLayout: {
      auto* const request = static_cast<RegisterLayoutRequest*>(sent->request);
      const auto at_node = static_cast<LayoutHandle>(counts.first);
      if (at_node == 0) return;
      auto known = std::find_if(layouts_.begin(), layouts_.end(), [at_node](const auto& layout) {
        return layout.at_node == at_node;
      });
      if (known == layouts_.end()) known = layouts_.insert(known, {request->layout, at_node});
      request->handle = static_cast<LayoutHandle>(known - layouts_.begin()) + 1;
      return;
    }
    case FrameKind::kPin:
      static_cast<PinRequest*>(sent->request)->pinned = counts.first;
      return;
    case FrameKind::kPrestage:
      static_cast<PrestageRequest*>(sent->request)->found = counts.first;
      static_cast<PrestageRequest*>(sent->request)->staged = counts.second;
      return;
    case FrameKind::kEvict:
      static_cast<EvictRequest*>(sent->request)->evicted = counts.first;
      return;
    case FrameKind::kDrain:
      static_cast<DrainRequest*>(sent->request)->left = counts.first;
      return;
    default:
      return;
  }
}

bool RemoteCache::Spin(int64_t end_nanos) {
  const MutexLock lock(&mutex_);
  if (!settled_.empty()) return true;
  if (link_ == nullptr) return false;
  link_->WokeUp();
  const int64_t yield_nanos = SystemClock()->NowNanos() + kYieldNanos;
  while (!link_->HasAnswer()) {
    const int64_t now = SystemClock()->NowNanos();
    if (!link_->node_awake() || now >= end_nanos) return false;
    // Awake, but perhaps it waits for this very processor.
    if (now >= yield_nanos) std::this_thread::yield();
  }
  return true;
}

bool RemoteCache::Wait(const Request& request, int64_t timeout_nanos) {
  Clock* const clock = SystemClock();
  const int64_t start_nanos = clock->NowNanos();
  const int64_t end_nanos =
      timeout_nanos > INT64_MAX - start_nanos ? INT64_MAX : start_nanos + timeout_nanos;
  while (!request.done()) {
    const int64_t now = clock->NowNanos();
    const bool any = Spin(std::min(end_nanos, now + kSpinNanos));
    if (Poll() > 0 || any) continue;
    const int64_t left_nanos = end_nanos - clock->NowNanos();
    if (left_nanos <= 0) return request.done();
    pollfd descriptor{.fd = event_.get(), .events = POLLIN, .revents = 0};
    [[maybe_unused]] const int ready =
        ::poll(&descriptor, 1, end_nanos == INT64_MAX ? -1 : MillisFor(left_nanos));
  }
  return true;
}

}  // namespace aquifer
