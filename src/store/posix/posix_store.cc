#include "store/posix/posix_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/thread_name.h"
#include "io/disk/errno_status.h"
#include "store/blob_counters.h"
#include "store/posix/posix_blob.h"
#include "store/posix/posix_grants.h"
#include "store/posix/posix_keeper.h"
#include "store/posix/posix_listing.h"
#include "store/posix/posix_paths.h"

namespace aquifer {
namespace {

constexpr uint64_t kMostGrantBytes = uint64_t{1} << 30;
constexpr uint64_t kLeastGrantBytes = uint64_t{64} << 10;
constexpr uint64_t kManyGrants = 64;  // As many as there are by default, of a large capacity,
constexpr uint64_t kFewGrants = 8;    // and of a small one, so that each has room for some blobs.
constexpr uint64_t kSmallGrantBytes = uint64_t{128} << 20;
constexpr int64_t kLookForLateNanos = 20'000'000;
constexpr int kLockAttempts = 200;  // A millisecond each.
constexpr int kAttempts = 8;        // At what others undo: folders that they find empty, a grant.

// What is in a queue: a request, or a listing.
struct Work {
  BlobRequest* request = nullptr;
  std::function<void()> list;
};

// One blob's id is never another's.
std::string VersionOf(const BlobLabel& label) {
  return {reinterpret_cast<const char*>(label.id.data()), label.id.size()};
}

bool IsAt(const std::string& path, const PosixBlob& blob) {
  struct stat stat = {};
  return ::lstat(path.c_str(), &stat) == 0 && stat.st_dev == blob.device &&
         stat.st_ino == blob.inode;
}

struct Lane {
  std::deque<Work> queue;
  Condition wakes;
};

class PosixStore final : public BlobStore {
 public:
  explicit PosixStore(const PosixStoreOptions& options)
      : options_(options), paths_(options.directory) {
    keeper_ = std::make_unique<PosixKeeper>(options, [this] { BeginWork(); });
    for (uint32_t i = 0; i < options.read_threads; ++i) {
      threads_.emplace_back([this] { Serve(&reads_, "aq-posix-read"); });
    }
    for (uint32_t i = 0; i < options.write_threads; ++i) {
      threads_.emplace_back([this] { Serve(&writes_, "aq-posix-write"); });
    }
    threads_.emplace_back([this] { EndTheLate(); });
  }

  ~PosixStore() override {
    {
      const MutexLock lock(&mutex_);
      closing_ = true;
      reads_.wakes.NotifyAll();
      writes_.wakes.NotifyAll();
      late_wakes_.NotifyAll();
    }
    keeper_->WakeWriters();
    for (std::thread& thread : threads_) thread.join();
    keeper_.reset();
  }

  void Submit(BlobRequest* request) override;
  void Cancel(BlobRequest* request) override;
  void List(std::string_view prefix, std::string_view after, size_t max,
            std::function<void(Result<Names>)> on_done) override;
  BlobUsage Usage() const override;
  int64_t ClockAheadSeconds() const override { return keeper_->clock_ahead_seconds(); }
  std::string Describe() const override;
  std::vector<std::pair<std::string, uint64_t>> Counters() const override;

 private:
  // --- Requests ---
  void BeginWork();
  void Serve(Lane* lane, const char* thread_name);
  bool NextWork(Lane* lane, Work* work);
  void EndTheLate();
  void TakeLate(Lane* lane, std::vector<BlobRequest*>* late) AQ_REQUIRES(mutex_);
  bool IsOver(BlobRequest* request) AQ_REQUIRES(mutex_);
  bool ShouldStop(BlobRequest* request);
  void Run(BlobRequest* request);
  void Finish(BlobRequest* request, Status status);
  void EndListing();

  // --- Blobs ---
  Status Do(BlobRequest* request);
  Status Read(BlobRequest* request);
  Status Look(BlobRequest* request);
  static Status KeepFromOthers(const PosixBlob& blob, const std::string& path);
  Status Remove(BlobRequest* request);
  Status Write(BlobRequest* request);
  Status WriteInto(const PosixKeeper::Room& room, BlobRequest* request, bool* kept, bool* lost);
  Status OpenToWrite(const PosixKeeper::Room& room, const std::string& file, bool direct,
                     Descriptor* descriptor);
  Status WriteFile(const PosixKeeper::Room& room, const std::string& file, const BlobLabel& label,
                   BlobRequest* request, Descriptor* descriptor);
  Status UnlessReplaced(Status status, const PosixBlob& blob, const BlobRequest& request) const;
  Status Publish(const std::string& file, BlobRequest* request, bool* lost);
  Status Replace(const std::string& file, BlobRequest* request);
  bool IsWhole(const std::string& path, const std::string& name);
  Result<PosixBlob> OpenToChange(const std::string& path, BlobRequest* request);
  void Retire(const Result<BlobLabel>& label);
  Status SyncNameOf(const std::string& path);

  const PosixStoreOptions options_;
  const PosixPaths paths_;
  std::unique_ptr<PosixKeeper> keeper_;  // Until all threads have ended.

  mutable Mutex mutex_;
  Condition late_wakes_;
  bool begun_ AQ_GUARDED_BY(mutex_) = false;  // It is known whether the directory can be used.
  bool closing_ AQ_GUARDED_BY(mutex_) = false;
  Lane reads_ AQ_GUARDED_BY(mutex_);
  Lane writes_ AQ_GUARDED_BY(mutex_);
  std::unordered_map<BlobRequest*, bool> under_way_ AQ_GUARDED_BY(mutex_);  // Whether cancelled.
  uint64_t listings_ AQ_GUARDED_BY(mutex_) = 0;                             // Under way.

  BlobCounters counters_;
  std::atomic<uint64_t> files_reused_{0};
  std::atomic<uint64_t> grants_lost_{0};

  std::vector<std::thread> threads_;  // Touched by the constructor and the destructor alone.
};

// --- Requests ------------------------------------------------------------------------------------

Status CheckRequest(const BlobRequest& request) {
  AQ_RETURN_IF_ERROR(CheckBlobName(request.name));
  if (request.kind == BlobKind::kWrite && request.body_bytes > request.body.size()) {
    return Status(Code::kInvalid, "body_bytes is more than body has");
  }
  return Status();
}

void PosixStore::Submit(BlobRequest* request) {
  Status status = CheckRequest(*request);
  if (status.ok()) {
    const MutexLock lock(&mutex_);
    if (listings_ + under_way_.size() < options_.most_queued) {
      under_way_.emplace(request, false);
      const bool reads = request->kind == BlobKind::kRead || request->kind == BlobKind::kLook;
      Lane* const lane = reads ? &reads_ : &writes_;
      lane->queue.push_back({.request = request, .list = {}});
      lane->wakes.NotifyOne();
      late_wakes_.NotifyOne();
      return;
    }
    status = Status(Code::kBusy);
  }
  Complete(request, std::move(status));
}

void PosixStore::Cancel(BlobRequest* request) {
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(request);
    if (found == under_way_.end()) return;  // It is done.
    found->second = true;
    late_wakes_.NotifyOne();
  }
  keeper_->WakeWriters();
}

void PosixStore::BeginWork() {
  const MutexLock lock(&mutex_);
  begun_ = true;
  reads_.wakes.NotifyAll();
  writes_.wakes.NotifyAll();
}

void PosixStore::Serve(Lane* lane, const char* thread_name) {
  NameThisThread(thread_name);
  Work work;
  while (NextWork(lane, &work)) {
    if (work.list) {
      work.list();
    } else {
      Run(work.request);
    }
    work = {};
  }
}

// False: no more will come. What is in the queue then is ended too, without being done.
bool PosixStore::NextWork(Lane* lane, Work* work) {
  const MutexLock lock(&mutex_);
  while (!closing_ && (!begun_ || lane->queue.empty())) lane->wakes.Wait(&mutex_);
  if (lane->queue.empty()) return false;
  *work = std::move(lane->queue.front());
  lane->queue.pop_front();
  return true;
}

bool PosixStore::IsOver(BlobRequest* request) {
  return closing_ || under_way_.at(request) ||
         options_.clock->NowNanos() >= request->deadline_nanos;
}

bool PosixStore::ShouldStop(BlobRequest* request) {
  const MutexLock lock(&mutex_);
  return IsOver(request);
}

// The one thread that never touches the directory, and so never hangs with it.
void PosixStore::EndTheLate() {
  NameThisThread("aq-posix-late");
  while (true) {
    std::vector<BlobRequest*> late;
    {
      const MutexLock lock(&mutex_);
      if (closing_) return;
      TakeLate(&reads_, &late);
      TakeLate(&writes_, &late);
      if (late.empty() && reads_.queue.empty() && writes_.queue.empty()) {
        late_wakes_.Wait(&mutex_);
      } else if (late.empty()) {
        late_wakes_.WaitFor(&mutex_, kLookForLateNanos);
      }
    }
    for (BlobRequest* const request : late) Finish(request, Status(Code::kLate));
  }
}

void PosixStore::TakeLate(Lane* lane, std::vector<BlobRequest*>* late) {
  std::deque<Work> rest;
  for (Work& work : lane->queue) {
    if (work.request != nullptr && IsOver(work.request)) {
      late->push_back(work.request);
    } else {
      rest.push_back(std::move(work));
    }
  }
  lane->queue.swap(rest);
}

void PosixStore::Run(BlobRequest* request) {
  bool closing = false;
  bool over = false;
  {
    const MutexLock lock(&mutex_);
    closing = closing_;
    over = IsOver(request);
  }
  if (closing) return Finish(request, Status(Code::kUnavailable, "the store is closing"));
  if (over) return Finish(request, Status(Code::kLate));
  Finish(request, Do(request));
}

void PosixStore::Finish(BlobRequest* request, Status status) {
  {
    const MutexLock lock(&mutex_);
    under_way_.erase(request);
  }
  counters_.Count(*request, status);
  Complete(request, std::move(status));
}

// --- Reading -------------------------------------------------------------------------------------

Status PosixStore::Do(BlobRequest* request) {
  Status status;
  switch (request->kind) {
    case BlobKind::kRead:
      status = Read(request);
      break;
    case BlobKind::kLook:
      status = Look(request);
      break;
    case BlobKind::kWrite:
      status = Write(request);
      break;
    case BlobKind::kRemove:
      status = Remove(request);
      break;
  }
  if (status.code() != Code::kNotFound) return status;
  AQ_RETURN_IF_ERROR(keeper_->readable());
  // A miss is a statement about the store: that has to be there. One look-up, which is in a cache.
  if (::access(paths_.Marker().c_str(), F_OK) == 0 || !IsGone(errno)) return status;
  return Unusable(options_.directory, "is gone", "mount its file system, or make it again");
}

Status PosixStore::Read(BlobRequest* request) {
  AQ_ASSIGN_OR_RETURN(const PosixBlob blob, OpenBlob(paths_.Blob(request->name),
                                                     keeper_->direct() && IsAligned(*request)));
  const Result<BlobLabel> label = ReadBlob(blob, request);
  if (!label.ok()) return UnlessReplaced(label.status(), blob, *request);
  keeper_->NoteRead(label->grant);
  return Status();
}

Status PosixStore::Look(BlobRequest* request) {
  AQ_ASSIGN_OR_RETURN(const PosixBlob blob, OpenBlob(paths_.Blob(request->name),
                                                     keeper_->direct() && IsAligned(*request)));
  const Result<BlobLabel> label = LookAtBlob(blob, request);
  if (label.ok()) request->version = VersionOf(*label);
  return UnlessReplaced(label.status(), blob, *request);
}

// A file that was reclaimed between its opening and its locking may be another blob's by now. The
// name tells: it is gone, or leads elsewhere.
Status PosixStore::UnlessReplaced(Status status, const PosixBlob& blob,
                                  const BlobRequest& request) const {
  const bool judged = status.code() != Code::kCorrupt || IsAt(paths_.Blob(request.name), blob);
  return judged ? status : Status(Code::kNotFound);
}

bool PosixStore::IsWhole(const std::string& path, const std::string& name) {
  const Result<PosixBlob> blob = OpenBlob(path, keeper_->direct());
  return blob.ok() && ReadBlobLabel(*blob, name).ok();
}

// --- Removing ------------------------------------------------------------------------------------

// Whoever takes a name from a file has a lock on it, so that a reclaim, whose lock is exclusive,
// never takes it from another one. That lock is held for a moment only.
Result<PosixBlob> PosixStore::OpenToChange(const std::string& path, BlobRequest* request) {
  while (true) {
    Result<PosixBlob> blob = OpenBlob(path, keeper_->direct());
    const bool there = ::access(path.c_str(), F_OK) == 0;
    if (blob.ok() || blob.status().code() != Code::kNotFound || !there) return blob;
    struct stat stat = {};
    // With one link it has no place in a grant, and nobody else will remove it.
    if (::lstat(path.c_str(), &stat) == 0 && stat.st_nlink < 2) return blob;
    if (ShouldStop(request)) return Status(Code::kLate);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// So that its name is not another's when it is taken: whoever replaces it needs the lock, too.
Status PosixStore::KeepFromOthers(const PosixBlob& blob, const std::string& path) {
  if (::flock(blob.file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status(Code::kBusy, fmt::format("somebody uses {}", path));
  }
  return IsAt(path, blob) ? Status() : Status(Code::kNotFound);
}

Status PosixStore::Remove(BlobRequest* request) {
  AQ_RETURN_IF_ERROR(keeper_->writable());
  const std::string path = paths_.Blob(request->name);
  Result<BlobLabel> label = Status(Code::kCorrupt);
  {
    const Result<PosixBlob> blob = OpenToChange(path, request);
    if (!blob.ok() && blob.status().code() != Code::kNotFound) return blob.status();
    if (blob.ok()) label = ReadBlobLabel(*blob, request->name);
    if (!request->version.empty()) {
      if (!label.ok() || VersionOf(*label) != request->version) return Status(Code::kNotFound);
      AQ_RETURN_IF_ERROR(KeepFromOthers(*blob, path));
    }
    if (::unlink(path.c_str()) != 0) {
      return IsGone(errno) ? Status(Code::kNotFound) : ErrnoStatus(errno, "remove", path);
    }
  }
  if (options_.sync) AQ_RETURN_IF_ERROR(SyncNameOf(path));
  RemoveEmptyBlobFolders(paths_, request->name);
  Retire(label);
  return Status();
}

// Of a blob that has no name any more. One that cannot be read has no label either: its file stays
// in its grant until that is tidied.
void PosixStore::Retire(const Result<BlobLabel>& label) {
  if (!label.ok()) return;
  const std::string file = FindDataFile(paths_, *label);
  if (!file.empty() && !RetireDataFile(paths_, file, &*label)) keeper_->RemoveLater(*label);
}

Status PosixStore::SyncNameOf(const std::string& path) {
  Status status = SyncFolder(path.substr(0, path.rfind('/')));
  // A folder that others found empty and removed: nothing of it is left to be synced.
  return status.code() == Code::kNotFound ? Status() : status;
}

// --- Writing -------------------------------------------------------------------------------------

Status PosixStore::Write(BlobRequest* request) {
  AQ_RETURN_IF_ERROR(keeper_->writable());
  request->existed = false;
  const std::string path = paths_.Blob(request->name);
  if (request->if_absent && IsWhole(path, request->name)) {
    request->existed = true;
    return options_.sync ? SyncNameOf(path) : Status();
  }
  const uint64_t blob_bytes = request->head.size() + request->body_bytes;
  const uint64_t file_bytes = BlobFileBytes(blob_bytes);
  const uint64_t folders = FoldersOf(request->name);
  Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    AQ_ASSIGN_OR_RETURN(const PosixKeeper::Room room,
                        keeper_->Use(file_bytes, folders, [&] { return ShouldStop(request); }));
    bool kept = true;
    bool lost = false;
    status = WriteInto(room, request, &kept, &lost);
    keeper_->EndUse(room.use, room.later_bytes + (kept ? 0 : BlobCharge(file_bytes, folders)),
                    lost);
    if (!lost) return status;
    ++grants_lost_;
  }
  return Status(Code::kBusy, fmt::format("{}: grants are lost as soon as they are taken ({})",
                                         options_.directory, status.message()));
}

// `kept`: bytes of the grant are in use. `lost`: the grant is not there any more, and nothing was
// written.
Status PosixStore::WriteInto(const PosixKeeper::Room& room, BlobRequest* request, bool* kept,
                             bool* lost) {
  const PosixGrant& grant = room.use->grant;
  BlobLabel label{.name = request->name,
                  .blob_bytes = request->head.size() + request->body_bytes,
                  .grant = grant.number,
                  .id = {},
                  .file = room.reuse.substr(0, room.reuse.find('-')),
                  .expiry_unix_seconds = request->expiry_unix_seconds};
  options_.random->Fill(label.id);
  if (label.file.empty()) {
    label.file =
        fmt::format("{:016x}{:016x}", options_.random->Next64(), options_.random->Next64());
  }
  const std::string file = PathIn(grant.folder, DataFileName(label));
  Descriptor descriptor;  // Locked, so that nobody takes it for a leftover.
  Status status = WriteFile(room, file, label, request, &descriptor);
  if (status.ok() && options_.sync) status = SyncFolder(grant.folder);
  if (status.code() == Code::kNotFound) {
    *lost = true;
    *kept = false;
    return status;
  }
  if (status.ok() && ShouldStop(request)) status = Status(Code::kLate);
  if (status.ok()) status = Publish(file, request, lost);
  if (status.ok() && !request->existed) {
    if (options_.sync) AQ_RETURN_IF_ERROR(SyncNameOf(paths_.Blob(request->name)));
    return status;
  }
  descriptor = Descriptor();
  *kept = !RetireDataFile(paths_, file);
  return status;
}

Status PosixStore::OpenToWrite(const PosixKeeper::Room& room, const std::string& file, bool direct,
                               Descriptor* descriptor) {
  for (const std::string& spare : room.remove) {
    ::unlink(PathIn(room.use->grant.folder, spare).c_str());
  }
  const bool reuse = !room.reuse.empty();
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (direct ? O_DIRECT : 0);
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    *descriptor = Descriptor(::open(file.c_str(), flags | (reuse ? 0 : O_EXCL), 0660));
    if (!descriptor->valid()) return ErrnoStatus(errno == ESTALE ? ENOENT : errno, "make", file);
    if (!reuse) {
      [[maybe_unused]] const int locked = ::flock(descriptor->get(), LOCK_SH | LOCK_NB);
      return Status();
    }
    // Exclusive: somebody may have opened what it was before. They find that it has one link, or
    // that it is another blob's.
    struct stat stat = {};
    if (::flock(descriptor->get(), LOCK_EX | LOCK_NB) == 0 &&
        ::fstat(descriptor->get(), &stat) == 0 && stat.st_nlink == 1) {
      ++files_reused_;
      return Status();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Status(Code::kBusy, fmt::format("somebody holds {}", file));
}

Status PosixStore::WriteFile(const PosixKeeper::Room& room, const std::string& file,
                             const BlobLabel& label, BlobRequest* request, Descriptor* descriptor) {
  AQ_RETURN_IF_ERROR(OpenToWrite(room, file, keeper_->direct() && IsAligned(*request), descriptor));
  AQ_RETURN_IF_ERROR(WriteBlob(descriptor->get(), label, *request));
  const auto bytes = static_cast<off_t>(BlobFileBytes(label.blob_bytes));
  struct stat stat = {};
  if (::fstat(descriptor->get(), &stat) != 0 ||
      (stat.st_size != bytes && ::ftruncate(descriptor->get(), bytes) != 0)) {
    return ErrnoStatus(errno, "shorten", file);
  }
  if (options_.sync && ::fdatasync(descriptor->get()) != 0) {
    return ErrnoStatus(errno, "sync", file);
  }
  [[maybe_unused]] const int shared = ::flock(descriptor->get(), LOCK_SH | LOCK_NB);
  return Status();
}

// Gives the file its name. Others may remove the folders to it as long as they are empty.
Status PosixStore::Publish(const std::string& file, BlobRequest* request, bool* lost) {
  const std::string path = paths_.Blob(request->name);
  int error = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (::link(file.c_str(), path.c_str()) == 0) return Status();
    error = errno;
    if (error == EEXIST) {
      request->existed = request->if_absent && IsWhole(path, request->name);
      if (!request->existed) return Replace(file, request);
      return Status();
    }
    if (!IsGone(error)) break;
    *lost = ::access(file.c_str(), F_OK) != 0;
    if (*lost) break;
    AQ_RETURN_IF_ERROR(MakeBlobFolders(paths_, request->name, options_.sync));
  }
  return ErrnoStatus(error, "name", path);
}

// What was there before, whole or not, is there until the new one is.
Status PosixStore::Replace(const std::string& file, BlobRequest* request) {
  const std::string path = paths_.Blob(request->name);
  const std::string second = file + std::string(kReplacementEnding);
  Result<BlobLabel> before = Status(Code::kNotFound);
  {
    const Result<PosixBlob> blob = OpenToChange(path, request);
    if (!blob.ok() && blob.status().code() != Code::kNotFound) return blob.status();
    if (blob.ok()) before = ReadBlobLabel(*blob, request->name);
    if (::link(file.c_str(), second.c_str()) != 0) return ErrnoStatus(errno, "link", second);
    for (int attempt = 0; std::rename(second.c_str(), path.c_str()) != 0; ++attempt) {
      const int error = errno;
      if (!IsGone(error) || attempt == kAttempts) {
        ::unlink(second.c_str());
        return ErrnoStatus(error, "replace", path);
      }
      AQ_RETURN_IF_ERROR(MakeBlobFolders(paths_, request->name, options_.sync));
    }
  }
  Retire(before);
  return Status();
}

// --- The rest ------------------------------------------------------------------------------------

void PosixStore::List(std::string_view prefix, std::string_view after, size_t max,
                      std::function<void(Result<Names>)> on_done) {
  const auto refused = on_done;
  auto list = [this, prefix = std::string(prefix), after = std::string(after), max,
               on_done = std::move(on_done)] {
    const Status readable = keeper_->readable();
    auto names = readable.ok() ? ListBlobs(paths_, prefix, after, max) : readable;
    EndListing();
    on_done(std::move(names));
  };
  {
    const MutexLock lock(&mutex_);
    if (listings_ + under_way_.size() < options_.most_queued) {
      ++listings_;
      writes_.queue.push_back({.request = nullptr, .list = std::move(list)});
      writes_.wakes.NotifyOne();
      return;
    }
  }
  refused(Status(Code::kBusy));
}

void PosixStore::EndListing() {
  const MutexLock lock(&mutex_);
  --listings_;
}

BlobUsage PosixStore::Usage() const {
  const uint64_t used = keeper_->used_bytes();  // Its lock comes before ours.
  const MutexLock lock(&mutex_);
  return {.capacity_bytes = options_.capacity_bytes,
          .used_bytes = used,
          .queued = under_way_.size() + listings_};
}

std::string PosixStore::Describe() const {
  return fmt::format(
      "{}{}{}", options_.directory, options_.sync ? " (synced)" : "",
      keeper_->direct() ? "" : " (through the page cache: no O_DIRECT on this file system)");
}

std::vector<std::pair<std::string, uint64_t>> PosixStore::Counters() const {
  std::vector<std::pair<std::string, uint64_t>> counters = counters_.ByName();
  counters.emplace_back("files_reused", files_reused_);
  counters.emplace_back("grants_lost", grants_lost_);
  for (auto& counter : keeper_->Counters()) counters.push_back(std::move(counter));
  return counters;
}

Status CheckOptions(const PosixStoreOptions& options) {
  const auto invalid = [](std::string why) { return Status(Code::kInvalid, std::move(why)); };
  if (options.directory.empty() || options.directory.front() != '/') {
    return invalid(fmt::format("'{}' is no absolute path", options.directory));
  }
  if (options.read_threads == 0 || options.write_threads == 0 || options.most_queued == 0) {
    return invalid("a posix store needs threads that read, threads that write, and a queue");
  }
  if (options.grant_bytes < kLeastGrantBytes) {
    return invalid(
        fmt::format("a capacity of {} bytes is too small: a grant has {} of them, and "
                    "needs {}",
                    options.capacity_bytes, options.grant_bytes, kLeastGrantBytes));
  }
  if (PosixGrants::MostGrants(options.capacity_bytes, options.grant_bytes) < 2) {
    return invalid(fmt::format("a capacity of {} bytes is less than {} and two grants of {}",
                               options.capacity_bytes, kPosixOverheadBytes, options.grant_bytes));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<BlobStore>> NewPosixStore(PosixStoreOptions options) {
  while (options.directory.size() > 1 && options.directory.ends_with('/')) {
    options.directory.pop_back();
  }
  if (options.grant_bytes == 0) {
    const uint64_t small = std::min(options.capacity_bytes / kFewGrants, kSmallGrantBytes);
    options.grant_bytes = std::clamp(options.capacity_bytes / kManyGrants, small, kMostGrantBytes);
  }
  options.grant_bytes = options.grant_bytes / kPageBytes * kPageBytes;
  AQ_RETURN_IF_ERROR(CheckOptions(options));
  return std::unique_ptr<BlobStore>(std::make_unique<PosixStore>(options));
}

}  // namespace aquifer
