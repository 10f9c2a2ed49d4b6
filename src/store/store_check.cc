#include "store/store_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/hash_mix.h"
#include "base/mutex.h"

namespace aquifer {
namespace {

constexpr size_t kPage = 4096;
constexpr int64_t kAskAgainNanos = 50'000'000;
constexpr int64_t kLeftoverSeconds = 86'400;  // What cannot be removed, where a store forgets.

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, FreeMemory>;

Memory NewPages(size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes));
  AQ_CHECK(memory != nullptr);
  return Memory(memory);
}

// The same bytes for the same seed, and no others.
void FillFrom(uint64_t seed, std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = SplitMix(&seed);
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

// A few requests at the same time, and all that they need. It lives until the last one is done,
// also where nobody waits for it any more: then a store still has its memory.
class Wave {
 public:
  Wave(size_t count, size_t blob_bytes, Clock* clock) : blob_bytes_(blob_bytes), clock_(clock) {
    for (size_t i = 0; i < count; ++i) {
      requests_.emplace_back();
      memory_.push_back(NewPages(blob_bytes));
    }
    nanos_.resize(count);
  }

  size_t size() const { return requests_.size(); }
  BlobRequest& request(size_t i) { return requests_[i]; }
  std::span<std::byte> memory(size_t i) { return {memory_[i].get(), blob_bytes_}; }
  int64_t nanos(size_t i) const { return nanos_[i]; }

  // False: not all are done in time.
  static bool Run(const std::shared_ptr<Wave>& wave, BlobStore* store, int64_t until) {
    wave->begun_ = wave->clock_->NowNanos();
    {
      const MutexLock lock(&wave->mutex_);
      wave->left_ = wave->size();
      wave->self_ = wave;
    }
    for (size_t i = 0; i < wave->size(); ++i) {
      wave->requests_[i].on_done = [at = wave.get(), i](BlobRequest&) { at->Done(i); };
    }
    for (BlobRequest& request : wave->requests_) store->Submit(&request);
    return wave->Await(until);
  }

 private:
  void Done(size_t i) {
    nanos_[i] = clock_->NowNanos() - begun_;
    std::shared_ptr<Wave> last;  // Goes after the lock, and may be all that there is.
    const MutexLock lock(&mutex_);
    if (--left_ == 0) last = std::move(self_);
    changed_.NotifyAll();
  }

  bool Await(int64_t until) {
    const MutexLock lock(&mutex_);
    while (left_ > 0) {
      const int64_t now = clock_->NowNanos();
      if (now >= until) return false;
      changed_.WaitFor(&mutex_, until - now);
    }
    return true;
  }

  const size_t blob_bytes_;
  Clock* const clock_;
  std::vector<BlobRequest> requests_;
  std::vector<Memory> memory_;
  std::vector<int64_t> nanos_;  // Each is its request's until that is done.
  int64_t begun_ = 0;

  Mutex mutex_;
  Condition changed_;
  size_t left_ AQ_GUARDED_BY(mutex_) = 0;
  // While requests are under way: a store outlives whoever waits for it.
  std::shared_ptr<Wave> self_ AQ_GUARDED_BY(mutex_);
};

// Blobs of one size.
class Trial {
 public:
  Trial(BlobStore* store, const StoreCheckOptions& options, Clock* clock, Random* random,
        size_t count, size_t blob_bytes, size_t at_once)
      : store_(store),
        options_(options),
        clock_(clock),
        count_(count),
        blob_bytes_(blob_bytes),
        at_once_(at_once),
        seed_(random->Next64()) {}

  // Until the store is there, or patience is at its end; what is wrong is told by what follows.
  void AwaitStore() {
    const int64_t until = clock_->NowNanos() + options_.patience_nanos;
    Mutex mutex;
    Condition never;
    while (clock_->NowNanos() < until) {
      std::vector<int64_t> nanos;
      const Code code = RunWave(BlobKind::kLook, 0, 1, &nanos).code();
      if (code != Code::kUnavailable && code != Code::kBusy) return;
      const MutexLock lock(&mutex);
      never.WaitFor(&mutex, kAskAgainNanos);
    }
  }

  Status Run(StoreReport* report) {
    Status status;
    for (const BlobKind kind : {BlobKind::kWrite, BlobKind::kLook, BlobKind::kRead}) {
      status = Measure(kind, report);
      if (!status.ok()) break;
    }
    // Whatever became of the rest. Where nothing could be written there is nothing to say of it.
    const std::string step = report->step;
    Status removed = Measure(BlobKind::kRemove, report);
    if (status.ok()) return removed;
    report->step = step;
    if (removed.ok()) report->measures.pop_back();
    return status;
  }

 private:
  std::string NameOf(size_t number) const {
    return fmt::format("aquifer-check/{:016x}-{}", seed_, number);
  }

  Status Measure(BlobKind kind, StoreReport* report) {
    report->step = fmt::format("{} {} KiB", StepName(kind), blob_bytes_ / 1024);
    std::vector<int64_t> nanos;
    const int64_t begun = clock_->NowNanos();
    for (size_t first = 0; first < count_; first += at_once_) {
      AQ_RETURN_IF_ERROR(RunWave(kind, first, std::min(at_once_, count_ - first), &nanos));
    }
    const double seconds = static_cast<double>(clock_->NowNanos() - begun) / 1e9;
    std::sort(nanos.begin(), nanos.end());
    report->measures.push_back(
        {.kind = kind,
         .blob_bytes = blob_bytes_,
         .count = count_,
         .at_once = at_once_,
         .median_nanos = nanos[nanos.size() / 2],
         .worst_nanos = nanos.back(),
         .bytes_per_second = static_cast<double>(count_ * blob_bytes_) / std::max(seconds, 1e-9)});
    report->step.clear();
    return Status();
  }

  static std::string_view StepName(BlobKind kind) {
    switch (kind) {
      case BlobKind::kRead:
        return "reading";
      case BlobKind::kLook:
        return "looking for";
      case BlobKind::kWrite:
        return "writing";
      case BlobKind::kRemove:
        return "removing";
    }
    return "";
  }

  Status RunWave(BlobKind kind, size_t first, size_t count, std::vector<int64_t>* nanos) {
    const auto wave = std::make_shared<Wave>(count, blob_bytes_, clock_);
    const int64_t deadline = clock_->NowNanos() + options_.request_nanos;
    for (size_t i = 0; i < count; ++i) {
      BlobRequest& request = wave->request(i);
      const std::span<std::byte> memory = wave->memory(i);
      request.kind = kind;
      request.name = NameOf(first + i);
      request.deadline_nanos = deadline;
      if (kind != BlobKind::kRead && kind != BlobKind::kWrite) continue;
      request.head = memory.first(kPage);
      request.body = memory.subspan(kPage);
      request.body_bytes = kind == BlobKind::kWrite ? request.body.size() : 0;
      request.expiry_unix_seconds = clock_->UnixSeconds() + kLeftoverSeconds;
      // A read must bring what was written, and not what was here.
      FillFrom(kind == BlobKind::kWrite ? seed_ + first + i : ~seed_, memory);
    }
    if (!Wave::Run(wave, store_, deadline + options_.grace_nanos)) {
      return Status(Code::kLate,
                    "it does not answer, not even to say that it is too late; is the "
                    "file system or the server hanging?");
    }
    for (size_t i = 0; i < count; ++i) {
      AQ_RETURN_IF_ERROR(wave->request(i).status);
      AQ_RETURN_IF_ERROR(Judge(kind, first + i, wave->request(i), wave->memory(i)));
      nanos->push_back(wave->nanos(i));
    }
    return Status();
  }

  Status Judge(BlobKind kind, size_t number, const BlobRequest& request,
               std::span<const std::byte> memory) const {
    const bool sized = kind == BlobKind::kLook || kind == BlobKind::kRead;
    if (sized && request.blob_bytes != blob_bytes_) {
      return Status(Code::kCorrupt, fmt::format("{} bytes were written and {} are there",
                                                blob_bytes_, request.blob_bytes));
    }
    if (kind != BlobKind::kRead) return Status();
    const Memory written = NewPages(blob_bytes_);
    FillFrom(seed_ + number, {written.get(), blob_bytes_});
    if (std::memcmp(written.get(), memory.data(), blob_bytes_) == 0) return Status();
    return Status(Code::kCorrupt, "what was read is not what was written");
  }

  BlobStore* const store_;
  const StoreCheckOptions& options_;
  Clock* const clock_;
  const size_t count_;
  const size_t blob_bytes_;
  const size_t at_once_;
  const uint64_t seed_;
};

}  // namespace

StoreReport CheckStore(BlobStore* store, const StoreCheckOptions& options, Clock* clock,
                       Random* random) {
  StoreReport report;
  Trial small(store, options, clock, random, options.small_blobs, kPage, 1);
  small.AwaitStore();
  report.status = small.Run(&report);
  if (!report.status.ok()) return report;
  Trial large(store, options, clock, random, options.large_blobs, options.large_bytes,
              options.at_once);
  report.status = large.Run(&report);
  return report;
}

std::string_view BlobKindName(BlobKind kind) {
  switch (kind) {
    case BlobKind::kRead:
      return "read";
    case BlobKind::kLook:
      return "look";
    case BlobKind::kWrite:
      return "write";
    case BlobKind::kRemove:
      return "remove";
  }
  return "";
}

}  // namespace aquifer
