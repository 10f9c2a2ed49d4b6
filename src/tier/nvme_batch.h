// The bookkeeping of callers' batches in the NVMe tier: what is settled, what a device or a worker
// still touches, and when the caller may be told. Private to the tier.
//
// An operation is settled once, with the status that the caller sees. It may be touched on beyond
// that (a deadline passed while the drive reads), and is retired when nothing refers to it any
// more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "tier/nvme_drive.h"
#include "tier/nvme_index.h"
#include "tier/nvme_writer.h"
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

struct PendingRead {
  PendingBatch<ReadOp, PendingRead>* batch = nullptr;
  size_t index = 0;
  bool settled = false;
  bool touched = false;
  bool counted = false;  // In the bound on queued operations.
  BlockId id;
  BlockPlace place;
  uint64_t raw_bytes = 0;
  Checksum checksum;
  std::span<std::byte> target;
};

class NvmeTierImpl;

struct PendingWrite final : AppendItem {
  enum class Stage : uint8_t { kNew, kVerifying, kReady, kAtDrive, kFollowing };

  void OnTaken() override;
  void OnPayloadDone() override;
  void OnAppended(const Status& status) override;

  NvmeTierImpl* tier = nullptr;
  PendingBatch<WriteOp, PendingWrite>* batch = nullptr;
  size_t index = 0;
  bool settled = false;
  bool touched = false;
  bool counted = false;
  Stage stage = Stage::kNew;
  uint32_t drive = UINT32_MAX;
};

struct PendingErase {
  PendingBatch<EraseOp, PendingErase>* batch = nullptr;
  size_t index = 0;
  bool settled = false;
  bool touched = false;  // Never: an erase has no buffer.
  bool counted = false;
  BlockId id;
  uint32_t drive = UINT32_MAX;  // Whose map is being written.
  bool unknown = false;         // No drive has it, as far as is known.
  size_t drives_read = 0;       // When that was looked up.
};

using ReadBatch = PendingBatch<ReadOp, PendingRead>;
using WriteBatch = PendingBatch<WriteOp, PendingWrite>;
using EraseBatch = PendingBatch<EraseOp, PendingErase>;

}  // namespace aquifer
