#include "cache/transfer/eraser.h"

#include <algorithm>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kMaxBatchOps = 256;
constexpr size_t kMaxInFlightBatches = 4;

}  // namespace

Eraser::Eraser(const EraserOptions& options, Executor* executor, Clock* clock)
    : options_(options), executor_(executor), clock_(clock) {}

void Eraser::Add(const BlockId& id) {
  if (target_ == nullptr) return;  // It knows of none.
  if (owed_.try_emplace(id, false).second) waiting_.push_back(id);
}

bool Eraser::AddForGood(const BlockId& id) {
  if (!options_.enabled) return true;
  const auto known = owed_.find(id);
  if (known != owed_.end() && known->second) return true;
  const auto of_tenant = remembered_by_.find(id.tenant);
  if (remembered_ >= options_.max_remembered ||
      (of_tenant != remembered_by_.end() &&
       of_tenant->second >= options_.max_remembered_per_tenant)) {
    Add(id);
    return false;
  }
  ++remembered_;
  ++remembered_by_[id.tenant];
  if (known == owed_.end()) waiting_.push_back(id);
  owed_[id] = true;
  return true;
}

void Eraser::Forget(const BlockId& id) {
  const auto found = owed_.find(id);
  if (found == owed_.end()) return;
  if (found->second) {
    --remembered_;
    const auto of_tenant = remembered_by_.find(id.tenant);
    if (--of_tenant->second == 0) remembered_by_.erase(of_tenant);
  }
  owed_.erase(found);
}

void Eraser::Pump() {
  if (target_ == nullptr) return;  // What it may hold is deleted when it opens.
  if (!waiting_.empty() && in_flight_batches_.size() < kMaxInFlightBatches) {
    auto erase = std::make_unique<EraseBatch>();
    const size_t count = std::min(kMaxBatchOps, waiting_.size());
    erase->first = std::exchange(next_deletion_, next_deletion_ + count);
    erase->batch.ops.resize(count);
    for (EraseOp& op : erase->batch.ops) {
      op.id = waiting_.front();
      waiting_.pop_front();
    }
    EraseBatch* const raw = erase.get();
    raw->batch.on_done = [this, raw](Batch<EraseOp>&) { OnDone(raw); };
    in_flight_batches_.push_back(std::move(erase));
    target_->Erase(&raw->batch);
  }
}

void Eraser::OnDone(EraseBatch* erase) {
  for (const EraseOp& op : erase->batch.ops) {
    if (op.status.ok() || op.status.code() == Code::kNotFound) {
      Forget(op.id);
    } else {
      OnFailed(op);
    }
  }
  if (!failed_.empty()) RetryLater();
  // Freed later: this runs inside the batch's own callback.
  const auto found = std::find_if(in_flight_batches_.begin(), in_flight_batches_.end(),
                                  [erase](const auto& batch) { return batch.get() == erase; });
  std::shared_ptr<EraseBatch> finished = std::move(*found);
  in_flight_batches_.erase(found);
  executor_->Post([finished] {});
  Pump();
  CheckBarriersLater();
  if (on_erased) on_erased();
}

void Eraser::OnFailed(const EraseOp& op) {
  Failures& failures = failures_[op.id.tenant];
  ++failures.count;
  failures.last = op.status;
  const auto owed = owed_.find(op.id);  // A marker is not.
  const bool remembered = owed != owed_.end() && owed->second;
  const bool again = op.left == EraseLeft::kCopy || (op.left == EraseLeft::kUnread && remembered);
  if (owed != owed_.end() && again) return failed_.push_back(op.id);
  Forget(op.id);
  if (unmarked_.insert(op.id.tenant).second) failed_.push_back(MarkerOf(op.id.tenant));
}

void Eraser::RetryLater() {
  retry_.PostAt(&tasks_, clock_->NowNanos() + options_.retry_nanos, [this] { Retry(); });
}

void Eraser::Retry() {
  waiting_.splice(waiting_.end(), failed_);  // However many they are, in no time.
  unmarked_.clear();
  Pump();
}

void Eraser::Barrier(const TenantId& tenant, std::function<void(Status)> on_done) {
  // One that waits already does for all who come until it is sent.
  const BlockId marker = MarkerOf(tenant);
  const bool waits = !waiting_.empty() && waiting_.back() == marker;
  if (target_ != nullptr && !waits) waiting_.push_back(marker);
  Retry();
  // Whatever fails from here on counts, also where it is being tried once more, for somebody else,
  // when everything up to here has been answered.
  const auto verdict = [this, tenant, before = failures_[tenant].count,
                        on_done = std::move(on_done)] {
    const Failures& failures = failures_[tenant];
    if (failures.count == before) return on_done(Status());
    on_done(
        Status(failures.last.code(), "not deleted from " + options_.where +
                                         " yet, will be tried again: " + failures.last.ToString()));
  };
  barriers_.Add(next_deletion_ + waiting_.size() - 1, verdict);
  CheckBarriersLater();
}

void Eraser::CheckBarriersLater() {
  check_.Post(&tasks_, [this] { CheckBarriers(); });
}

void Eraser::CheckBarriers() {
  uint64_t oldest = next_deletion_;
  for (const auto& batch : in_flight_batches_) oldest = std::min(oldest, batch->first);
  if (barriers_.Settle(oldest)) CheckBarriersLater();
}

}  // namespace aquifer
