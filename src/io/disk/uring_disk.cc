#include "io/disk/uring_disk.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/short_turns.h"
#include "base/thread_name.h"
#include "io/disk/errno_status.h"
#include "io/disk/group_ledger.h"
#include "io/disk/io_progress.h"
#include "io/disk/open_files.h"
#include "io/disk/ring.h"

namespace aquifer {
namespace {

using Active = GroupLedger::Active;

// A message of another thread to the disk's thread; messages keep their order.
struct Message {
  enum class Kind : uint8_t {
    kGroup,     // `active` was submitted.
    kFinished,  // `request` of `active`, a kCreate or kRemove, was done elsewhere.
    kRemember,
    kForget,
    kClose,
  };
  Kind kind = Kind::kClose;
  Active* active = nullptr;
  IoRequest* request = nullptr;
  std::span<std::byte> memory = {};
};

// Messages from any thread to one that sleeps in its ring, in which it reads `eventfd`. Only the
// first message to a sleeper costs a system call.
class Inbox {
 public:
  explicit Inbox(GroupLedger* ledger)
      : ledger_(ledger), eventfd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int eventfd() const { return eventfd_.get(); }

  void Push(const Message& message) {
    {
      const MutexLock lock(&mutex_);
      messages_.push_back(message);
      if (!Wakes(message)) return;
      sleep_ = Sleep::kAwake;
    }
    ledger_->CountCalls(1);
    const uint64_t one = 1;
    AQ_CHECK(::write(eventfd_.get(), &one, sizeof(one)) == sizeof(one));
  }

  // Tells which messages wake the thread. While the device has enough, bulk or no group does.
  enum class Sleep : uint8_t { kAwake, kAllWakes, kBulkDoesNot, kNoGroupDoes };

  // Whether there is nothing to do but sleep. If so, the next message that may wake does.
  bool PrepareToSleep(Sleep sleep) {
    const MutexLock lock(&mutex_);
    sleep_ = messages_.empty() ? sleep : Sleep::kAwake;
    return messages_.empty();
  }

  // Swaps all messages for the empty `taken`, so that both keep their memory.
  void Take(std::vector<Message>* taken) {
    const MutexLock lock(&mutex_);
    sleep_ = Sleep::kAwake;
    std::swap(messages_, *taken);
  }

 private:
  bool Wakes(const Message& message) const AQ_REQUIRES(mutex_) {
    if (sleep_ == Sleep::kAwake) return false;
    if (message.kind != Message::Kind::kGroup || sleep_ == Sleep::kAllWakes) return true;
    return sleep_ == Sleep::kBulkDoesNot && !message.active->bulk();
  }

  GroupLedger* const ledger_;
  const Descriptor eventfd_;
  Mutex mutex_;
  std::vector<Message> messages_ AQ_GUARDED_BY(mutex_);
  Sleep sleep_ AQ_GUARDED_BY(mutex_) = Sleep::kAwake;
};

// Everything but the ledger and the inbox belongs to the disk's own thread. It goes round and
// round: take messages, prepare what the depth allows, submit and wait in one call, take
// completions, hand the finished groups over in one task. It does not spin before it sleeps: with
// two cores that made 64 KiB writes four times slower, because their completions need a kernel
// thread's turn.
//
// Requests are not split: a drive reads 8 MiB at a time as fast as 1 MiB (disk_bench), and since
// a lane is first come, first served, pieces would let nobody overtake. But only so many bytes
// are at the device at once: it works on all that it has in turn, so with 64 large requests the
// first would be done when the last is, and whoever waits for them in order would wait for all.
//
// Bulk writes have a lane of their own: a read waits for what the device has of them, and never for
// all that is in the lane. A write in the lane goes to the device the moment that there is room.
// When it had to be asked for first, the device stood still for a tenth of the time.
class UringDisk final : public Disk {
 public:
  UringDisk(const DiskOptions& options, std::unique_ptr<DiskDirectory> directory,
            Executor* executor)
      : depth_(std::max(options.queue_depth, 1u)),
        directory_(std::move(directory)),
        ledger_(options.max_queued, executor),
        inbox_(&ledger_) {}

  ~UringDisk() override {
    if (!thread_.joinable()) return;
    inbox_.Push({.kind = Message::Kind::kClose});
    thread_.join();
  }

  Status Start() {
    if (inbox_.eventfd() < 0) return ErrnoStatus(errno, "make", "an eventfd");
    std::promise<Status> opened;
    thread_ = std::thread([this, &opened] { ThreadMain(&opened); });
    const Status status = opened.get_future().get();
    if (!status.ok()) thread_.join();
    return status;
  }

  void Submit(IoGroup* group) override {
    Active* active = ledger_.Admit(group);
    if (active != nullptr) inbox_.Push({.kind = Message::Kind::kGroup, .active = active});
  }

  // These travel with the groups, in order: memory that was forgotten and is submitted again, now
  // mapped elsewhere, is never taken for the old one.
  void Remember(std::span<std::byte> memory) override {
    inbox_.Push({.kind = Message::Kind::kRemember, .memory = memory});
  }
  void Forget(std::span<std::byte> memory) override {
    inbox_.Push({.kind = Message::Kind::kForget, .memory = memory});
  }

  Result<std::vector<DiskFile>> List() override { return directory_->List(); }
  std::string Describe() const override { return directory_->Describe("io_uring"); }
  DiskStats stats() const override { return ledger_.stats(); }

 private:
  static constexpr uint64_t kWakeUp = UINT64_MAX;  // As user_data; all others are slots.
  static constexpr uint64_t kMaxBytesAtDevice = uint64_t{64} << 20;
  // A read that comes waits behind these: 8 MiB are 4 ms on a drive that writes 2 GB/s. More when
  // nobody reads: with 16 MiB a drive wrote 2.8 GB/s that wrote 3.2 with 32.
  static constexpr uint64_t kMaxBulkBytes = uint64_t{32} << 20;
  static constexpr uint64_t kMaxBulkBytesWithReads = uint64_t{8} << 20;

  struct Lane {
    GroupQueue queue;       // The device has no room for these yet.
    GroupQueue::Next next;  // Taken from it, and too large for now.
    uint64_t bytes_at_device = 0;
  };
  struct Slot {
    Lane* lane = nullptr;
    Active* active = nullptr;
    IoRequest* request = nullptr;
    OpenFile* file = nullptr;
    size_t done = 0;  // Bytes.
  };

  void ThreadMain(std::promise<Status>* opened) {
    NameThisThread("aq-uring");
    RunInShortTurns();
    const size_t max_open = OpenFiles::MaxOpen(depth_);
    auto ring = Ring::Open(depth_ + 1, static_cast<uint32_t>(max_open));
    if (!ring.ok()) {
      opened->set_value(ring.status());
      return;
    }
    ring_ = *std::move(ring);
    {
      OpenFiles files(directory_.get(), max_open,
                      [this](const OpenFile& file, OpenFiles::Change change) {
                        const bool opened_now = change == OpenFiles::Change::kOpened;
                        ring_->SetFile(file.slot, opened_now ? file.descriptor.get() : -1);
                      });
      files_ = &files;
      helper_ = NewThreadWorkerPool(1, "aq-disk-files");
      slots_.resize(depth_);
      for (size_t i = depth_; i > 0; --i) free_slots_.push_back(i - 1);
      opened->set_value(Status());  // `opened` is gone from here on.
      Loop();
      helper_.reset();
    }
    ring_.reset();
  }

  void Loop() {
    ListenForWakeUp();
    while (true) {
      inbox_.Take(&messages_);
      for (const Message& message : messages_) Handle(message);
      messages_.clear();
      StartRequests();
      ledger_.Flush();  // Tells of groups that ended without the device.
      const bool may_sleep = inbox_.PrepareToSleep(HowToSleep());
      const bool nothing_under_way = free_slots_.size() == depth_ && with_helper_ == 0;
      if (closing_ && nothing_under_way && may_sleep) return;
      ledger_.CountCalls(1);
      ring_->SubmitAndWait(may_sleep ? 1 : 0);
      ring_->Reap([this](uint64_t user_data, int result) { TakeCompletion(user_data, result); });
      ledger_.Flush();  // Now, so that the callers go on while we submit what waits.
    }
  }

  Inbox::Sleep HowToSleep() const {
    if (free_slots_.empty() || first_.next.request != nullptr) return Inbox::Sleep::kNoGroupDoes;
    return bulk_.next.request != nullptr ? Inbox::Sleep::kBulkDoesNot : Inbox::Sleep::kAllWakes;
  }

  void Handle(const Message& message) {
    switch (message.kind) {
      case Message::Kind::kGroup:
        (message.active->bulk() ? bulk_ : first_).queue.Push(message.active);
        break;
      case Message::Kind::kFinished:
        --with_helper_;
        files_->Drop(message.request->file);
        ledger_.Finish(message.active, *message.request);
        break;
      case Message::Kind::kRemember:
        ring_->Remember(message.memory);
        break;
      case Message::Kind::kForget:
        ring_->Forget(message.memory);
        break;
      case Message::Kind::kClose:
        closing_ = true;
        break;
    }
  }

  // In turn where both lanes have something: reads that never end keep no write from the device.
  void StartRequests() {
    while (true) {
      Lane* const other = turn_ == &first_ ? &bulk_ : &first_;
      if (StartNext(turn_)) {
        turn_ = other;
      } else if (!StartNext(other)) {
        return;
      }
    }
  }

  uint64_t MaxBytes(const Lane* lane) const {
    if (lane == &first_) return kMaxBytesAtDevice;
    return read_bytes_at_device_ > 0 ? kMaxBulkBytesWithReads : kMaxBulkBytes;
  }

  // False: there is nothing, or no room for it.
  bool StartNext(Lane* lane) {
    if (free_slots_.empty() && !closing_) return false;
    if (lane->next.request == nullptr) lane->next = lane->queue.Pop();
    if (lane->next.request == nullptr) return false;
    const uint64_t bytes = lane->next.request->data.size();
    const bool fits = lane->bytes_at_device == 0 || lane->bytes_at_device + bytes <= MaxBytes(lane);
    if (!fits && !closing_) return false;
    const auto [active, request] = std::exchange(lane->next, {});
    if (closing_) {
      request->status = Status(Code::kUnavailable, "the disk is closing");
      ledger_.Finish(active, *request);
    } else if (request->kind == IoKind::kCreate || request->kind == IoKind::kRemove) {
      GiveToHelper(active, request);
    } else {
      StartAtDevice(lane, active, request);
    }
    return true;
  }

  // These take long on some file systems and would keep reads waiting.
  void GiveToHelper(Active* active, IoRequest* request) {
    ++with_helper_;
    helper_->Run([this, active, request] {
      request->status = request->kind == IoKind::kCreate
                            ? directory_->CreateFile(request->file, request->length)
                            : directory_->RemoveFile(request->file);
      inbox_.Push({.kind = Message::Kind::kFinished, .active = active, .request = request});
    });
  }

  void StartAtDevice(Lane* lane, Active* active, IoRequest* request) {
    auto file = files_->Acquire(request->file);
    request->status = file.ok() ? CheckWithin(*request, (*file)->bytes, path_of_) : file.status();
    if (!request->status.ok()) {
      if (file.ok()) files_->Release(*file);
      ledger_.Finish(active, *request);
      return;
    }
    const size_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = {.lane = lane, .active = active, .request = request, .file = *file, .done = 0};
    lane->bytes_at_device += request->data.size();
    if (request->kind == IoKind::kRead) read_bytes_at_device_ += request->data.size();
    Prepare(slot);
  }

  void Prepare(size_t index) {
    const Slot& slot = slots_[index];
    const IoRequest& request = *slot.request;
    const std::span<std::byte> rest = request.data.subspan(slot.done);
    // The kernel moves at most 2 GiB at once; TakeResult() asks for what is left.
    const auto bytes = static_cast<unsigned>(std::min(rest.size(), size_t{1} << 30));
    const uint64_t offset = request.offset + slot.done;
    io_uring_sqe* submission = ring_->Next();
    if (request.kind == IoKind::kSync) {
      io_uring_prep_fsync(submission, -1, IORING_FSYNC_DATASYNC);
    } else if (const auto known = ring_->Find(rest.first(bytes)); known.has_value()) {
      if (request.kind == IoKind::kRead) {
        io_uring_prep_read_fixed(submission, -1, rest.data(), bytes, offset, *known);
      } else {
        io_uring_prep_write_fixed(submission, -1, rest.data(), bytes, offset, *known);
      }
    } else if (request.kind == IoKind::kRead) {
      io_uring_prep_read(submission, -1, rest.data(), bytes, offset);
    } else {
      io_uring_prep_write(submission, -1, rest.data(), bytes, offset);
    }
    ring_->UseFile(submission, slot.file->slot, slot.file->descriptor.get());
    submission->user_data = index;
  }

  void TakeCompletion(uint64_t user_data, int result) {
    if (user_data == kWakeUp) {
      ListenForWakeUp();
      return;
    }
    Slot& slot = slots_[user_data];
    if (TakeResult(result, slot.request, &slot.done, path_of_) == IoStep::kContinue) {
      Prepare(user_data);
      return;
    }
    files_->Release(slot.file);
    slot.lane->bytes_at_device -= slot.request->data.size();
    if (slot.request->kind == IoKind::kRead) read_bytes_at_device_ -= slot.request->data.size();
    free_slots_.push_back(user_data);
    ledger_.Finish(slot.active, *slot.request);
  }

  void ListenForWakeUp() {
    io_uring_sqe* submission = ring_->Next();
    io_uring_prep_read(submission, inbox_.eventfd(), &wake_ups_, sizeof(wake_ups_), 0);
    submission->user_data = kWakeUp;
  }

  const uint32_t depth_;
  const std::unique_ptr<DiskDirectory> directory_;
  const std::function<std::string(uint32_t)> path_of_ = [this](uint32_t number) {
    return directory_->PathOf(number);
  };
  GroupLedger ledger_;
  Inbox inbox_;

  // Only the disk's thread touches these.
  std::unique_ptr<Ring> ring_;
  OpenFiles* files_ = nullptr;          // On that thread's stack.
  std::unique_ptr<WorkerPool> helper_;  // One thread, for kCreate and kRemove.
  std::vector<Slot> slots_;             // Requests at the device.
  std::vector<size_t> free_slots_;
  Lane first_;
  Lane bulk_;
  Lane* turn_ = &first_;
  uint64_t read_bytes_at_device_ = 0;
  std::vector<Message> messages_;
  size_t with_helper_ = 0;
  bool closing_ = false;
  uint64_t wake_ups_ = 0;  // The kernel writes it.

  std::thread thread_;
};

}  // namespace

Status ProbeUring() { return Ring::Open(4, 0).status(); }

Result<std::unique_ptr<Disk>> NewUringDisk(const DiskOptions& options,
                                           std::unique_ptr<DiskDirectory> directory,
                                           Executor* executor) {
  auto disk = std::make_unique<UringDisk>(options, std::move(directory), executor);
  AQ_RETURN_IF_ERROR(disk->Start());
  return std::unique_ptr<Disk>(std::move(disk));
}

}  // namespace aquifer
