// The bookkeeping of a caller's batch in a tier whose device may use the caller's memory for longer
// than the caller waits: what is settled, what is still touched, and when the caller may be told.
// Private to the tiers.
//
// An operation is settled once, with the status that the caller sees. It may be touched on beyond
// that (a deadline passed while the device reads), and is retired when nothing refers to it any
// more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "tier/tier.h"

namespace aquifer {

template <class Op, class State>
struct PendingBatch {
  using OpType = Op;

  uint64_t id = 0;
  Batch<Op>* batch = nullptr;  // Not touched after on_done, unless an op was in flight then.
  std::vector<State> states;   // Never resized: others point into it.
  size_t unsettled = 0;
  size_t unretired = 0;
  bool done = false;  // on_done is posted.

  PendingBatch(uint64_t number, Batch<Op>* caller_batch)
      : id(number),
        batch(caller_batch),
        states(caller_batch->ops.size()),
        unsettled(states.size()),
        unretired(states.size()) {
    for (size_t i = 0; i < states.size(); ++i) {
      states[i].batch = this;
      states[i].index = i;
    }
  }

  // True when this was the last one.
  bool Settle(State* state, Status status, Executor* executor) {
    if (state->settled) return false;
    state->settled = true;
    Op& op = batch->ops[state->index];
    op.status = std::move(status);
    if constexpr (requires { op.in_flight; }) op.in_flight = state->touched;
    if (--unsettled > 0) return false;
    PostDone(executor);
    return true;
  }

  void PostDone(Executor* executor) {
    done = true;
    executor->Post([batch = batch] {
      if (batch->on_done) batch->on_done(*batch);
    });
  }

  // Neither a device nor a worker uses the caller's memory any more.
  void Untouch(State* state, Executor* executor) {
    if (!std::exchange(state->touched, false) || !state->settled) return;
    if (!done) {
      batch->ops[state->index].in_flight = false;  // The caller need never know.
      return;
    }
    executor->Post([batch = batch, index = state->index] {
      if (batch->on_quiescent) batch->on_quiescent(*batch, index);
    });
  }
};

}  // namespace aquifer
