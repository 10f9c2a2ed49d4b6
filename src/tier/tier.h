// A Tier is one level of the hierarchy: DRAM, an NVMe drive, a peer, an object store. It maps block
// identities to bytes and nothing more. Which block belongs in which tier is decided in cache/;
// which one to drop, in policy/.
//
// Work comes in batches, because every device below us is faster when asked for many things at
// once. The caller owns the batch and its buffers and leaves both untouched until `on_done` runs.
// `on_done` runs exactly once, on the executor that the tier was made with, and never from inside
// the submitting call. Everything is submitted from that executor too, or before it runs: a tier's
// own state has one owner and no lock.
//
// A deadline settles an operation as kLate, and its batch completes then. The device may still be
// using the buffer: `in_flight` says so, and `on_quiescent` tells when it stopped. Until then the
// caller keeps the buffer alive and uses it for nothing else.
//
// A write that is ok survives what the tier promises to survive: a crash of the process, and power
// loss where so configured. No flush comes after it.
//
// Queues are bounded. What does not fit fails with kBusy at once; nothing ever waits for room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/layout.h"
#include "aquifer/status.h"
#include "block/block_id.h"
#include "block/block_meta.h"

namespace aquifer {

struct ReadOp {
  BlockId id;
  // The block's raw bytes rounded up to 4 KiB long, and so aligned: devices move whole pages. What
  // lies behind the raw bytes means nothing.
  std::span<std::byte> target;
  // kNotFound: `target` is as it was, unless the block had expired. Otherwise it may be scribbled
  // on.
  Status status;
  Checksum checksum;       // Set on success: verified against the bytes in `target`.
  bool in_flight = false;  // Not ok, and the device may still write to `target`.
  // Durable tiers: where not null, set on success to what came with the bytes. Who reads there has
  // no index to know it from, and need not look first.
  BlockMeta* meta = nullptr;
};

struct WriteOp {
  BlockMeta meta;
  std::span<const std::byte> source;  // stored_bytes rounded up to 4 KiB long, and so aligned.
  DType dtype = DType::kUInt8;        // Of its elements: what a codec may make of them.
  // What travels with the block has changed (its expiry): it is written although it is there. Until
  // that is complete the old one counts, after it only the new one, whatever happens in between.
  bool replace = false;
  Status status;  // kNoSpace when the tier is full and may not reclaim.
  bool in_flight = false;
};

// What may be left of a block whose erasure was not ok.
enum class EraseLeft : uint8_t {
  kCopy,    // A copy that is known, or being written: ask again.
  kUnread,  // None that is known; a device that has not been read may hold one.
  kMark,    // Only a mark that a device lacks so far; it is made when the device can take it.
};

struct EraseOp {
  BlockId id;
  Status status;  // kNotFound is reported, and harmless. Ok: gone, also after a restart.
  EraseLeft left = EraseLeft::kCopy;  // Where it is neither.
};

template <class Op>
struct Batch {
  std::vector<Op> ops;
  int64_t deadline_nanos = INT64_MAX;   // In the tier's clock.
  std::function<void(Batch&)> on_done;  // Exactly once.
  // Exactly once, after on_done, if and only if some op had `in_flight` set: its argument is the
  // index of the op, and it runs once for each such op. The batch must live until then.
  std::function<void(Batch&, size_t)> on_quiescent;
};

struct TierUsage {
  uint64_t capacity_bytes = 0;  // The hard cap, metadata included.
  uint64_t used_bytes = 0;      // Of the cap, what is taken now (live, dead and metadata).
  uint64_t live_bytes = 0;      // Of blocks that can be read.
  uint64_t block_count = 0;
  uint64_t queued_ops = 0;
};

// What is kept of space that a tier reclaims. It hears of every block there, a slice at a time, and
// is then asked. Runs on the tier's executor, but for Order().
class ReclaimChoice {
 public:
  virtual ~ReclaimChoice() = default;

  virtual void Add(std::span<const BlockId> ids) = 0;
  // All were added. Whether the space may be reclaimed when only `keep_bytes` of it can be kept.
  // False: too much of it must not be lost (pins, floors); the tier looks elsewhere and asks again
  // later.
  virtual bool MayReclaim(uint64_t keep_bytes) = 0;
  // The numbers of the blocks, from 0 in the order in which they were added, the most valuable
  // first; the tier keeps from the front as far as its room goes. What is not there is dropped.
  // Runs on a worker.
  virtual std::vector<uint32_t> Order() = 0;
};

// What a tier tells the cache on its own account. Called on the tier's executor.
class TierListener {
 public:
  virtual ~TierListener() = default;

  // The tier dropped these blocks by itself: reclaimed, expired, or found corrupt.
  virtual void OnLost(std::span<const BlockId> ids, Code why) = 0;

  // The tier is about to reclaim some space, and can keep some of the blocks there.
  virtual std::unique_ptr<ReclaimChoice> OnReclaim() = 0;

  // Whether this block, which was not worth keeping when that space began to be reclaimed, may
  // still be dropped: it is at once, and OnLost() follows. False: it was pinned since, or its
  // tenant has come down to its floor; the tier leaves the rest where it is.
  virtual bool MayDrop(const BlockId& /*id*/) { return true; }

  // The tier wrote so much on its own account, to keep blocks from space that it reclaims.
  virtual void OnRewritten(uint64_t /*bytes*/) {}

  // Blocks came to light after the start: a drive that could not be read then can be read now.
  // NvmeTier::EnumerateInSlices() shows them.
  virtual void OnFound() {}

  // A device has been out of service for so long that nobody should count on its blocks any more.
  // When it is back, OnFound() says so.
  virtual void OnDetached() {}

  // The tier went out of service or came back. Out of service, every operation fails with
  // kUnavailable at once; the tier probes itself and comes back when the fault is gone.
  virtual void OnHealth(bool in_service, const Status& why) = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;

  // One block's failure is its own: the others of the batch still complete.
  virtual void Read(Batch<ReadOp>* batch) = 0;

  // An id names its content, so writing one that is already there succeeds and writes nothing,
  // unless it is to `replace` what is there or a lasting tier has it with another checksum or
  // expiry: engines do not always compute the same bytes twice, and then the last ones count.
  virtual void Write(Batch<WriteOp>* batch) = 0;

  virtual void Erase(Batch<EraseOp>* batch) = 0;

  // Whether the block is there, from memory. Tiers that must ask elsewhere say kBusy: read instead.
  virtual Status Probe(const BlockId& id) const = 0;

  // The device that would be asked for the block, a small number: what is asked of one does not
  // wait for another. 0 also where the block is not known.
  virtual uint32_t DeviceOf(const BlockId& /*id*/) const { return 0; }

  virtual TierUsage Usage() const = 0;

  virtual bool in_service() const = 0;

  // Counters by name, for metrics and tests, in a fixed order: "corrupt_records", "torn_segments".
  virtual std::vector<std::pair<std::string, uint64_t>> Counters() const = 0;
};

}  // namespace aquifer
