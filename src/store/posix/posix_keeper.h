// The keeper of a posix store: a thread that opens the directory, shows that this process lives,
// takes grants when writers want one, gives back and cleans up. Writers ask it for room and wait;
// nobody else does.
//
// It owns the member and the grants. What is under the mutex is all that others see.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/mutex.h"
#include "store/blob_store.h"
#include "store/posix/posix_directory.h"
#include "store/posix/posix_grants.h"
#include "store/posix/posix_label.h"
#include "store/posix/posix_member.h"
#include "store/posix/posix_store.h"

namespace aquifer {

class PosixKeeper {
 public:
  // A grant with what is being written to it.
  struct OpenGrant {
    PosixGrant grant;  // left_bytes and spares are guarded by the keeper's mutex.
    uint64_t writers = 0;
    bool full = false;
  };
  // Shared by the keeper and those who write to it.
  using GrantUse = std::shared_ptr<OpenGrant>;

  // Room for one file in a grant. First of all `remove` goes, which the grant has no room for any
  // more; then `reuse`, if it is not empty, becomes the file.
  struct Room {
    GrantUse use;
    std::string reuse;
    std::vector<std::string> remove;
    uint64_t later_bytes = 0;  // That these leave over, once it is done.
  };

  // `on_first_look` runs once, on the keeper's thread, when it is known whether the directory can
  // be used.
  PosixKeeper(const PosixStoreOptions& options, std::function<void()> on_first_look);
  // Gives up the grant and leaves. No writer is left.
  ~PosixKeeper();

  // For a file of so many bytes, whose blob's name has so many folders. Waits until `stop` says
  // true: kLate. kBusy: it takes too long.
  Result<Room> Use(uint64_t file_bytes, uint64_t folders, const std::function<bool()>& stop);
  // `unused_bytes` of it were not needed after all. `lost`: its folder is not there any more.
  void EndUse(const GrantUse& use, uint64_t unused_bytes, bool lost);

  // A blob without a name, whose file somebody still reads: removed as soon as that ends.
  void RemoveLater(BlobLabel label);
  void NoteRead(uint32_t grant);

  // Ok, or why nothing can be read or written now.
  Status readable() const;
  Status writable() const;
  bool direct() const;
  uint64_t used_bytes() const;
  int64_t clock_ahead_seconds() const;
  std::vector<std::pair<std::string, uint64_t>> Counters() const;

  // Wakes those who wait in Use(), to look whether they should stop.
  void WakeWriters();

 private:
  struct Wish {
    uint64_t bytes = 0;
    bool closing = false;
    std::vector<GrantUse> ended{};
    std::vector<BlobLabel> removals{};
  };

  void Loop();
  Wish WaitForWish();
  void Turn(Wish wish);
  Status Join();
  void Beat();
  void TakeGrant(uint64_t bytes);
  void GiveUpEnded(const std::vector<GrantUse>& ended);
  void RemoveNow(std::vector<BlobLabel> removals);
  void GiveUpWhenIdle();
  bool TakeRoom(uint64_t file_bytes, uint64_t folders, Room* room) AQ_REQUIRES(mutex_);
  void EndCurrent(bool full) AQ_REQUIRES(mutex_);
  void Publish();
  void Show(Status readable, Status writable);
  void Close();

  const PosixStoreOptions options_;
  const PosixPaths paths_;
  const std::function<void()> on_first_look_;

  // The keeper's alone.
  PosixDirectory directory_;
  PosixMember member_;
  std::unique_ptr<PosixGrants> grants_;  // From the first joining on.
  bool told_there_ = false;
  int64_t next_beat_nanos_ = 0;
  int64_t next_cleaning_nanos_ = 0;

  mutable Mutex mutex_;
  Condition keeper_wakes_;
  Condition writers_wake_;
  bool closing_ AQ_GUARDED_BY(mutex_) = false;
  Status readable_ AQ_GUARDED_BY(mutex_);
  Status writable_ AQ_GUARDED_BY(mutex_);
  bool direct_ AQ_GUARDED_BY(mutex_) = true;
  uint64_t largest_bytes_ AQ_GUARDED_BY(mutex_) = 0;  // That can be asked for.
  GrantUse current_ AQ_GUARDED_BY(mutex_);
  std::vector<GrantUse> ending_ AQ_GUARDED_BY(mutex_);  // Until their last writer has ended.
  uint64_t wanted_bytes_ AQ_GUARDED_BY(mutex_) = 0;     // 0: nobody waits.
  uint64_t refusals_ AQ_GUARDED_BY(mutex_) = 0;
  Status refusal_ AQ_GUARDED_BY(mutex_);  // Of the last of these.
  int64_t last_write_nanos_ AQ_GUARDED_BY(mutex_) = 0;
  std::vector<BlobLabel> removals_ AQ_GUARDED_BY(mutex_);
  std::set<uint32_t> reads_ AQ_GUARDED_BY(mutex_);
  uint64_t used_bytes_ AQ_GUARDED_BY(mutex_) = 0;
  int64_t clock_ahead_seconds_ AQ_GUARDED_BY(mutex_) = 0;
  uint64_t beats_ AQ_GUARDED_BY(mutex_) = 0;  // Begun.
  PosixGrants::Counts counts_ AQ_GUARDED_BY(mutex_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace aquifer
