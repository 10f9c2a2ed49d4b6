// Deletes blocks from NVMe for good. What cannot be deleted now, because the drive is out of
// service, is owed and tried again until it is. While a deletion is owed, nobody may write the same
// block: the deletion would take the new record too.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "cache/barriers.h"
#include "tier/tier.h"

namespace aquifer {

class Eraser {
 public:
  // Where there is no such tier, now or later, there is nothing to delete.
  Eraser(bool enabled, Executor* executor, Clock* clock);
  ~Eraser();

  void SetTarget(Tier* target) { target_ = target; }

  // Deleted after Pump().
  void Add(const BlockId& id) {
    if (enabled_ && owed_.insert(id).second) waiting_.push_back(id);
  }
  bool Owes(const BlockId& id) const { return owed_.contains(id); }
  void Pump();

  // `on_done` when everything added before is deleted: ok, or why some of it is not yet. What could
  // not be deleted before is tried again first.
  void Barrier(std::function<void(Status)> on_done);

  // Called when a deletion has happened: others may have waited for it.
  std::function<void()> on_erased;

  size_t pending() const { return owed_.size(); }

 private:
  struct EraseBatch {
    Batch<EraseOp> batch;
    uint64_t first = 0;  // The number of its first deletion.
  };

  void OnDone(EraseBatch* erase);
  void CheckBarriers();
  void RetryLater();
  void Retry();

  const bool enabled_;
  Executor* const executor_;
  Clock* const clock_;
  Tier* target_ = nullptr;
  std::set<BlockId> owed_;       // Everything below.
  std::deque<BlockId> waiting_;  // Not asked for yet.
  std::deque<BlockId> failed_;   // To be tried again.
  Status last_failure_;
  std::vector<std::unique_ptr<EraseBatch>> in_flight_batches_;
  uint64_t next_deletion_ = 1;  // The number of waiting_.front(): they are asked for in order.
  bool retry_posted_ = false;
  Barriers barriers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
