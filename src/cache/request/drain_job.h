// Answers when all that is in memory has been written to lower tiers, the hottest first. From its
// beginning on nothing more is stored.
#pragma once

#include "cache/request/cache_job.h"
#include "cache/residency/flush_waits.h"

namespace aquifer {

class DrainJob final : public RequestJob<DrainRequest, 8> {
 public:
  explicit DrainJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override {
    timer_set_ = false;
    flush_ = {};
    durable_flush_.clear();
  }
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  void Drop() override;

 private:
  void DrainNvme();
  void DrainDurable(const Status& nvme);
  void FinishAfter(const Status& written);
  void Finish(Status status);

  bool timer_set_ = false;
  FlushWaits::Id flush_;
  DurableTiers::FlushId durable_flush_;
};

}  // namespace aquifer
