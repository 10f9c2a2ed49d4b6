// The batches of a tier's callers that are under way, each until nothing refers to it any more: by
// age and by deadline. Private to the tiers.
//
// A batch whose deadline passes is handed to the tier, which settles what is left of it: never from
// inside the submitting call. Runs on the tier's executor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/executor.h"
#include "tier/pending_batch.h"
#include "tier/tier.h"

namespace aquifer {

// Over the kinds of PendingBatch that the tier has.
template <class... Batches>
class BatchLedger {
 public:
  using AnyBatch = std::variant<std::unique_ptr<Batches>...>;

  // `settle_late` settles as kLate what is not settled of a batch. Timers are set no further ahead
  // than `arm_ahead_nanos`: one cannot be taken back when its batch is done.
  BatchLedger(Executor* executor, Clock* clock, int64_t arm_ahead_nanos,
              std::function<void(AnyBatch&)> settle_late)
      : executor_(executor),
        clock_(clock),
        arm_ahead_nanos_(arm_ahead_nanos),
        settle_late_(std::move(settle_late)) {}

  // Null: it was empty, and is done.
  template <class OneBatch>
  OneBatch* Add(Batch<typename OneBatch::OpType>* batch) {
    const uint64_t id = next_++;
    auto owned = std::make_unique<OneBatch>(id, batch);
    OneBatch* const pending = owned.get();
    if (batch->ops.empty()) {
      pending->PostDone(executor_);
      return nullptr;
    }
    batches_.emplace(id, std::move(owned));
    if (batch->deadline_nanos != INT64_MAX) {
      deadlines_.emplace(batch->deadline_nanos, id);
      ArmDeadline();
    }
    return pending;
  }

  // A place in the tier's queue, until it is retired. False: all are taken.
  template <class State>
  [[nodiscard]] bool TakePlace(State* state, uint64_t most) {
    if (!TakePlace(most)) return false;
    state->counted = true;
    return true;
  }
  // The same for what is in no batch.
  [[nodiscard]] bool TakePlace(uint64_t most) {
    if (places_ >= most) return false;
    ++places_;
    return true;
  }
  void GivePlaceBack() { --places_; }
  template <class State>
  void GivePlaceBack(State* state) {
    if (std::exchange(state->counted, false)) GivePlaceBack();
  }
  uint64_t places_taken() const { return places_; }

  template <class State>
  void Settle(State* state, Status status) {
    auto* const batch = state->batch;
    if (!batch->Settle(state, std::move(status), executor_)) return;
    deadlines_.erase({batch->batch->deadline_nanos, batch->id});
  }

  // Nothing refers to the operation any more. May free its batch.
  template <class State>
  void Retire(State* state) {
    GivePlaceBack(state);
    Release(state->batch);
  }
  // The same for one more that somebody has added to `unretired`.
  template <class OneBatch>
  void Release(OneBatch* batch) {
    if (--batch->unretired == 0) batches_.erase(batch->id);
  }

  // By age. Settling changes none of it.
  std::map<uint64_t, AnyBatch>& all() { return batches_; }

 private:
  void SettleLate(uint64_t id) {
    const auto found = batches_.find(id);
    if (found != batches_.end()) settle_late_(found->second);
  }

  void ArmDeadline() {
    if (deadlines_.empty()) return;
    const int64_t horizon = clock_->NowNanos() + arm_ahead_nanos_;
    const int64_t next = std::min(deadlines_.begin()->first, horizon);
    if (next >= armed_nanos_) return;
    armed_nanos_ = next;
    executor_->PostAt(next, [this, at = next, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) OnDeadline(at);
    });
  }

  void OnDeadline(int64_t at) {
    if (at == armed_nanos_) armed_nanos_ = INT64_MAX;
    const int64_t now = clock_->NowNanos();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      const uint64_t id = deadlines_.begin()->second;
      deadlines_.erase(deadlines_.begin());
      SettleLate(id);
    }
    ArmDeadline();
  }

  Executor* const executor_;
  Clock* const clock_;
  const int64_t arm_ahead_nanos_;
  const std::function<void(AnyBatch&)> settle_late_;
  uint64_t next_ = 1;
  std::map<uint64_t, AnyBatch> batches_;
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  int64_t armed_nanos_ = INT64_MAX;
  uint64_t places_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Timers outlive nobody.
};

}  // namespace aquifer
