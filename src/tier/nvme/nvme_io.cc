#include "tier/nvme/nvme_io.h"

#include <cstring>
#include <set>
#include <utility>

#include "base/mutex.h"

namespace aquifer {

// Requests that a tier left at its drive. They stay reachable from here, so that one which a dead
// drive never completes is known to be held on purpose. Tiers of several executors meet here.
struct NvmeIo::Orphans {
  static Orphans& Get() {
    static Orphans* const orphans = new Orphans;  // Never destroyed: completions may come late.
    return *orphans;
  }

  Mutex mutex;
  std::set<Io*> ios AQ_GUARDED_BY(mutex);  // lookup only: never walked
};

PageBuffer::PageBuffer(size_t bytes)
    : bytes_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes))), size_(bytes) {
  AQ_CHECK(bytes_ != nullptr && bytes % kPageBytes == 0);
  std::memset(bytes_.get(), 0, bytes);
}

NvmeIo::~NvmeIo() {
  Orphans& orphans = Orphans::Get();
  const MutexLock lock(&orphans.mutex);
  for (Io* io : {oldest_, hung_head_}) {
    while (io != nullptr) {
      Io* const next = io->newer;
      io->owner = nullptr;  // `done` stays, unrun: it may hold memory that the drive still uses.
      orphans.ios.insert(io);
      io = next;
    }
  }
}

void NvmeIo::Submit(std::vector<IoRequest> requests, Done done, std::vector<PageBuffer> keep) {
  Start({.requests = std::move(requests), .on_done = {}}, std::move(done), std::move(keep));
}

void NvmeIo::SubmitBulk(std::vector<IoRequest> requests, Done done) {
  Start({.requests = std::move(requests), .on_done = {}, .bulk = true}, std::move(done), {});
}

void NvmeIo::Start(IoGroup group, Done done, std::vector<PageBuffer> keep) {
  auto* io = new Io;  // Freed by Finish().
  io->owner = this;
  io->group = std::move(group);
  io->group.on_done = [io](IoGroup&) { Finish(io); };
  io->done = std::move(done);
  io->keep = std::move(keep);
  for (const IoRequest& request : io->group.requests) io->bytes += request.data.size();
  if (oldest_ == nullptr) oldest_nanos_ = clock_->NowNanos();
  io->older = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer) = io;
  newest_ = io;
  ++in_flight_;
  if (oldest_ == io && on_oldest) on_oldest();
  disk_->Submit(&io->group);
}

void NvmeIo::Finish(Io* io) {
  const std::unique_ptr<Io> freed(io);
  if (io->owner == nullptr) {
    Orphans& orphans = Orphans::Get();
    const MutexLock lock(&orphans.mutex);
    orphans.ios.erase(io);
    return;
  }
  io->owner->Unlink(io);
  io->done(io->group.requests);
}

void NvmeIo::Unlink(Io* io) {
  --in_flight_;
  if (io->hung) --hung_;
  const bool was_oldest = io == oldest_;
  if (was_oldest) oldest_nanos_ = clock_->NowNanos();
  Io*& head = io->hung ? hung_head_ : oldest_;
  (io->older == nullptr ? head : io->older->newer) = io->newer;
  if (io->newer != nullptr) {
    io->newer->older = io->older;
  } else if (!io->hung) {
    newest_ = io->older;
  }
  if (was_oldest && oldest_ != nullptr && on_oldest) on_oldest();
}

void NvmeIo::MarkAllHung() {
  while (oldest_ != nullptr) {
    Io* const io = oldest_;
    oldest_ = io->newer;
    if (oldest_ != nullptr) oldest_->older = nullptr;
    io->hung = true;
    ++hung_;
    io->older = nullptr;
    io->newer = hung_head_;
    if (hung_head_ != nullptr) hung_head_->older = io;
    hung_head_ = io;
  }
  newest_ = nullptr;
}

Status FirstError(const std::vector<IoRequest>& requests) {
  for (const IoRequest& request : requests) {
    if (!request.status.ok()) return request.status;
  }
  return Status();
}

}  // namespace aquifer
