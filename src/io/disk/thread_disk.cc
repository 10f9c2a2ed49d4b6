#include "io/disk/thread_disk.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "io/disk/group_ledger.h"
#include "io/disk/io_progress.h"
#include "io/disk/open_files.h"

namespace aquifer {
namespace {

constexpr uint32_t kMaxThreads = 32;                    // More only wait for the same device.
constexpr uint64_t kMaxBulkBytes = uint64_t{16} << 20;  // A read waits behind these.

// Submit() puts the group into a queue and gives the pool one task for each request; the tasks take
// requests from the queue in order, and in turn from that of bulk, of which only so much is at the
// device at once.
class ThreadDisk final : public Disk {
 public:
  ThreadDisk(const DiskOptions& options, std::unique_ptr<DiskDirectory> directory,
             Executor* executor)
      : directory_(std::move(directory)),
        ledger_(options.max_queued, executor),
        files_(directory_.get(), OpenFiles::MaxOpen(kMaxThreads)),
        pool_(NewThreadWorkerPool(
            static_cast<int>(std::clamp(options.queue_depth, 1u, kMaxThreads)), "aq-disk")) {}

  ~ThreadDisk() override {
    size_t idle_tasks = 0;
    {
      const MutexLock lock(&mutex_);
      closing_ = true;
      idle_tasks = std::exchange(idle_tasks_, 0);
    }
    for (; idle_tasks > 0; --idle_tasks) RunNext();
    pool_.reset();  // Runs what was given: quickly, for what is not at the device yet.
  }

  void Submit(IoGroup* group) override {
    GroupLedger::Active* active = ledger_.Admit(group);
    if (active == nullptr) return;
    const size_t requests = active->remaining();
    {
      const MutexLock lock(&mutex_);
      (active->bulk() ? bulk_ : queue_).Push(active);
    }
    for (size_t i = 0; i < requests; ++i) pool_->Run([this] { RunNext(); });
  }

  void Remember(std::span<std::byte>) override {}
  void Forget(std::span<std::byte>) override {}
  Result<std::vector<DiskFile>> List() override { return directory_->List(); }
  std::string Describe() const override { return directory_->Describe("threads"); }
  DiskStats stats() const override { return ledger_.stats(); }

 private:
  void RunNext() {
    GroupQueue::Next next;
    bool bulk = false;
    bool closing = false;
    {
      const MutexLock lock(&mutex_);
      const bool bulk_may = !bulk_.empty() && (closing_ || bulk_bytes_ < kMaxBulkBytes);
      bulk = bulk_may && (bulk_turn_ || queue_.empty());
      if (!bulk && queue_.empty()) {
        ++idle_tasks_;  // Until EndBulk().
        return;
      }
      next = (bulk ? bulk_ : queue_).Pop();
      bulk_turn_ = !bulk;
      if (bulk) bulk_bytes_ += next.request->data.size();
      closing = closing_;
    }
    IoRequest* request = next.request;
    const uint64_t bytes = request->data.size();
    request->status = closing ? Status(Code::kUnavailable, "the disk is closing") : Do(request);
    ledger_.Finish(next.active, *request);
    ledger_.Flush();
    if (bulk) EndBulk(bytes);
  }

  void EndBulk(uint64_t bytes) {
    const MutexLock lock(&mutex_);
    bulk_bytes_ -= bytes;
    if (closing_) return;
    for (uint32_t i = 0; i < kMaxThreads && idle_tasks_ > 0; ++i, --idle_tasks_) {
      pool_->Run([this] { RunNext(); });
    }
  }

  Status Do(IoRequest* request) {
    Status status;
    switch (request->kind) {
      case IoKind::kCreate:
        status = directory_->CreateFile(request->file, request->length);
        Drop(request->file);
        return status;
      case IoKind::kRemove:
        status = directory_->RemoveFile(request->file);
        Drop(request->file);
        return status;
      case IoKind::kRead:
      case IoKind::kWrite:
      case IoKind::kSync:
        break;
    }
    AQ_ASSIGN_OR_RETURN(OpenFile * file, Acquire(request->file));
    status = Move(*file, request);
    const MutexLock lock(&files_mutex_);
    files_.Release(file);
    return status;
  }

  Status Move(const OpenFile& file, IoRequest* request) {
    const auto path_of = [this](uint32_t number) { return directory_->PathOf(number); };
    AQ_RETURN_IF_ERROR(CheckWithin(*request, file.bytes, path_of));
    size_t done = 0;
    while (TakeResult(Call(file.descriptor.get(), *request, done), request, &done, path_of) ==
           IoStep::kContinue) {
    }
    return std::move(request->status);
  }

  int64_t Call(int fd, const IoRequest& request, size_t done) {
    const std::span<std::byte> rest = request.data.subspan(done);
    const auto offset = static_cast<off_t>(request.offset + done);
    ledger_.CountCalls(1);
    int64_t result = -1;
    if (request.kind == IoKind::kRead) {
      result = ::pread(fd, rest.data(), rest.size(), offset);
    } else if (request.kind == IoKind::kWrite) {
      result = ::pwrite(fd, rest.data(), rest.size(), offset);
    } else {
      result = ::fdatasync(fd);
    }
    return result < 0 ? -errno : result;
  }

  Result<OpenFile*> Acquire(uint32_t number) {
    const MutexLock lock(&files_mutex_);
    return files_.Acquire(number);
  }

  void Drop(uint32_t number) {
    const MutexLock lock(&files_mutex_);
    files_.Drop(number);
  }

  const std::unique_ptr<DiskDirectory> directory_;
  GroupLedger ledger_;

  // Held while a file is opened or closed, which may hang: never by who submits.
  Mutex files_mutex_;
  OpenFiles files_ AQ_GUARDED_BY(files_mutex_);

  Mutex mutex_;
  GroupQueue queue_ AQ_GUARDED_BY(mutex_);
  GroupQueue bulk_ AQ_GUARDED_BY(mutex_);
  bool bulk_turn_ AQ_GUARDED_BY(mutex_) = false;
  uint64_t bulk_bytes_ AQ_GUARDED_BY(mutex_) = 0;  // At the device.
  size_t idle_tasks_ AQ_GUARDED_BY(mutex_) = 0;    // That found only bulk, and no room for it.
  bool closing_ AQ_GUARDED_BY(mutex_) = false;

  std::unique_ptr<WorkerPool> pool_;  // Last: its threads use all of the above.
};

}  // namespace

std::unique_ptr<Disk> NewThreadDisk(const DiskOptions& options,
                                    std::unique_ptr<DiskDirectory> directory, Executor* executor) {
  return std::make_unique<ThreadDisk>(options, std::move(directory), executor);
}

}  // namespace aquifer
