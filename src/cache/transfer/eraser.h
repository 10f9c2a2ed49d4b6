// Deletes blocks from NVMe, or from a durable tier, for good. What cannot be deleted now is owed
// and tried again until it is. While a deletion is owed, nobody may write the same block: the
// deletion would take the new record too.
//
// Not every deletion need be remembered by its block. A copy that the tier knows of is marked in
// its memory at once and on the drive when the drive can take it, so that all there is to ask for
// is, for each tenant, whether everything is marked by now. Only what a drive that has not been
// read may hold must be kept in mind until it has been: that is bounded, for each tenant and over
// all of them.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/barriers.h"
#include "tier/tier.h"

namespace aquifer {

struct EraserOptions {
  bool enabled = false;  // There is a tier to delete from, now or later.
  // Deletions kept in mind for drives that have not been read: some 250 bytes each.
  size_t max_remembered = 0;
  size_t max_remembered_per_tenant = 0;
  std::string where = "NVMe";  // For people.
  int64_t retry_nanos = 200'000'000;
};

class Eraser {
 public:
  Eraser(const EraserOptions& options, Executor* executor, Clock* clock);

  void SetTarget(Tier* target) { target_ = target; }

  // The copies that the tier knows of are deleted, after Pump().
  void Add(const BlockId& id);
  // Also those that a drive may hold which has not been read. False: too many are remembered, and
  // this one is deleted as by Add().
  [[nodiscard]] bool AddForGood(const BlockId& id);
  bool Owes(const BlockId& id) const { return owed_.contains(id); }
  void Pump();

  // `on_done` when everything of the tenant that was added before is deleted: ok, or why some of it
  // is not yet. What could not be deleted before is tried again first.
  void Barrier(const TenantId& tenant, std::function<void(Status)> on_done);

  // Called when a deletion has happened: others may have waited for it.
  std::function<void()> on_erased;

  size_t pending() const { return owed_.size() + unmarked_.size(); }

 private:
  struct EraseBatch {
    Batch<EraseOp> batch;
    uint64_t first = 0;  // The number of its first deletion.
  };

  // Names no block: its deletion ends well once every other one of the tenant is on the drives.
  static BlockId MarkerOf(const TenantId& tenant) { return {.tenant = tenant, .key = {}}; }

  // What could not be deleted of a tenant's, each time that it was tried.
  struct Failures {
    uint64_t count = 0;
    Status last;
  };

  void OnDone(EraseBatch* erase);
  void OnFailed(const EraseOp& op);
  void Forget(const BlockId& id);
  void CheckBarriers();
  // One task for all who want it.
  void CheckBarriersLater();
  void RetryLater();
  void Retry();

  const EraserOptions options_;
  Executor* const executor_;
  Clock* const clock_;
  Tier* target_ = nullptr;
  std::map<BlockId, bool> owed_;  // Everything below but the markers. True: remembered for good.
  size_t remembered_ = 0;         // Of those.
  std::map<TenantId, size_t> remembered_by_;
  std::list<BlockId> waiting_;   // Not asked for yet.
  std::list<BlockId> failed_;    // To be tried again.
  std::set<TenantId> unmarked_;  // Whose markers are among the failed ones.
  std::map<TenantId, Failures> failures_;
  std::vector<std::unique_ptr<EraseBatch>> in_flight_batches_;
  uint64_t next_deletion_ = 1;  // The number of waiting_.front(): they are asked for in order.
  TaskScope::Once retry_;
  TaskScope::Once check_;
  Barriers barriers_;
  TaskScope tasks_{executor_};
};

}  // namespace aquifer
