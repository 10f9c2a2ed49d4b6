// The records that drives bring: at the start, when a drive opens late, and when one is back that
// was detached. Each is compared with what the index knows of its block by then, which may have
// been stored again, deleted or expired meanwhile, and is adopted, left, or deleted.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>

#include "base/clock.h"
#include "base/task_scope.h"
#include "cache/residency/catalog.h"
#include "cache/residency/residency.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/write_down.h"
#include "tier/nvme/nvme_tier.h"

namespace aquifer {

struct DriveRecordsParts {
  Catalog* catalog = nullptr;
  Residency* residency = nullptr;
  Eraser* eraser = nullptr;
  WriteDown* write_down = nullptr;
  Executor* executor = nullptr;
  Clock* clock = nullptr;
};

class DriveRecords {
 public:
  explicit DriveRecords(const DriveRecordsParts& parts);

  // Null: there are no drives.
  void SetTier(NvmeTier* tier) { tier_ = tier; }
  // Drives have been read, or are back: compares all that the tier has, in slices.
  void Find();
  // Called each time that this is done.
  std::function<void()> on_found;
  // A drive was detached: its blocks leave the index, in slices.
  void Detach();
  // Nothing is compared any more.
  void Close() { busy_.clear(); }

  bool finding() const { return finding_; }
  // Returns true if every drive has been read, none is detached, and their blocks are in the index:
  // none can come to light any more.
  bool known() const { return tier_ == nullptr || known_; }
  // Returns true if a drive has the block, as far as is known.
  bool MayHave(const BlockName& name) const;
  BlockId IdOf(const BlockName& name) const;

  // What a drive had of the block when that was being filled or written is compared when that has
  // ended, one way or the other: in a task of its own.
  void OnNotBusy(const BlockName& name);
  // A write that was to replace the record has failed.
  void OnOlderLeft(const BlockName& name);
  // Returns true if a record waits for that.
  bool waits(const BlockName& name) const { return busy_.contains(name); }
  // Deletes up to `max` of the tenant's records that wait. Returns true if there may be more.
  bool EraseWaiting(uint16_t tenant, size_t max);

  // All of the tenant's blocks are deleted while a drive has not been read.
  void ForgetTenant(uint16_t tenant) { forgotten_.insert(tenant); }
  // The whole index is being looked through for what is the tenant's, to be deleted.
  void BeginSweep(uint16_t tenant) { sweeping_.insert(tenant); }
  void EndSweep(uint16_t tenant) { sweeping_.erase(tenant); }
  bool sweeping(uint16_t tenant) const { return sweeping_.contains(tenant); }
  // Returns true if drives have records of the tenant's for which the index had no room.
  bool has_unindexed(uint16_t tenant) const { return unindexed_.contains(tenant); }
  // Deletes these. `on_done` is not called from inside.
  void EraseUnindexed(uint16_t tenant, const std::function<void()>& on_done);

 private:
  void Reconcile(const BlockMeta& meta);
  // These return false if nobody wants the record.
  bool ReconcileAs(uint16_t tenant, uint16_t layout, const BlockMeta& meta);
  bool ReconcileKnown(BlockRef known, bool agrees, const BlockMeta& meta);
  bool Add(uint16_t tenant, uint16_t layout, const BlockMeta& meta);
  void EndFinding();
  // Deletes what a drive was found to have of the block, and not what is being written of it now.
  void EraseFound(const BlockName& name);
  void DetachSome();

  const DriveRecordsParts parts_;
  NvmeTier* tier_ = nullptr;
  bool finding_ = false;
  bool find_again_ = false;   // There are more since that began.
  bool finding_all_ = false;  // Every drive had been read when it began.
  bool known_ = false;        // And it has ended.
  bool detaching_ = false;
  size_t detach_cursor_ = 0;
  std::set<uint16_t> forgotten_;
  std::set<uint16_t> sweeping_;
  std::set<uint16_t> unindexed_;
  std::set<BlockName> busy_;  // Blocks with a record that waits until they are not busy.
  TaskScope tasks_;
};

}  // namespace aquifer
