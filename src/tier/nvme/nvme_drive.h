// One drive of the NVMe tier: its segments, what is written to them, the deletion maps, reclaim and
// the drive's health. The tier above owns the callers' batches and the index that all drives share.
//
// A segment is free, or used: open (a SegmentWriter fills it), sealing, sealed, or a reclaim's
// victim. There are never more segments than the cap allows, so the cap holds whatever happens.
//
// Erasing is setting a bit in a segment's map. One rule keeps erased blocks dead: an erase is
// acknowledged when every bit set on its drive before it is on the drive. The older copies of moved
// blocks are among those bits.
//
// Runs on the tier's executor.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_index.h"
#include "tier/nvme/nvme_io.h"
#include "tier/nvme/nvme_tier.h"
#include "tier/nvme/nvme_writer.h"

namespace aquifer {

struct NvmeCounters {
  uint64_t blocks_written = 0;
  uint64_t bytes_written = 0;
  uint64_t blocks_read = 0;
  uint64_t bytes_read = 0;
  uint64_t blocks_erased = 0;
  uint64_t blocks_expired = 0;
  uint64_t corrupt_blocks = 0;   // Read, and the checksum failed.
  uint64_t refused_seals = 0;    // Sealed by another key, changed, or not sealed at all.
  uint64_t without_key = 0;      // Refused because the tenant's key is not known.
  uint64_t corrupt_sources = 0;  // Refused before they were written.
  uint64_t read_errors = 0;
  uint64_t write_errors = 0;
  uint64_t create_errors = 0;
  uint64_t map_writes = 0;
  uint64_t segments_opened = 0;
  uint64_t segments_sealed = 0;
  uint64_t segments_reclaimed = 0;
  uint64_t reclaim_moved_blocks = 0;
  uint64_t reclaim_moved_bytes = 0;
  uint64_t reclaim_dropped_blocks = 0;
  uint64_t probes = 0;
  uint64_t times_out_of_service = 0;
};

// What the drives of a tier have in common.
struct NvmeShared {
  NvmeTierOptions options;  // segment_bytes is set.
  WorkerPool* workers = nullptr;
  Executor* executor = nullptr;
  Clock* clock = nullptr;
  Random* random = nullptr;
  NvmeIndex index;
  NvmeCounters counters;
  NvmeRecovery recovery;
  uint64_t next_sequence = 1;
  // Tasks hold it weakly and do nothing once the tier is gone.
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);

  void Post(Task task) { executor->Post(Guard(std::move(task))); }
  void PostAt(int64_t at_nanos, Task task) { executor->PostAt(at_nanos, Guard(std::move(task))); }
  Task Guard(Task task) const {
    return [task = std::move(task), alive = std::weak_ptr<bool>(alive)] {
      if (!alive.expired()) task();
    };
  }
};

class NvmeDrive final : public SegmentWriter::Host {
 public:
  // What the drive tells the tier, and asks it. Never from inside a call to the drive, except
  // where said.
  class Owner {
   public:
    virtual ~Owner() = default;
    // It may take more writes now, or its health changed. May come from inside a call.
    virtual void OnDriveChanged(NvmeDrive* drive) = 0;
    // It went out of service: nothing that waits for it should wait on.
    virtual void OnDriveOut(NvmeDrive* drive) = 0;
    // It has been out of service for detach_nanos.
    virtual void OnDriveDetached() = 0;
    virtual void OnLost(std::vector<BlockId> ids, Code why) = 0;
    // It could not be read at the start and has been now: there are more blocks.
    virtual void OnFound(NvmeDrive* drive) = 0;
    // Says what to keep of a segment. Null: nothing.
    virtual std::unique_ptr<ReclaimChoice> ChooseForReclaim() = 0;
    // A block is being rewritten; erasing it must wait for the end.
    virtual void OnMoveBegins(const BlockId& id) = 0;
    virtual void OnMoveEnds(const BlockId& id) = 0;
    virtual void OnRewritten(uint64_t bytes) = 0;
    virtual bool MayDrop(const BlockId& id) = 0;
    // Another of the tier's drives.
    virtual NvmeDrive* Drive(uint32_t number) = 0;
  };

  NvmeDrive(uint32_t number, uint64_t capacity_bytes, Disk* disk, NvmeShared* shared, Owner* owner);
  ~NvmeDrive() override;

  // Finds again what is on the drive. On failure the drive is out of service and tries again by
  // itself; `on_done` runs once, after the first try.
  void Recover(std::function<void(Status)> on_done);

  bool recovered() const { return recovered_; }
  // The tier knows of all that recovery found.
  bool announced() const { return recovered_ && !unannounced_; }
  // It went out of service before all of that was seen: it is announced again when it is back.
  void AnnounceAgain() { unannounced_ = true; }
  bool in_service() const { return recovered_ && !out_; }
  // Returns true if the drive has been out of service for so long that its records count only when
  // it is back.
  bool detached() const { return detached_; }
  // A record of a detached drive was replaced on another drive. Its mark is written when the drive
  // is back.
  void MarkWhenBack() { unmarked_ = true; }
  bool writable() const { return in_service() && !write_fault_; }
  const Status& why() const { return why_; }  // Why it is not.
  uint32_t number() const { return number_; }
  std::string Name() const { return io_.disk()->Describe(); }
  // What its recovery could not read.
  const std::vector<std::string>& skipped() const { return skipped_; }

  // Takes up to a group of records from the front of `queue` and writes it. True if it took any.
  bool TakeFrom(std::deque<AppendItem*>* queue);
  // Nothing it waits for could make room: what it did not take will never be taken.
  bool full() const;

  // Reads a block's pages into `target`. The segment stays as it is until `done`.
  struct ReadRequest {
    RecordPlace place;
    std::span<std::byte> target;
    Status status;
  };
  void Read(std::vector<ReadRequest> reads, std::function<void(std::vector<ReadRequest>&)> done);

  // The block is gone from memory; its bit reaches the drive with the next FlushMaps().
  void Drop(NvmeIndex::EntryId entry);
  // The same for one that nobody will ask to erase: until its bit is on the drive, others that are
  // asked for cannot be sure.
  void DropUnmarked(NvmeIndex::EntryId entry);

  // `done(status)` when every bit set so far is on the drive.
  void FlushMaps(std::function<void(Status)> done);
  // A copy of some block may be here that is neither known nor marked as deleted, and FlushMaps()
  // would not mark it.
  bool may_hold_unmarked_copies() const {
    return !recovered_ || unread_ || (has_unwritten_marks() && !writable());
  }
  // Some bit is not on the drive yet; FlushMaps() is what it needs.
  bool has_unwritten_marks() const;
  size_t hung_requests() const { return io_.hung(); }

  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t used_bytes() const;
  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t memory_bytes() const;

  // ---- SegmentWriter::Host ----
  RecordAge NextAge(const AppendItem& item) override;
  void EnqueueChunk(SegmentWriter::Chunk chunk) override { chunks_.push_back(std::move(chunk)); }
  void OnRecord(SegmentWriter* writer, uint32_t record, const RecordAge& age,
                uint64_t payload_offset, AppendItem* item) override;
  void OnWriteError(const Status& status) override;
  void OnSealed(SegmentWriter* writer) override;

 private:
  friend class DriveRecovery;

  enum class State : uint8_t {
    kFree,     // Ours to use.
    kOpening,  // Its header is being written.
    kOpen,
    kSealing,
    kSealed,
    kVictim,  // Reclaim is emptying it.
    kBarred,  // Not ours, or of a later version: never touched.
    kRemoving,
    kGone,  // There is no such file any more; the number is used again.
  };

  struct Segment {
    State state = State::kFree;
    uint32_t file = 0;
    uint64_t bytes = 0;
    SegmentUse use;
    std::vector<NvmeIndex::EntryId> records;  // By number; kNone: dead, or not read.
    // By number: it could not be read when we started, and may be alive. Empty: all were read.
    std::vector<bool> unread;
    uint64_t live_bytes = 0;                 // Payload pages of live records.
    int64_t spared_until_nanos = INT64_MIN;  // Too much of it must not be lost, for now.
    uint32_t readers = 0;

    uint64_t map_bytes = 0;  // Of each copy. As the header says: the file may have been cut since.
    uint64_t map_sequence = 0;
    uint32_t map_copy = 0;        // Which copy is written next.
    bool map_dirty = false;       // A bit is set that no copy has.
    bool map_unmirrored = false;  // The other copy lacks a bit that one has.
    bool map_writing = false;

    // Of a segment that is emptied, so much is written again at most.
    uint64_t MovableBytes() const { return bytes / 5; }
    bool dead(size_t record) const {
      return records[record] == NvmeIndex::kNone && (record >= unread.size() || !unread[record]);
    }
  };

  struct Move;
  struct Reclaim;

  int64_t now() const { return shared_->clock->NowNanos(); }
  const NvmeTierOptions& options() const { return shared_->options; }

  // Segments (nvme_drive.cc).
  uint32_t FreeSegments() const;
  uint64_t CreatableSegments() const;
  bool StartOpening(bool for_reclaim);
  uint32_t NewSegment();
  void WriteFirstPages(uint32_t segment);
  void OnCreated(uint32_t segment, const Status& status);
  void OnOpened(uint32_t segment, const Status& status);
  // The record is dead from now on; its bit is to be written.
  void Unlist(const RecordPlace& place, uint64_t payload_bytes);
  // `next_`, if there is one, is open then.
  void SealOpen();
  void SealAll();
  void OpenAhead();
  void PumpChunks();
  // The drive has enough to do until there is enough for a whole group. A page for each block costs
  // the drive more than the page's bytes: it writes what is on both sides of it apart.
  bool CanWaitForMore(const std::deque<AppendItem*>& queue) const;
  uint64_t WriteBudget() const;
  void NoteWritten(uint64_t bytes, int64_t nanos);
  void ReleaseSegment(uint32_t segment);
  void Changed();

  // Maps.
  void RunMapCycle();
  void WriteMaps(std::vector<uint32_t> segments, size_t from);
  void FinishMapCycle();
  void MarkLosers(std::function<void()> done);
  // Forgets what a restart found past its time, a slice at a time, from here on.
  void SweepExpired(uint32_t segment, size_t record);

  // Health (nvme_health.cc).
  // When what is the oldest request now counts as hanging; INT64_MAX: there is none.
  int64_t HangsAt() const;
  void ArmTimer();
  void OnTimer();
  int64_t DetachesAt() const { return out_since_nanos_ + options().detach_nanos; }
  void Detach();
  void MarkAllHung();
  void GoOut(const Status& why);
  void GoReadOnly(const Status& why);
  void StartProbe();
  void OnProbed(const Status& status);
  void Announce();
  void FailChunks(const Status& status);
  void FailMoves(const Status& status);
  void CountRead(const Status& status);
  void ProbeSegment(uint32_t segment);
  void OnRecovered(const Status& status);

  // Reclaim (nvme_reclaim.cc).
  void MaybeReclaim();
  bool CanReclaim() const;
  uint32_t PickVictim() const;
  void StartReclaim(uint32_t victim);
  void LookAtSome();
  void SortByValue();
  void ContinueReclaim();
  void StartMove(size_t index);
  void OnMoveRead(Move* move, const Status& status);
  void OnMoveVerified(Move* move, bool good);
  void OnMoveDone(Move* move, const Status& status);
  void DropRest();
  void AbandonReclaim();
  void FreeVictim();
  void PostContinueReclaim();

  const uint32_t number_;
  const uint64_t capacity_bytes_;
  NvmeShared* const shared_;
  Owner* const owner_;
  NvmeIo io_;

  DriveId drive_id_{};
  bool has_drive_id_ = false;
  uint64_t next_generation_ = 1;
  std::vector<Segment> segments_;
  std::vector<std::string> skipped_;
  uint64_t file_bytes_ = 0;
  uint64_t live_bytes_ = 0;

  uint32_t opening_ = UINT32_MAX;
  std::unique_ptr<SegmentWriter> open_;
  std::unique_ptr<SegmentWriter> next_;  // Opened ahead. Only beside `open_`.
  std::vector<std::unique_ptr<SegmentWriter>> sealing_;
  std::deque<SegmentWriter::Chunk> chunks_;  // Payload not at the drive yet.
  // At the drive, but for what is taken for hanging: that may never end, and is no work it has.
  uint64_t write_bytes_in_flight_ = 0;
  uint64_t queue_bytes_ = uint64_t{16} << 20;  // So many may be, while nobody reads.
  uint32_t reads_in_flight_ = 0;
  uint64_t times_hung_ = 0;  // What was submitted before the last time is not counted in these.
  // The file system was full; not tried again before.
  int64_t create_again_nanos_ = INT64_MIN;  // To make a file.
  int64_t open_again_nanos_ = INT64_MIN;    // To write to one that exists (copy-on-write systems).

  std::vector<std::function<void(Status)>> map_waiters_;        // For the next cycle.
  std::vector<std::function<void(Status)>> map_cycle_waiters_;  // For the one that runs.
  bool map_cycle_running_ = false;
  Status map_cycle_status_;

  std::unique_ptr<Reclaim> reclaim_;
  std::deque<AppendItem*> moves_;  // Read, verified, and to be written.

  bool recovered_ = false;
  bool unread_ = false;       // Something of ours could not be read when we started.
  bool unannounced_ = false;  // It was read, but the tier does not know what is on it.
  bool unmarked_ = false;     // A bit that an erase relies on could not be written so far.
  bool out_ = false;
  int64_t out_since_nanos_ = 0;
  bool detached_ = false;
  bool write_fault_ = false;
  Status why_;
  uint32_t read_failures_ = 0;  // In a row.
  bool probing_ = false;
  int64_t next_probe_nanos_ = 0;
  int64_t timer_nanos_ = INT64_MAX;
  int64_t patient_until_nanos_ = 0;  // Nothing is taken for hanging before.
  uint64_t probe_count_ = 0;
  std::function<void(Status)> on_recovered_;  // Set until Recover() is answered.
  std::unique_ptr<class DriveRecovery> recovery_;
};

}  // namespace aquifer
