#include "sim/world/simulated_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

Status Injected() { return Status(Code::kUnavailable, "injected"); }

bool BeginsWithOneOf(std::string_view name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [name](const std::string& prefix) { return name.starts_with(prefix); });
}

}  // namespace

// ---- The server ----

std::unique_ptr<SimulatedStore::Connection> SimulatedStore::Connect(Scheduler::Party party,
                                                                    const Clock* clock) {
  return std::make_unique<Connection>(this, party, clock);
}

int64_t SimulatedStore::TripNanos(uint64_t bytes) {
  int64_t nanos = options_.latency_nanos / 2;
  if (options_.jitter_nanos > 0) {
    nanos += static_cast<int64_t>(random_.Below(static_cast<uint64_t>(options_.jitter_nanos)));
  }
  if (slow_nanos_ > 0) {
    nanos += static_cast<int64_t>(random_.Below(static_cast<uint64_t>(slow_nanos_)));
  }
  if (options_.bytes_per_second > 0) {
    nanos += static_cast<int64_t>(bytes * 1'000'000'000 / options_.bytes_per_second);
  }
  return nanos;
}

void SimulatedStore::Erase(std::map<std::string, Blob>::iterator at) {
  used_bytes_ -= at->second.bytes->size();
  listed_[at->first].until_nanos = scheduler_->now();
  blobs_.erase(at);
}

void SimulatedStore::ForgetExpired() {
  if (!options_.forgets_expired) return;
  for (auto at = blobs_.begin(); at != blobs_.end();) {
    const auto next = std::next(at);
    const int64_t expiry = at->second.expiry_unix_seconds;
    if (expiry != 0 && expiry <= UnixSeconds()) Erase(at);
    at = next;
  }
}

SimulatedStore::Outcome SimulatedStore::CarryOut(const BlobRequest& request) {
  ForgetExpired();
  switch (request.kind) {
    case BlobKind::kWrite:
      return Write(request);
    case BlobKind::kRemove:
      return Remove(request);
    default:
      return Read(request);
  }
}

SimulatedStore::Outcome SimulatedStore::Write(const BlobRequest& request) {
  const auto found = blobs_.find(request.name);
  Outcome outcome;
  outcome.existed = found != blobs_.end() && request.if_absent;
  if (outcome.existed) return outcome;
  const uint64_t replaced = found == blobs_.end() ? 0 : found->second.bytes->size();
  const uint64_t bytes = request.head.size() + request.body_bytes;
  const uint64_t used = used_bytes_ - replaced + bytes;
  if (full_ || (options_.capacity_bytes != 0 && used > options_.capacity_bytes)) {
    outcome.status = Status(Code::kNoSpace, "the store is full");
    return outcome;
  }
  auto stored = std::make_shared<std::vector<std::byte>>(request.head.begin(), request.head.end());
  const auto body = request.body.first(request.body_bytes);
  stored->insert(stored->end(), body.begin(), body.end());
  used_bytes_ = used;
  blobs_[request.name] = {.bytes = std::move(stored),
                          .version = next_version_++,
                          .expiry_unix_seconds = request.expiry_unix_seconds};
  Listed& listed = listed_[request.name];
  if (found == blobs_.end()) listed.since_nanos = scheduler_->now();
  listed.until_nanos = INT64_MAX;
  listed.bytes = bytes;
  return outcome;
}

SimulatedStore::Outcome SimulatedStore::Remove(const BlobRequest& request) {
  const auto found = blobs_.find(request.name);
  const bool meant =
      found != blobs_.end() &&
      (request.version.empty() || request.version == std::to_string(found->second.version));
  Outcome outcome;
  if (!meant) outcome.status = Status(Code::kNotFound);
  if (meant) Erase(found);
  return outcome;
}

SimulatedStore::Outcome SimulatedStore::Read(const BlobRequest& request) {
  const auto found = blobs_.find(request.name);
  Outcome outcome;
  if (found == blobs_.end()) {
    outcome.status = Status(Code::kNotFound);
    return outcome;
  }
  outcome.bytes = found->second.bytes;
  outcome.version = std::to_string(found->second.version);
  const size_t room = request.head.size() + request.body.size();
  const bool fits = request.kind == BlobKind::kLook || outcome.bytes->size() <= room;
  if (outcome.bytes->size() < request.head.size() || !fits) {
    outcome.status = Status(Code::kCorrupt, "it does not fit into head and body");
  }
  return outcome;
}

BlobStore::Names SimulatedStore::List(const std::vector<std::string>& prefixes,
                                      std::string_view after, size_t max) const {
  const int64_t as_of = scheduler_->now() - options_.listing_lag_nanos;
  BlobStore::Names names;
  for (auto at = listed_.upper_bound(std::string(after)); at != listed_.end(); ++at) {
    if (names.size() == max) break;
    const auto& [name, listed] = *at;
    const bool shown = listed.since_nanos <= as_of && listed.until_nanos > as_of;
    if (shown && BeginsWithOneOf(name, prefixes)) names.push_back({name, listed.bytes});
  }
  return names;
}

// ---- Faults ----

void SimulatedStore::Hang(bool on) {
  hangs_ = on;
  if (on) return;
  for (auto& [party, task] : std::exchange(hanging_, {})) {
    scheduler_->At(scheduler_->now(), party, std::move(task));
  }
}

bool SimulatedStore::DamageOne(SeededRandom* random) {
  if (blobs_.empty()) return false;
  const auto at = std::next(blobs_.begin(), static_cast<ptrdiff_t>(random->Below(blobs_.size())));
  auto damaged = std::make_shared<std::vector<std::byte>>(*at->second.bytes);
  if (damaged->empty()) return false;
  const size_t place = random->Below(damaged->size());
  if (random->Below(4) == 0) {
    used_bytes_ -= damaged->size() - place;
    damaged->resize(place);
  } else {
    (*damaged)[place] ^= static_cast<std::byte>(1u << random->Below(8));
  }
  at->second.bytes = std::move(damaged);
  at->second.version = next_version_++;
  return true;
}

size_t SimulatedStore::Empty() {
  const size_t count = blobs_.size();
  while (!blobs_.empty()) Erase(blobs_.begin());
  return count;
}

void SimulatedStore::Heal() {
  slow_nanos_ = 0;
  full_ = false;
  failing_ = losing_ = 0;
  Hang(false);
}

// ---- A connection ----

SimulatedStore::Connection::~Connection() {
  Abandon();
  std::erase_if(store_->hanging_, [this](const auto& task) { return task.first == party_; });
  while (!under_way_.empty()) {
    BlobRequest* const request = under_way_.begin()->second.request;
    under_way_.erase(under_way_.begin());
    Complete(request, Status(Code::kLate, "the store is closed"));
  }
}

void SimulatedStore::Connection::Abandon() {
  if (std::exchange(abandoned_, true)) return;
  for (const auto& [number, one] : under_way_) {
    const bool changes =
        one.request->kind == BlobKind::kWrite || one.request->kind == BlobKind::kRemove;
    if (changes && !one.at_store && !one.hangs && store_->random_.Below(2) == 0) {
      store_->CarryOut(*one.request);
    }
  }
}

void SimulatedStore::Connection::Submit(BlobRequest* request) {
  AQ_CHECK(CheckBlobName(request->name).ok());
  if (abandoned_ || under_way_.size() >= store_->options_.max_queued) {
    return Complete(request, Status(Code::kBusy, "the queue is full"));
  }
  const uint64_t number = next_number_++;
  under_way_[number] = {.number = number, .request = request};
  if (request->deadline_nanos != INT64_MAX) {
    Schedule(request->deadline_nanos - store_->scheduler_->now(),
             [this, number] { GiveUp(number, "the deadline passed"); });
  }
  Schedule(store_->TripNanos(request->body_bytes), [this, number] { Arrive(number); });
}

void SimulatedStore::Connection::WhenGoing(Task task) {
  if (!store_->hangs_) return task();
  store_->hanging_.emplace_back(party_, std::move(task));
}

void SimulatedStore::Connection::Arrive(uint64_t number) {
  const auto found = under_way_.find(number);
  if (found == under_way_.end() || abandoned_) return;
  found->second.hangs = store_->hangs_;
  if (store_->hangs_) return WhenGoing([this, number] { Arrive(number); });
  const BlobRequest& request = *found->second.request;
  Outcome outcome;
  if (store_->failing_ > 0) {
    --store_->failing_;
    outcome.status = Injected();
  } else {
    outcome = store_->CarryOut(request);
    found->second.at_store = true;
    const bool changes = request.kind == BlobKind::kWrite || request.kind == BlobKind::kRemove;
    if (changes && store_->losing_ > 0) {
      --store_->losing_;
      outcome = {.status = Injected(), .existed = false, .version = {}, .bytes = nullptr};
    }
  }
  const uint64_t bytes = outcome.bytes == nullptr ? 0 : outcome.bytes->size();
  Schedule(store_->TripNanos(bytes),
           [this, number, outcome = std::move(outcome)] { Answer(number, outcome); });
}

void SimulatedStore::Connection::Answer(uint64_t number, Outcome outcome) {
  const auto found = under_way_.find(number);
  if (found == under_way_.end() || abandoned_) return;
  if (store_->hangs_) {
    found->second.hangs = true;
    return WhenGoing([this, number, outcome = std::move(outcome)] { Answer(number, outcome); });
  }
  BlobRequest* const request = found->second.request;
  under_way_.erase(found);
  if (outcome.status.code() != Code::kUnavailable) Heard();
  request->existed = outcome.existed;
  if (outcome.bytes != nullptr) {
    request->blob_bytes = outcome.bytes->size();
    if (request->kind == BlobKind::kLook) request->version = outcome.version;
  }
  if (outcome.bytes != nullptr && outcome.status.ok()) {
    const auto head = static_cast<ptrdiff_t>(request->head.size());
    std::copy_n(outcome.bytes->begin(), head, request->head.begin());
    if (request->kind == BlobKind::kRead) {
      std::copy(outcome.bytes->begin() + head, outcome.bytes->end(), request->body.begin());
    }
  }
  Complete(request, std::move(outcome.status));
}

void SimulatedStore::Connection::GiveUp(uint64_t number, const char* why) {
  const auto found = under_way_.find(number);
  if (found == under_way_.end() || abandoned_) return;
  if (found->second.hangs && store_->options_.holds_buffers) return;
  const UnderWay one = found->second;
  under_way_.erase(found);
  // It was on its way: the server has heard of it or not.
  const bool changes =
      one.request->kind == BlobKind::kWrite || one.request->kind == BlobKind::kRemove;
  if (changes && !one.at_store && !one.hangs && store_->random_.Below(2) == 0) {
    store_->CarryOut(*one.request);
  }
  Complete(one.request, Status(Code::kLate, why));
}

SimulatedStore::Connection::Entry SimulatedStore::Connection::Find(const BlobRequest* request) {
  return std::find_if(under_way_.begin(), under_way_.end(),
                      [request](const auto& one) { return one.second.request == request; });
}

void SimulatedStore::Connection::Cancel(BlobRequest* request) {
  const auto found = Find(request);
  if (found == under_way_.end()) return;
  Schedule(0, [this, number = found->first] { GiveUp(number, "it was cancelled"); });
}

void SimulatedStore::Connection::List(std::string_view prefix, std::string_view after, size_t max,
                                      std::function<void(Result<Names>)> on_done) {
  ListAny({std::string(prefix)}, after, max, std::move(on_done));
}

void SimulatedStore::Connection::ListAny(std::vector<std::string> prefixes, std::string_view after,
                                         size_t max, std::function<void(Result<Names>)> on_done) {
  Schedule(store_->TripNanos(0), [this, prefixes = std::move(prefixes), after = std::string(after),
                                  max, on_done = std::move(on_done)] {
    WhenGoing([this, prefixes, after, max, on_done] {
      if (abandoned_) return;
      Result<Names> names = Status(Code::kUnavailable, "injected");
      if (store_->failing_ > 0) {
        --store_->failing_;
      } else {
        Heard();
        names = store_->List(prefixes, after, max);
      }
      Schedule(store_->TripNanos(0), [on_done, names = std::move(names)] { on_done(names); });
    });
  });
}

BlobUsage SimulatedStore::Connection::Usage() const {
  return {.capacity_bytes = store_->options_.capacity_bytes,
          .used_bytes = store_->used_bytes_,
          .queued = under_way_.size()};
}

}  // namespace aquifer
