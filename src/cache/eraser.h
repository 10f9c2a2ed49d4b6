// Deletes blocks from NVMe for good. What cannot be deleted now, because the drive is out of
// service, is tried again until it is.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "cache/residency.h"
#include "tier/tier.h"

namespace aquifer {

class Eraser {
 public:
  Eraser(Residency* residency, Executor* executor, Clock* clock);
  ~Eraser();

  void SetTarget(Tier* target) { target_ = target; }

  // Deleted after Pump().
  void Add(const BlockId& id) { waiting_.push_back(id); }
  void Pump();

  // `on_done` when everything added before is deleted: ok, or why some of it is not yet.
  void Barrier(std::function<void(Status)> on_done);

  size_t pending() const { return waiting_.size() + failed_.size() + in_flight_; }

 private:
  struct BarrierWait {
    uint64_t batch = 0;
    std::function<void(Status)> on_done;
  };
  struct EraseBatch {
    Batch<EraseOp> batch;
    uint64_t number = 0;
  };

  void OnDone(EraseBatch* erase);
  void CheckBarriers();
  void RetryLater();

  Residency* const residency_;
  Executor* const executor_;
  Clock* const clock_;
  Tier* target_ = nullptr;
  std::vector<BlockId> waiting_;
  std::vector<BlockId> failed_;  // To be tried again.
  Status last_failure_;
  std::vector<std::unique_ptr<EraseBatch>> in_flight_batches_;
  size_t in_flight_ = 0;
  uint64_t next_batch_ = 1;
  bool retry_posted_ = false;
  std::vector<BarrierWait> barriers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
