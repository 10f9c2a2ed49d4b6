#include "store/redis/redis_loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "base/thread_name.h"

namespace aquifer {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kListingNanos = 60'000 * kMillisecond;
// How long the names of a scan may be used for further calls.
constexpr int64_t kNamesNanos = 60'000 * kMillisecond;
constexpr int kMostWaitMillis = 100;  // A bound for clocks that are not the system's.
constexpr uint64_t kMailboxNumber = 0;

Status Closing() { return Status(Code::kUnavailable, "the store is being closed"); }

}  // namespace

RedisMailbox::RedisMailbox() : wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  AQ_CHECK(wake_.valid());
}

bool RedisMailbox::Post(Note note) {
  const MutexLock lock(&mutex_);
  if (closed_) return false;
  notes_.push_back(std::move(note));
  if (notes_.size() > 1) return true;  // The first note has woken the loop.
  const uint64_t one = 1;
  AQ_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  return true;
}

std::vector<RedisMailbox::Note> RedisMailbox::Take() {
  const MutexLock lock(&mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &count, sizeof(count));
  return std::exchange(notes_, {});
}

void RedisMailbox::Close() {
  const MutexLock lock(&mutex_);
  closed_ = true;
  const uint64_t one = 1;
  AQ_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

bool RedisMailbox::closed() {
  const MutexLock lock(&mutex_);
  return closed_;
}

RedisLoop::RedisLoop(const RedisStoreOptions& options, std::vector<RedisAddress> seeds,
                     std::shared_ptr<const TlsContext> tls, RedisCounters* counters)
    : options_(options),
      seeds_(std::move(seeds)),
      tls_(std::move(tls)),
      counters_(counters),
      blob_options_{.prefix = options.prefix,
                    .piece_bytes = options.piece_bytes,
                    .clock = options.clock,
                    .random = options.random},
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  AQ_CHECK(epoll_.valid());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kMailboxNumber;
  AQ_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox_->descriptor(), &event) == 0);
  thread_ = std::thread([this] { Run(); });
}

void RedisLoop::Stop() {
  if (!thread_.joinable()) return;
  mailbox_->Close();
  thread_.join();
}

bool RedisLoop::PostBlob(BlobRequest* request) {
  return mailbox_->Post([this, request] { StartBlob(request); });
}

bool RedisLoop::PostListing(RedisListing::Call call) {
  return mailbox_->Post([this, call = std::move(call)] { StartListing(call); });
}

void RedisLoop::Cancel(BlobRequest* request) {
  // A closed mailbox refuses this note: the operation ends anyway.
  [[maybe_unused]] const bool posted = mailbox_->Post([this, request] { CancelNow(request); });
}

void RedisLoop::Run() {
  NameThisThread("aq-redis");
  while (true) {
    HearEvents(WaitMillis(Now()));
    const bool closed = mailbox_->closed();  // Asked first: no note can follow these then.
    for (const RedisMailbox::Note& note : mailbox_->Take()) note();
    if (closed) break;
    PumpAll();
    LookAtTime();
  }
  EndAll();
}

int RedisLoop::WaitMillis(int64_t now) const {
  for (const auto& [number, connection] : watched_) {
    if (connection->stirred || connection->doomed) return 0;
  }
  if (active_.empty() && delayed_.empty() && !map_wanted_) {
    // Only a connection that is being made, or a stall, could need attention.
    for (const auto& [address, server] : servers_) {
      for (const auto& connection : server->connections) {
        if (connection != nullptr && connection->link->WaitingSince() != INT64_MAX) {
          return kMostWaitMillis;
        }
      }
    }
    return -1;
  }
  int64_t next = now + kMostWaitMillis * kMillisecond;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  for (const Delayed& delayed : delayed_) next = std::min(next, delayed.at_nanos);
  return static_cast<int>(std::max<int64_t>(0, (next - now + kMillisecond - 1) / kMillisecond));
}

void RedisLoop::HearEvents(int wait_millis) {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_millis);
  AQ_CHECK(count >= 0 || errno == EINTR);
  for (int i = 0; i < count; ++i) {
    const auto found = watched_.find(events[static_cast<size_t>(i)].data.u64);
    if (found != watched_.end()) found->second->stirred = true;
  }
}

void RedisLoop::PumpAll() {
  std::vector<uint64_t> stirred;
  for (const auto& [number, connection] : watched_) {
    if (connection->stirred) stirred.push_back(number);
  }
  for (const uint64_t number : stirred) {
    const auto found = watched_.find(number);  // An earlier event may have ended this connection.
    if (found != watched_.end()) Pump(found->second);
  }
}

void RedisLoop::LookAtTime() {
  const int64_t now = Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Finish(deadlines_.begin()->second, Status(Code::kLate));
  }
  std::vector<RedisCommand> due;
  std::erase_if(delayed_, [&](Delayed& delayed) {
    if (delayed.at_nanos > now) return false;
    due.push_back(std::move(delayed.command));
    return true;
  });
  for (RedisCommand& command : due) Route(std::move(command));

  std::vector<Connection*> lost;
  for (const auto& [address, server] : servers_) {
    for (const auto& connection : server->connections) {
      if (connection == nullptr) continue;
      const int64_t since = connection->link->WaitingSince();
      if (connection->doomed || (since != INT64_MAX && now - since > options_.timeout_nanos)) {
        lost.push_back(connection.get());
      }
    }
  }
  for (Connection* connection : lost) {
    const bool doomed = connection->doomed;
    Lose(connection,
         Status(Code::kUnavailable,
                doomed ? std::string("the connection was given up") : Silence(*connection->link)),
         /*send_again=*/doomed);
  }
  if (map_wanted_ && !map_asked_ && now >= map_after_nanos_) AskForMap();
  if (now >= memory_after_nanos_ && !active_.empty()) AskForMemory();
}

void RedisLoop::EndAll() {
  while (!active_.empty()) Finish(active_.begin()->first, Closing());
  watched_.clear();
  servers_.clear();
}

void RedisLoop::Begin(Active active) {
  const uint64_t id = next_operation_++;
  if (active.deadline_nanos != INT64_MAX) deadlines_.emplace(active.deadline_nanos, id);
  if (active.request != nullptr) by_request_[active.request] = id;
  RedisOperation* operation = active.operation.get();
  active_.emplace(id, std::move(active));
  operation->Start();
  AfterStep(id);
}

void RedisLoop::StartBlob(BlobRequest* request) {
  if (request->deadline_nanos <= Now()) {
    Count(*request, Status(Code::kLate));
    return Complete(request, Status(Code::kLate));
  }
  Begin({.operation = std::make_unique<RedisBlob>(blob_options_, request),
         .deadline_nanos = request->deadline_nanos,
         .request = request});
}

void RedisLoop::StartListing(RedisListing::Call call) {
  const bool goes_on = names_ != nullptr && !call.after.empty() &&
                       names_->prefixes == call.prefixes &&
                       Now() - names_->made_nanos < kNamesNanos;
  if (!goes_on) names_ = nullptr;
  Begin({.operation = std::make_unique<RedisListing>(options_.prefix, std::move(call), names_),
         .deadline_nanos = Now() + kListingNanos});
}

void RedisLoop::CancelNow(BlobRequest* request) {
  const auto found = by_request_.find(request);
  if (found != by_request_.end()) Finish(found->second, Status(Code::kLate));
}

void RedisLoop::AfterStep(uint64_t id) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  RedisOperation* operation = found->second.operation.get();
  std::vector<RedisCommand> commands = operation->TakeCommands();
  for (RedisCommand& command : commands) {
    command.operation = id;
    Route(std::move(command));
    if (!active_.contains(id)) return;  // No command could be sent, and that ended the operation.
  }
  if (operation->done()) Finish(id, operation->status());
}

void RedisLoop::Count(const BlobRequest& request, const Status& status) {
  --counters_->queued;
  counters_->blobs.Count(request, status);
}

// The status may be the operation's own, which lives until the end of this function.
void RedisLoop::Finish(uint64_t id, const Status& status) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  const std::unique_ptr<RedisOperation> operation = std::move(found->second.operation);
  deadlines_.erase({found->second.deadline_nanos, id});
  if (const BlobRequest* request = found->second.request; request != nullptr) {
    by_request_.erase(request);
    Count(*request, status);
    const auto* blob = static_cast<const RedisBlob*>(operation.get());
    if (blob->piece_was_missing()) ++counters_->pieces_missing;
  } else {
    const auto* listing = static_cast<const RedisListing*>(operation.get());
    names_ = status.ok() ? listing->names() : nullptr;
    if (names_ != nullptr && names_->made_nanos == 0) names_->made_nanos = Now();
  }
  active_.erase(found);
  if (operation->waiting()) {
    std::erase_if(delayed_,
                  [id](const Delayed& waiting) { return waiting.command.operation == id; });
    for (const auto& [address, server] : servers_) {
      for (const auto& connection : server->connections) {
        if (connection != nullptr && !connection->link->Abandon(id)) connection->doomed = true;
      }
    }
  }
  for (RedisCommand& command : operation->Afterwards()) Route(std::move(command));
  operation->Deliver(status);
}

}  // namespace aquifer
