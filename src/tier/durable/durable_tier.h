// A tier that outlives the node and that others share: a BlobStore (a directory, Redis, a bucket)
// with everything about blocks put on top. It names blobs, makes and checks their headers, packs
// and seals what is written, opens what is read on workers, bounds what is under way, and goes out
// of service and comes back as its store does.
//
// It has no index: what is there is known only by asking. Probe() says kBusy, and Look() asks the
// store. Blocks of other nodes are read as our own are.
//
// Runs on the executor that it was made with, like every tier; the store completes on threads of
// its own. See docs/formats/durable.md for what a blob is made of.
//
// A write of a block that is there already, whoever wrote it, leaves that one alone; only one that
// is damaged, expired, or would be gone much sooner is replaced. Writes and erasures of one block
// run one behind the other.
//
// A tier may be destroyed with requests at its store: they are cancelled, their completions do
// nothing, and callers hear no more. Buffers lent to it must stay until the store is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "block/block_id.h"
#include "block/block_meta.h"
#include "store/blob_store.h"
#include "tier/packing/packer.h"
#include "tier/tier.h"

namespace aquifer {

struct DurableTierOptions {
  std::string name;  // As the configuration calls it.
  uint32_t max_queued_ops = 1024;
  uint64_t max_block_bytes = uint64_t{64} << 20;
  LosslessUse lossless = LosslessUse::kWherePays;
  uint64_t scratch_bytes = uint64_t{128} << 20;  // For what is sealed or made smaller on its way.

  // So many failures in a row take the tier out of service, and so does a store that answers
  // nothing at all for so long.
  uint32_t failures_to_leave = 8;
  int64_t stall_nanos = 5'000'000'000;
  // How soon it is asked again, then twice as late each time up to the most; each with some jitter.
  int64_t probe_interval_nanos = 1'000'000'000;
  int64_t max_probe_interval_nanos = 30'000'000'000;

  // How often all blobs are looked at to remove those that have expired, and how many of them in a
  // second at most; 0: never (a store that forgets by itself).
  int64_t sweep_interval_nanos = 3'600'000'000'000;
  uint32_t sweep_looks_per_second = 50;
};

struct LookOp {
  BlockId id;
  Status status;   // Ok: it can be read now, by this tenant's key. kNotFound; else nobody knows.
  BlockMeta meta;  // Set on success, as its header says, which has been checked.
};

// Whether what is there need not be written again for its expiry's sake. Two nodes that store the
// same block give it expiries that differ a little: that alone moves no bytes.
bool LastsLongEnough(int64_t there_unix_seconds, int64_t wanted_unix_seconds,
                     int64_t now_unix_seconds);

class DurableTier : public Tier {
 public:
  virtual const std::string& name() const = 0;

  // Why it is not in service; ok where it is.
  virtual Status why() const = 0;

  // Whether blocks are there. One request to the store for each: a search along a chain asks for
  // few (prefixes are closed).
  virtual void Look(Batch<LookOp>* batch) = 0;

  // Small values of a tenant beside its blocks, for what must outlive a node and is not KV, such as
  // where a session ends. Sealed where blocks are. The last one written counts. `name` is any
  // bytes up to 512, and the store does not see it; a value has 64 KiB at most. `on_done` runs on
  // the executor, never from inside the call.
  virtual void PutNote(const TenantId& tenant, std::string name, std::vector<std::byte> value,
                       int64_t expiry_unix_seconds, std::function<void(Status)> on_done) = 0;
  // kNotFound; kCorrupt when it is not what was put there, under that name, by this tenant.
  virtual void GetNote(const TenantId& tenant, std::string name,
                       std::function<void(Result<std::vector<std::byte>>)> on_done) = 0;

  // Everything of the tenant's that is there or being written now, notes included, also what nobody
  // here knows of: the store is asked for its names. What it writes from now on may stay. Slow.
  // `on_done` on the executor, never from inside the call.
  virtual void EraseAll(const TenantId& tenant, std::function<void(Status)> on_done) = 0;

  // How many deleted tenants may have left something there: what a destroyed key has sealed is
  // looked for as long as the store has not shown all of it, also that of earlier processes.
  virtual size_t unswept_tenants() const = 0;
};

// All outlive the tier; `listener` may be null.
Result<std::unique_ptr<DurableTier>> NewDurableTier(const DurableTierOptions& options,
                                                    BlobStore* store, Packer* packer,
                                                    TierListener* listener, WorkerPool* workers,
                                                    Executor* executor, Clock* clock,
                                                    Random* random);

}  // namespace aquifer
