// The NVMe drives: opening each on a thread of its own, for it may hang; reading what they hold;
// closing them; and what the tier over them says on its own account. Each drive starts, fails and
// comes back by itself, and the cache starts without those that take too long.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/task_scope.h"
#include "cache/residency/catalog.h"
#include "cache/residency/residency.h"
#include "cache/transfer/drive_records.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/late_disk.h"
#include "cache/transfer/loader.h"
#include "cache/transfer/reclaim_advice.h"
#include "cache/transfer/write_down.h"
#include "io/disk/disk.h"
#include "tier/nvme/nvme_tier.h"

namespace aquifer {

struct DriveSetParts {
  std::vector<std::string> directories;  // None: there is no NVMe.
  NvmeTierOptions tier;                  // `capacity_bytes` is over every byte in the directories.
  int64_t open_wait_nanos = 0;
  int64_t reopen_nanos = 0;
  // See CacheEnvironment.
  std::function<Result<std::unique_ptr<Disk>>(const std::string& directory)> open_disk;
  std::function<void(const std::string& directory, Task open)> run_opening;
  Executor* owner = nullptr;
  WorkerPool* workers = nullptr;
  Clock* clock = nullptr;
  Random* random = nullptr;
  Catalog* catalog = nullptr;
  Residency* residency = nullptr;
  Loader* loader = nullptr;
  Eraser* eraser = nullptr;
  WriteDown* write_down = nullptr;
  std::function<void()> on_more_found;  // A drive has brought its blocks after the start.
  std::function<void()> on_dropped;     // Blocks were dropped: there may be housekeeping to do.
};

class DriveSet final : private TierListener, private LoadWaiter {
 public:
  // kInvalid: the options do not go together.
  static Result<std::unique_ptr<DriveSet>> New(DriveSetParts parts);
  ~DriveSet();

  // Opens the drives. `on_ready` when what they held is known again, of those that can be used soon
  // enough. The others are tried again and come later, each on its own.
  void Start(std::function<void()> on_ready);
  // Nothing is left to wait for at the drives; after that nobody may ask them any more.
  void Close();

  // Memory that is read into and written from comes, or goes.
  void Remember(std::span<std::byte> memory);
  void Forget(std::span<std::byte> memory);

  bool any() const { return !parts_.directories.empty(); }
  NvmeTier* tier() const { return tier_.get(); }  // Null: there are no drives.
  // Returns true once drives have been read.
  bool ready() const { return ready_; }
  bool usable() const { return ready_ && tier_->in_service(); }
  const Status& status() const { return status_; }  // Why they are not usable.
  // Returns true if the block is on a drive that is in service.
  bool Serves(BlockRef ref) const;
  DriveRecords& records() { return records_; }
  const DriveRecords& records() const { return records_; }

  std::vector<DriveStats> Stats() const;
  DiskStats disk_stats() const;

  // Brings a block to DRAM that is to be written anew.
  void LoadToWrite(BlockRef ref);

 private:
  struct Openings {
    Mutex mutex;
    Executor* owner AQ_GUARDED_BY(mutex) = nullptr;  // Null: nobody waits for them any more.
  };

  explicit DriveSet(DriveSetParts parts);
  Status Build();
  void Open(size_t drive);
  void OnOpened(size_t drive, Result<OpenedDisk> opened);
  void Recover();

  // TierListener.
  void OnLost(std::span<const BlockId> ids, Code why) override;
  std::unique_ptr<ReclaimChoice> OnReclaim() override { return advice_.NewChoice(); }
  bool MayDrop(const BlockId& id) override { return advice_.MayDrop(id); }
  void OnRewritten(uint64_t bytes) override { parts_.write_down->ChargeBudget(bytes); }
  void OnFound() override { records_.Find(); }
  void OnDetached() override { records_.Detach(); }
  void OnHealth(bool in_service, const Status& why) override;

  // LoadWaiter, for LoadToWrite().
  bool Waits(uint64_t) const override { return true; }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

  const DriveSetParts parts_;
  std::vector<std::span<std::byte>> memory_;      // For drives that open later.
  std::vector<std::unique_ptr<LateDisk>> disks_;  // One a directory.
  std::set<size_t> unanswered_;                   // Drives whose first opening has not ended.
  bool recovering_ = false;                       // It has begun.
  // Shared with openings under way, which may outlast everything here.
  std::shared_ptr<Openings> openings_ = std::make_shared<Openings>();
  DriveRecords records_;
  ReclaimAdvice advice_;
  std::unique_ptr<NvmeTier> tier_;
  bool ready_ = false;
  Status status_;
  std::function<void()> on_ready_;
  TaskScope tasks_;
};

}  // namespace aquifer
