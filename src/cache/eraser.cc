#include "cache/eraser.h"

#include <algorithm>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kMaxBatchOps = 256;
constexpr size_t kMaxInFlightBatches = 4;
constexpr int64_t kRetryNanos = 200'000'000;

}  // namespace

Eraser::Eraser(bool enabled, Executor* executor, Clock* clock)
    : enabled_(enabled), executor_(executor), clock_(clock) {}

Eraser::~Eraser() { *alive_ = false; }

void Eraser::Pump() {
  if (target_ == nullptr) return;  // What it may hold is deleted when it opens.
  if (!waiting_.empty() && in_flight_batches_.size() < kMaxInFlightBatches) {
    auto erase = std::make_unique<EraseBatch>();
    const size_t count = std::min(kMaxBatchOps, waiting_.size());
    erase->first = std::exchange(next_deletion_, next_deletion_ + count);
    erase->batch.ops.resize(count);
    for (size_t i = 0; i < count; ++i) erase->batch.ops[i].id = waiting_[i];
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count));
    EraseBatch* const raw = erase.get();
    raw->batch.on_done = [this, raw](Batch<EraseOp>&) { OnDone(raw); };
    in_flight_batches_.push_back(std::move(erase));
    target_->Erase(&raw->batch);
  }
}

void Eraser::OnDone(EraseBatch* erase) {
  for (const EraseOp& op : erase->batch.ops) {
    if (op.status.ok() || op.status.code() == Code::kNotFound) {
      owed_.erase(op.id);
      continue;
    }
    last_failure_ = op.status;
    failed_.push_back(op.id);
  }
  if (!failed_.empty()) RetryLater();
  // Freed later: this runs inside the batch's own callback.
  const auto found = std::find_if(in_flight_batches_.begin(), in_flight_batches_.end(),
                                  [erase](const auto& batch) { return batch.get() == erase; });
  std::shared_ptr<EraseBatch> finished = std::move(*found);
  in_flight_batches_.erase(found);
  executor_->Post([finished] {});
  Pump();
  CheckBarriers();
  if (on_erased) on_erased();
}

void Eraser::RetryLater() {
  if (retry_posted_) return;
  retry_posted_ = true;
  executor_->PostAt(clock_->NowNanos() + kRetryNanos, [this, alive = alive_] {
    if (!*alive) return;
    retry_posted_ = false;
    Retry();
  });
}

void Eraser::Retry() {
  if (waiting_.empty()) {
    waiting_.swap(failed_);
  } else {
    for (; !failed_.empty(); failed_.pop_front()) waiting_.push_back(failed_.front());
  }
  Pump();
}

void Eraser::Barrier(std::function<void(Status)> on_done) {
  Retry();
  barriers_.Add(next_deletion_ + waiting_.size() - 1, std::move(on_done));
  executor_->Post([this, alive = alive_] {
    if (*alive) CheckBarriers();
  });
}

void Eraser::CheckBarriers() {
  uint64_t oldest = next_deletion_;
  for (const auto& batch : in_flight_batches_) oldest = std::min(oldest, batch->first);
  barriers_.Settle(oldest, failed_.empty()
                               ? Status()
                               : Status(last_failure_.code(),
                                        "not deleted from NVMe yet, will be tried again: " +
                                            last_failure_.ToString()));
}

}  // namespace aquifer
