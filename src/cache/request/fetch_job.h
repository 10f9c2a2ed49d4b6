// Answers a fetch: lends the blocks of a chain, in chain order. What is not in DRAM is loaded, from
// NVMe or from the cheapest durable tier that has it, and lent as it comes; what has not come by
// the deadline is late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "cache/request/cache_job.h"
#include "cache/request/chain_inquiry.h"
#include "cache/transfer/loader.h"

namespace aquifer {

class FetchJob final : public RequestJob<FetchRequest, 1>, public LoadWaiter {
 public:
  explicit FetchJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  bool Waits(uint64_t run) const override { return run == this->run(); }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

 private:
  // In a ticket's number: the load is a durable tier's.
  static constexpr size_t kFromDurable = size_t{1} << 63;

  void FetchSlice();
  void FetchOne(size_t i, BlockRef* ref);
  void FetchFurther(size_t i);
  void FetchUnanswered();
  void FetchElsewhere(size_t i, const Status& status);
  void PumpLoads();
  void LendOne(size_t i, BlockRef ref, TierKind tier);
  void SettleOne(size_t i, Status status);
  void SettleRestLate();
  void Advance();
  void RunOn();
  // What this fetch was worth.
  void CountSaved();

  size_t cursor_ = 0;
  size_t answered_ = 0;  // From the front.
  size_t reported_ = 0;
  size_t usable_ = 0;  // Blocks lent, from the front without a gap.
  uint32_t first_position_ = 0;
  size_t loading_ = 0;
  int64_t deadline_nanos_ = 0;
  bool in_slice_ = false;
  bool posted_ = false;  // Its next slice.
  bool timer_set_ = false;
  bool cancelled_ = false;        // What is open is late.
  bool refused_ = false;          // The caller was told that it has too many leases.
  size_t late_cursor_ = 0;        // How far that has been said.
  std::vector<uint8_t> settled_;  // As far as the slices have come.
  ChainInquiry inquiry_;
  std::deque<size_t> unanswered_;  // Durable tiers are asked for these.
};

}  // namespace aquifer
