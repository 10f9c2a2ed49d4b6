#include "client/remote_cache.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/deadline.h"
#include "client/find_node.h"
#include "client/wake_event.h"

namespace aquifer {
namespace {

constexpr int64_t kSpinNanos = 50'000;
constexpr int64_t kYieldNanos = 5'000;  // Most answers take less time.
constexpr int64_t kNanosPerMilli = 1'000'000;

// All ranks of an engine give its name. A client without a name is an engine of its own; it keeps
// its generated name when it connects again.
std::string NameOf(const std::string& engine) {
  if (!engine.empty()) return engine;
  return fmt::format("unnamed-{:016x}{:016x}", SystemRandom()->Next64(), SystemRandom()->Next64());
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
    : options_(options),
      sockets_(NodeSockets(options.socket)),
      client_{.tenant = client.tenant, .engine = NameOf(client.engine)},
      event_(::epoll_create1(EPOLL_CLOEXEC)),
      self_event_(NewWakeEvent()),
      changed_event_(NewWakeEvent()),
      stop_event_(NewWakeEvent()) {}

Status RemoteCache::Start() {
  epoll_event wanted{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!event_.valid() || !self_event_.valid() || !changed_event_.valid() || !stop_event_.valid() ||
      ::epoll_ctl(event_.get(), EPOLL_CTL_ADD, self_event_.get(), &wanted) != 0) {
    return Status(Code::kUnavailable, std::string("eventfd: ") + std::strerror(errno) +
                                          "; raise the limit on open files (ulimit -n)");
  }
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                      Dial(DeadlineAfter(SystemClock()->NowNanos(), options_.timeout_nanos)));
  {
    const MutexLock lock(&mutex_);
    Adopt(std::move(link));
  }
  thread_ = std::thread([this] { Watch(); });
  return Status();
}

RemoteCache::~RemoteCache() {
  Signal(stop_event_);
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<Cache>> RemoteCache::Join(const ClientOptions& options) {
  return New(options_, options);
}

Result<std::unique_ptr<Link>> RemoteCache::Dial(int64_t deadline_nanos) const {
  return Link::Open(sockets_,
                    {.tenant = client_.tenant,
                     .token = options_.token,
                     .engine = client_.engine,
                     .observe = options_.observe},
                    deadline_nanos);
}

void RemoteCache::Adopt(std::unique_ptr<Link> link) {
  session_ = std::make_unique<Session>(std::move(link));
  epoll_event wanted{.events = EPOLLIN, .data = {.u64 = 0}};
  ::epoll_ctl(event_.get(), EPOLL_CTL_ADD, session_->link()->event(), &wanted);
}

void RemoteCache::EndSession() {
  Link* const link = session_->link();
  ::epoll_ctl(event_.get(), EPOLL_CTL_DEL, link->event(), nullptr);
  link->SetOver();
  for (MappedExtent& extent : link->TakeUnheld()) unmapped_.push_back(std::move(extent));
  for (KnownLayout& known : layouts_) known.at_node = 0;
  // The link thread can end an idle session without a Poll(): an engine may be idle while its node
  // restarts many times.
  if (session_->idle()) session_->SetSettled();
  ended_.push_back(std::move(session_));
  SignalSelf();
  Signal(changed_event_);
}

void RemoteCache::SignalSelf() {
  may_be_readable_ = true;
  Signal(self_event_);
}

// ---- Waiting for answers ----

size_t RemoteCache::Poll() {
  std::vector<MappedExtent> unmapped;
  const MutexLock lock(&mutex_);
  size_t moved = Apply();
  while (moved == 0 && !PrepareToSleep()) moved = Apply();
  unmapped.swap(unmapped_);
  return moved;
}

bool RemoteCache::PrepareToSleep() {
  if (std::exchange(may_be_readable_, false)) {
    Clear(self_event_);
    if (session_ != nullptr) session_->link()->ClearEvent();
  }
  if (session_ == nullptr) return true;
  if (!session_->link()->PrepareToSleep()) return false;
  may_be_readable_ = true;  // The descriptor may be readable from now on.
  return true;
}

bool RemoteCache::Spin(int64_t end_nanos) {
  const MutexLock lock(&mutex_);
  if (!settled_.empty()) return true;
  if (session_ == nullptr) return false;
  Link* const link = session_->link();
  link->WokeUp();
  const int64_t yield_nanos = SystemClock()->NowNanos() + kYieldNanos;
  while (!link->HasAnswer()) {
    const int64_t now = SystemClock()->NowNanos();
    if (!link->node_awake() || now >= end_nanos) return false;
    // The node is awake, but it may be waiting for this very processor.
    if (now >= yield_nanos) std::this_thread::yield();
  }
  return true;
}

bool RemoteCache::Wait(const Request& request, int64_t timeout_nanos) {
  Clock* const clock = SystemClock();
  const int64_t end_nanos = DeadlineAfter(clock->NowNanos(), timeout_nanos);
  while (!request.done()) {
    const int64_t now = clock->NowNanos();
    const bool any = Spin(std::min(end_nanos, now + kSpinNanos));
    if (Poll() > 0 || any || request.done()) continue;
    const int64_t left_nanos = end_nanos - clock->NowNanos();
    if (left_nanos <= 0) return request.done();
    // The time is rounded up, so that the caller does not wake just before the deadline and spin.
    const auto millis =
        static_cast<int>(std::min<int64_t>(left_nanos / kNanosPerMilli + 1, INT_MAX));
    pollfd descriptor{.fd = event_.get(), .events = POLLIN, .revents = 0};
    [[maybe_unused]] const int ready = ::poll(&descriptor, 1, end_nanos == INT64_MAX ? -1 : millis);
  }
  return true;
}

}  // namespace aquifer
