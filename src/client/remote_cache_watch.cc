// The link thread: it watches the socket, finds the node again, and destroys links.
#include <poll.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "base/clock.h"
#include "base/thread_name.h"
#include "client/remote_cache.h"
#include "client/wake_event.h"

namespace aquifer {
namespace {

constexpr int64_t kFirstRetryNanos = 20'000'000;
constexpr int64_t kLastRetryNanos = 500'000'000;
constexpr int64_t kDialNanos = 2'000'000'000;
// Only the caller clears the event that reports room. The link thread therefore cannot wait for it.
constexpr int64_t kUnsentNanos = 10'000'000;
constexpr int64_t kNanosPerMilli = 1'000'000;

}  // namespace

void RemoteCache::Watch() {
  NameThisThread("aq-link");
  int64_t wait_nanos = kFirstRetryNanos;
  int64_t dial_nanos = 0;  // When to look for the node; 0 while it is there.
  while (true) {
    const Watched watched = LookAtLinks();
    const int64_t now = SystemClock()->NowNanos();
    int64_t sleep_nanos = INT64_MAX;
    if (watched.socket >= 0) {
      wait_nanos = kFirstRetryNanos;
      dial_nanos = 0;
    } else if (dial_nanos == 0) {
      dial_nanos = now + wait_nanos;
      sleep_nanos = wait_nanos;
    } else if (now < dial_nanos) {
      sleep_nanos = dial_nanos - now;
    } else {
      if (Reconnect()) continue;
      wait_nanos = std::min(2 * wait_nanos, kLastRetryNanos);
      dial_nanos = SystemClock()->NowNanos() + wait_nanos;
      sleep_nanos = wait_nanos;
    }
    if (watched.look_nanos != INT64_MAX) {
      sleep_nanos = std::min(sleep_nanos, std::max<int64_t>(watched.look_nanos - now, 0));
    }
    if (watched.unsent) sleep_nanos = std::min(sleep_nanos, kUnsentNanos);
    if (SleepFor(sleep_nanos, changed_event_.get(), watched.socket)) return;
  }
}

RemoteCache::Watched RemoteCache::LookAtLinks() {
  std::vector<std::unique_ptr<Session>> gone;  // These two go when the mutex is unlocked.
  std::vector<MappedExtent> unmapped;
  const MutexLock lock(&mutex_);
  Clear(changed_event_);
  Watched watched;
  look_nanos_ = INT64_MAX;
  if (session_ != nullptr) {
    Link* const link = session_->link();
    if (link->ReadSocket().ok() && link->Flush() && LookAtRequests(SystemClock()->NowNanos())) {
      watched = {.socket = link->socket(), .unsent = link->has_unsent()};
    } else {
      EndSession();
    }
  }
  for (std::unique_ptr<Session>& ended : ended_) {
    Link* const link = ended->link();
    const bool unused = ended->settled() && link->held() == 0;
    if (unused) link->SayGoodbye();
    link->Flush();
    const bool unsent = link->has_unsent() && !link->NodeIsGone();
    watched.unsent |= unsent;
    if (unused && !unsent) gone.push_back(std::move(ended));
  }
  std::erase(ended_, nullptr);
  unmapped.swap(unmapped_);
  watched.look_nanos = awaken_nanos_ = look_nanos_;
  return watched;
}

bool RemoteCache::LookAtRequests(int64_t now_nanos) {
  if (session_->idle()) {
    session_->liveness()->Rest();
    return true;
  }
  if (session_->settle_nanos() <= now_nanos) SignalSelf();
  Link* const link = session_->link();
  switch (session_->liveness()->Look(now_nanos, link->taken_bytes(), link->all_taken())) {
    case Liveness::Finding::kFine:
      break;
    // The node ignores a cancel of no request; it only has to read the frame.
    case Liveness::Finding::kAsk:
      writer_.Begin(static_cast<uint16_t>(FrameKind::kCancel), 0);
      link->Send(writer_.Finish());
      break;
    case Liveness::Finding::kLost:
      return false;
  }
  look_nanos_ = std::min(session_->liveness()->next_nanos(), session_->FirstAfter(now_nanos));
  return true;
}

bool RemoteCache::SleepFor(int64_t nanos, int one, int other) {
  pollfd waits[] = {{.fd = stop_event_.get(), .events = POLLIN, .revents = 0},
                    {.fd = one, .events = POLLIN, .revents = 0},
                    // poll() ignores descriptors below 0.
                    {.fd = other, .events = POLLIN, .revents = 0}};
  const auto millis = static_cast<int>(std::min<int64_t>(nanos / kNanosPerMilli + 1, INT_MAX));
  [[maybe_unused]] const int ready = ::poll(waits, 3, nanos == INT64_MAX ? -1 : millis);
  return waits[0].revents != 0;
}

bool RemoteCache::Reconnect() {
  Result<std::unique_ptr<Link>> link = Dial(SystemClock()->NowNanos() + kDialNanos);
  if (!link.ok()) return false;
  std::vector<Layout> layouts;
  {
    const MutexLock lock(&mutex_);
    for (const KnownLayout& known : layouts_) layouts.push_back(known.layout);
  }
  std::vector<LayoutHandle> handles;
  if (!RegisterLayoutsAt(link->get(), layouts, &handles).ok()) return false;
  const MutexLock lock(&mutex_);
  if (layouts_.size() != handles.size()) return false;  // There are more layouts by now.
  for (size_t i = 0; i < handles.size(); ++i) layouts_[i].at_node = handles[i];
  Adopt(*std::move(link));
  SignalSelf();
  return true;
}

// Registers the layouts one after the other: there are few, and no other thread uses the link yet.
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
      if (SleepFor(kLastRetryNanos, link->event(), link->socket())) {
        return Status(Code::kUnavailable);
      }
      link->ClearEvent();
      AQ_RETURN_IF_ERROR(link->ReadSocket());
    }
    FrameReader reader(frame);
    AnswerHead head;
    Decode(&reader, &head);
    CountsAnswer counts;
    Decode(&reader, &counts);
    AQ_RETURN_IF_ERROR(reader.End());
    // The layout misses until the node has room for it. The client keeps no handle that the node
    // does not know.
    if (head.code != Code::kOk) return Status(head.code, std::string(head.message));
    handles->push_back(static_cast<LayoutHandle>(counts.first));
  }
  return Status();
}

}  // namespace aquifer
