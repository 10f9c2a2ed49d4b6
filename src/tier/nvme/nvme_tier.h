// A log of large segments on one or more drives (docs/formats/nvme.md). Blocks are appended, never
// overwritten; a segment's footer lists what it holds, so a restart reads footers and not payloads;
// deletions are marked in a map in the segment's head. Space comes back a whole segment at a time.
//
// Every byte on a drive counts against the cap: segments are files of fixed size and there are
// never more of them than the cap allows. A full, failing or hanging drive takes that drive out of
// service; it is probed now and then and comes back by itself.
//
// Runs on the cache's executor; checksums run on workers; the drives have threads of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "base/task_meter.h"
#include "io/disk/disk.h"
#include "tier/packing/packer.h"
#include "tier/tier.h"

namespace aquifer {

struct NvmeTierOptions {
  uint64_t capacity_bytes = 0;  // Over all drives, metadata included; striped evenly.
  uint64_t segment_bytes = 0;   // 0: chosen from the capacity (64 MiB to 1 GiB).
  bool sync = false;            // Writes are acknowledged only when they survive power loss.
  uint32_t max_queued_ops = 1024;
  uint64_t max_block_bytes = uint64_t{64} << 20;
  int64_t probe_interval_nanos = 1'000'000'000;  // How often a drive out of service is tried.
  // A drive that does not end its oldest request for so long, and as long as 8 MB/s take for its
  // bytes, is hanging, and out of service.
  int64_t hang_nanos = 5'000'000'000;
  // A drive that has been out of service for so long is detached: see TierListener::OnDetached().
  int64_t detach_nanos = 60'000'000'000;
  TaskMeter* meter = nullptr;  // Counts the entries that are looked at; may be null.
  // Seals what is written where it has keys; null: blocks are written as they are. Outlives the
  // workers' tasks.
  Packer* packer = nullptr;
  LosslessUse lossless = LosslessUse::kNever;    // Drives are mostly faster than the codec.
  uint64_t scratch_bytes = uint64_t{128} << 20;  // For what is sealed or made smaller on its way.
};

// What recovery found, for the log and for tests.
struct NvmeRecovery {
  uint64_t segments = 0;
  uint64_t segments_by_footer = 0;
  uint64_t segments_by_scan = 0;  // The footer was missing or damaged.
  uint64_t segments_skipped = 0;  // Foreign, newer version, or damaged beyond use.
  uint64_t blocks = 0;
  uint64_t blocks_deleted = 0;  // Marked in a deletion map.
  uint64_t blocks_expired = 0;
  uint64_t corrupt_records = 0;  // Lost to damage; one where nothing tells how many.
  uint64_t bytes_read = 0;
  std::vector<std::string> messages;  // One for each thing skipped: what, where, why. At most 100.
};

struct NvmeDriveState {
  bool in_service = false;
  bool writable = false;
  Status why;  // Why it is not.
  // What could not be read of it at the start, as in NvmeRecovery::messages; at most 100.
  std::vector<std::string> skipped;
};

// The drives outlive the tier. `listener` may be null.
class NvmeTier : public Tier {
 public:
  // Finds again what is on the drives. Call once, before anything else; `on_done` runs on the
  // executor. A damaged file is skipped and counted, never an error; the status says only whether
  // the tier can be used at all.
  virtual void Recover(std::function<void(Status)> on_done) = 0;
  virtual const NvmeRecovery& recovery() const = 0;
  // In the order in which they were given.
  virtual std::vector<NvmeDriveState> Drives() const = 0;
  // Returns true if every drive has been read, none is detached, and the listener was told: no
  // block can come to light any more.
  virtual bool AllRead() const = 0;
  // Returns true if the block's drive is detached. The tier still knows the record, which counts
  // again when the drive is back; until then, a write of the block goes to another drive and
  // replaces it.
  virtual bool Detached(const BlockId& id) const = 0;
  // So that Probe() need not be asked whether a block's drive is.
  virtual bool AllInService() const = 0;

  // What it has of the block, also on a drive that is out of service; nothing: it is not known
  // here.
  virtual std::optional<BlockMeta> MetaOf(const BlockId& id) const = 0;

  // Calls `visit` for every block that can be read, in an order fixed by the tier's history, with
  // parents before children; then `on_done`. The calls come in tasks that each stay short. Blocks
  // that come or go meanwhile may be visited or not.
  virtual void EnumerateInSlices(std::function<void(const BlockMeta&)> visit,
                                 std::function<void()> on_done) = 0;
};

Result<std::unique_ptr<NvmeTier>> NewNvmeTier(const NvmeTierOptions& options,
                                              std::vector<Disk*> disks, TierListener* listener,
                                              WorkerPool* workers, Executor* executor, Clock* clock,
                                              Random* random);

}  // namespace aquifer
