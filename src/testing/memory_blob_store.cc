#include "testing/memory_blob_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aquifer/checksum.h"
#include "base/check.h"

namespace aquifer {

namespace {

std::string VersionOf(std::span<const std::byte> bytes) {
  const Checksum sum = ChecksumOf(bytes);
  return std::to_string(sum.low) + std::to_string(sum.high);
}

}  // namespace

// ---- What is stored ----

std::vector<std::string> MemoryBlobs::Names() const {
  const MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : blobs_) names.push_back(name);
  return names;
}

std::vector<std::byte> MemoryBlobs::Get(const std::string& name) const {
  const MutexLock lock(&mutex_);
  const auto found = blobs_.find(name);
  return found == blobs_.end() ? std::vector<std::byte>() : found->second;
}

void MemoryBlobs::Put(const std::string& name, std::vector<std::byte> bytes) {
  const MutexLock lock(&mutex_);
  blobs_[name] = std::move(bytes);
}

void MemoryBlobs::Remove(const std::string& name) {
  const MutexLock lock(&mutex_);
  blobs_.erase(name);
}

void MemoryBlobs::FlipBit(const std::string& name, size_t bit) {
  const MutexLock lock(&mutex_);
  blobs_.at(name).at(bit / 8) ^= static_cast<std::byte>(1u << bit % 8);
}

void MemoryBlobs::Truncate(const std::string& name, size_t bytes) {
  const MutexLock lock(&mutex_);
  blobs_.at(name).resize(bytes);
}

void MemoryBlobs::Swap(const std::string& one, const std::string& other) {
  const MutexLock lock(&mutex_);
  std::swap(blobs_.at(one), blobs_.at(other));
}

uint64_t MemoryBlobs::bytes() const {
  const MutexLock lock(&mutex_);
  uint64_t sum = 0;
  for (const auto& [name, bytes] : blobs_) sum += bytes.size();
  return sum;
}

// ---- The store ----

void MemoryBlobStore::Life::Set(MemoryBlobStore* store) {
  const MutexLock lock(&mutex_);
  store_ = store;
}

MemoryBlobStore* MemoryBlobStore::Life::store() const {
  const MutexLock lock(&mutex_);
  return store_;
}

MemoryBlobStore::MemoryBlobStore(std::shared_ptr<MemoryBlobs> blobs,
                                 const MemoryBlobStoreOptions& options, Executor* executor,
                                 Clock* clock)
    : blobs_(std::move(blobs)),
      options_(options),
      executor_(executor),
      clock_(clock),
      life_(std::make_shared<Life>()) {
  life_->Set(this);
}

MemoryBlobStore::~MemoryBlobStore() {
  life_->Set(nullptr);
  std::map<BlobRequest*, uint64_t> left;
  {
    const MutexLock lock(&mutex_);
    left.swap(under_way_);
  }
  for (const auto& [request, number] : left) {
    End(request, Status(Code::kLate, "the store is closed"));
  }
}

void MemoryBlobStore::Later(Task task) {
  if (executor_ == nullptr) return task();
  executor_->Post([life = life_, task = std::move(task)] {
    if (life->store() != nullptr) task();
  });
}

void MemoryBlobStore::Submit(BlobRequest* request) {
  AQ_CHECK(CheckBlobName(request->name).ok());
  uint64_t number = 0;
  {
    const MutexLock lock(&mutex_);
    ++requests_[request->kind];
    if (under_way_.size() < options_.max_queued) {
      number = next_number_++;
      under_way_[request] = number;
    }
  }
  if (number == 0) {
    return Complete(request, Status(Code::kBusy, "the queue is full"));
  }
  if (executor_ != nullptr && clock_ != nullptr && request->deadline_nanos != INT64_MAX) {
    executor_->PostAt(request->deadline_nanos, [life = life_, request, number] {
      MemoryBlobStore* const store = life->store();
      if (store != nullptr) store->GiveUp(request, number, "the deadline passed");
    });
  }
  Later([this, request, number] { Proceed(request, number); });
}

void MemoryBlobStore::Proceed(BlobRequest* request, uint64_t number) {
  std::function<void(const BlobRequest&)> hook;
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(request);
    if (found == under_way_.end() || found->second != number) return;
    if (hangs_) {
      held_[number] = request;
      return;
    }
    hook = hook_;
  }
  if (hook) hook(*request);
  bool failed = false;
  {
    const MutexLock lock(&mutex_);
    failed = FailsNow(request);
  }
  if (!failed) CarryOut(request);
  {
    const MutexLock lock(&mutex_);
    under_way_.erase(request);
  }
  End(request, std::move(request->status));
}

void MemoryBlobStore::End(BlobRequest* request, Status status) {
  counters_.Count(*request, status);
  Complete(request, std::move(status));
}

bool MemoryBlobStore::FailsNow(BlobRequest* request) {
  if (clock_ != nullptr && request->deadline_nanos <= clock_->NowNanos()) {
    request->status = Status(Code::kLate, "the deadline passed");
    return true;
  }
  if (all_.code != Code::kOk) {
    request->status = Status(all_.code, message_);
    return true;
  }
  Fault& fault = next_[request->kind];
  if (fault.count == 0) return false;
  --fault.count;
  request->status = Status(fault.code, "injected");
  return true;
}

void MemoryBlobStore::GiveUp(BlobRequest* request, uint64_t number, const char* why) {
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(request);
    if (found == under_way_.end() || found->second != number) return;
    if (holds_ && held_.contains(number)) return;
    held_.erase(number);
    under_way_.erase(found);
  }
  End(request, Status(Code::kLate, why));
}

void MemoryBlobStore::Cancel(BlobRequest* request) {
  uint64_t number = 0;
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(request);
    if (found == under_way_.end()) return;
    number = found->second;
  }
  Later([this, request, number] { GiveUp(request, number, "it was cancelled"); });
}

void MemoryBlobStore::CarryOut(BlobRequest* request) {
  switch (request->kind) {
    case BlobKind::kRead:
    case BlobKind::kLook:
      return Read(request);
    case BlobKind::kWrite:
      return Write(request);
    case BlobKind::kRemove: {
      const MutexLock lock(&blobs_->mutex_);
      const auto found = blobs_->blobs_.find(request->name);
      const bool meant = found != blobs_->blobs_.end() &&
                         (request->version.empty() || request->version == VersionOf(found->second));
      if (meant) blobs_->blobs_.erase(found);
      request->status = meant ? Status() : Status(Code::kNotFound);
    }
  }
}

void MemoryBlobStore::Read(BlobRequest* request) {
  const MutexLock lock(&blobs_->mutex_);
  const auto found = blobs_->blobs_.find(request->name);
  if (found == blobs_->blobs_.end()) {
    request->status = Status(Code::kNotFound);
    return;
  }
  const std::vector<std::byte>& bytes = found->second;
  request->blob_bytes = bytes.size();
  const bool look = request->kind == BlobKind::kLook;
  if (look) request->version = VersionOf(bytes);
  const size_t room = request->head.size() + request->body.size();
  if (bytes.size() < request->head.size() || (!look && bytes.size() > room)) {
    request->status = Status(Code::kCorrupt, "it does not fit into head and body");
    return;
  }
  std::ranges::copy_n(bytes.begin(), static_cast<ptrdiff_t>(request->head.size()),
                      request->head.begin());
  if (!look) {
    std::copy(bytes.begin() + static_cast<ptrdiff_t>(request->head.size()), bytes.end(),
              request->body.begin());
  }
  request->status = Status();
}

void MemoryBlobStore::Write(BlobRequest* request) {
  AQ_CHECK(request->body_bytes <= request->body.size());
  const MutexLock lock(&blobs_->mutex_);
  auto& blobs = blobs_->blobs_;
  const auto found = blobs.find(request->name);
  request->existed = found != blobs.end() && request->if_absent;
  request->status = Status();
  if (request->existed) return;
  uint64_t used = request->head.size() + request->body_bytes;
  for (const auto& [name, bytes] : blobs) {
    if (name != request->name) used += bytes.size();
  }
  if (options_.capacity_bytes != 0 && used > options_.capacity_bytes) {
    request->status = Status(Code::kNoSpace, "the store is full");
    return;
  }
  std::vector<std::byte> bytes(request->head.begin(), request->head.end());
  const auto body = request->body.first(request->body_bytes);
  bytes.insert(bytes.end(), body.begin(), body.end());
  blobs[request->name] = std::move(bytes);
}

void MemoryBlobStore::List(std::string_view prefix, std::string_view after, size_t max,
                           std::function<void(Result<Names>)> on_done) {
  Status failure;
  {
    const MutexLock lock(&mutex_);
    if (all_.code != Code::kOk) failure = Status(all_.code, message_);
  }
  Names names;
  {
    const MutexLock lock(&blobs_->mutex_);
    for (const auto& [name, bytes] : blobs_->blobs_) {
      if (names.size() == max) break;
      if (name > after && name.starts_with(prefix)) names.push_back({name, bytes.size()});
    }
  }
  Later([failure, names = std::move(names), on_done = std::move(on_done)]() mutable {
    if (failure.ok()) {
      on_done(std::move(names));
    } else {
      on_done(failure);
    }
  });
}

BlobUsage MemoryBlobStore::Usage() const {
  const uint64_t bytes = blobs_->bytes();
  const MutexLock lock(&mutex_);
  return {
      .capacity_bytes = options_.capacity_bytes, .used_bytes = bytes, .queued = under_way_.size()};
}

std::vector<std::pair<std::string, uint64_t>> MemoryBlobStore::Counters() const {
  return counters_.ByName();
}

// ---- Faults ----

void MemoryBlobStore::Hang(bool on, bool holds) {
  std::map<uint64_t, BlobRequest*> go_on;
  {
    const MutexLock lock(&mutex_);
    hangs_ = on;
    holds_ = holds;
    if (!on) go_on.swap(held_);
  }
  for (const auto& [number, request] : go_on) {
    Later([this, request = request, number = number] { Proceed(request, number); });
  }
}

void MemoryBlobStore::Fail(Code code, std::string message) {
  const MutexLock lock(&mutex_);
  all_.code = code;
  message_ = std::move(message);
}

void MemoryBlobStore::FailNext(BlobKind kind, Code code, int count) {
  const MutexLock lock(&mutex_);
  next_[kind] = {.code = code, .count = count};
}

void MemoryBlobStore::OnRequest(std::function<void(const BlobRequest&)> hook) {
  const MutexLock lock(&mutex_);
  hook_ = std::move(hook);
}

uint64_t MemoryBlobStore::requests(BlobKind kind) const {
  const MutexLock lock(&mutex_);
  const auto found = requests_.find(kind);
  return found == requests_.end() ? 0 : found->second;
}

size_t MemoryBlobStore::held() const {
  const MutexLock lock(&mutex_);
  return held_.size();
}

}  // namespace aquifer
