// What lies in the slots of the pool: which blocks are published, and copies into and out of them.
//
// Copies run on workers, in groups of about a megabyte. A copy is claimed by an atomic, either by
// the worker that begins it or by the owner that gives it up (deadline, Cancel()): given up first,
// its buffers are never touched; begun first, the operation is late but in flight. A slot stays
// pinned while a copy may use it.
#include "tier/dram/dram_tier.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/checksum.h"
#include "base/check.h"
#include "io/memory/bus_guard.h"
#include "tier/dram/slot_pool.h"
#include "tier/index_table.h"

namespace aquifer {
namespace {

// A worker's task. A megabyte takes it about 100 us; 64 results take the owner about 20 us.
constexpr uint64_t kGroupBytes = uint64_t{1} << 20;
constexpr size_t kGroupCopies = 64;

enum class Claim : uint8_t {
  kNobody,
  kWorker,  // It copies, or has copied.
  kOwner,   // Given up: the worker passes it over.
};

struct Copy {
  // Set before it is handed to a worker.
  size_t op = 0;  // Its place in the batch.
  SlotId slot = kNoSlot;
  uint64_t sequence = 0;  // Of the block in the slot, for reads.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t bytes = 0;
  Checksum checksum;               // What the bytes must have.
  std::shared_ptr<Extent> extent;  // Shared: the worker may still copy when the tier is gone.

  std::atomic<Claim> claim = Claim::kNobody;

  // Set by the worker.
  bool gone = false;  // The memory was punched out beneath us.
  bool matches = false;

  bool settled = false;  // The owner's: its operation has a status.
};

template <class Op>
struct Job {
  Batch<Op>* batch = nullptr;
  uint64_t number = 0;  // Tells it from an earlier one with the same batch.
  std::unique_ptr<Copy[]> copies;
  size_t count = 0;
  size_t unsettled = 0;
  bool done = false;
};

void RunCopy(Copy& copy) {
  Claim nobody = Claim::kNobody;
  if (!copy.claim.compare_exchange_strong(nobody, Claim::kWorker)) return;
  LaneSums sums;
  const Status touched = GuardBusErrors(
      [&copy, &sums] { sums = CopyAndSumLanes({copy.from, copy.bytes}, 0, copy.to); });
  copy.gone = !touched.ok();
  copy.matches = !copy.gone && FinishChecksum(sums, copy.bytes) == copy.checksum;
}

class DramTierImpl final : public DramTier {
 public:
  DramTierImpl(const DramTierOptions& options, ExtentSource* source, WorkerPool* workers,
               Executor* executor, Clock* clock)
      : options_(options),
        hash_(options.hash_seed),
        workers_(workers),
        executor_(executor),
        clock_(clock),
        pool_(
            options, source, workers, executor,
            [this](std::span<std::byte> bytes, bool added) {
              if (on_extent) on_extent(bytes, added);
            },
            [this](uint32_t extent) {
              if (on_wanted_back) on_wanted_back(extent);
            },
            [this](uint32_t extent) {
              if (on_returned) on_returned(extent);
            }) {}

  // --- Slots

  Result<SlotId> Allocate(const TenantId& tenant, uint64_t bytes) override {
    auto slot = pool_.Allocate(tenant, bytes);
    blocks_.Reserve(pool_.total_slots());  // Grows only with a new extent.
    return slot;
  }

  Result<SlotId> AllocateOwned(const TenantId& tenant, uint64_t bytes) override {
    return pool_.AllocateOwned(tenant, bytes);
  }
  uint32_t ExtentsOf(const TenantId& tenant) const override { return pool_.ExtentsOf(tenant); }

  std::span<std::byte> SlotBytes(SlotId slot) override { return pool_.Bytes(slot); }
  uint32_t SlotExtent(SlotId slot) const override { return pool_.ExtentOf(slot); }

  void Publish(SlotId slot, const BlockMeta& meta) override {
    SlotRecord& record = pool_.Record(slot);
    AQ_CHECK(record.state == SlotState::kTaken && !record.published);
    AQ_CHECK(meta.id.tenant == pool_.TenantOf(slot));
    AQ_CHECK(meta.raw_bytes > 0 && meta.raw_bytes <= pool_.Bytes(slot).size());
    AQ_CHECK(Find(meta.id) == kNoSlot);
    record.published = true;
    record.sequence = next_sequence_++;
    record.meta = meta;
    blocks_.Insert(hash_(meta.id), slot);
    live_bytes_ += meta.raw_bytes;
  }

  // A corrupt read may have been first, so one that is not published is left as it is.
  void Retract(SlotId slot) override {
    SlotRecord& record = pool_.Record(slot);
    if (!record.published) return;
    record.published = false;
    blocks_.Erase(hash_(record.meta.id), slot);
    live_bytes_ -= record.meta.raw_bytes;
  }

  SlotId Find(const BlockId& id) const override {
    static_assert(kNoSlot == IndexTable::kNone);
    return blocks_.Find(hash_(id), [&](SlotId slot) { return pool_.Record(slot).meta.id == id; });
  }

  void Quarantine(SlotId slot) override { pool_.Quarantine(slot); }
  void Free(SlotId slot) override { pool_.Free(slot); }

  std::vector<ExtentInfo> Extents() const override { return pool_.Extents(); }

  // Collects first: `visit` may retract and free what it is shown.
  ExtentInfo ExtentOf(uint32_t extent) const override { return pool_.InfoOf(extent); }
  bool VisitSlots(uint32_t extent, uint32_t begin, uint32_t end,
                  const std::function<void(SlotId, const BlockId&)>& visit) const override {
    std::vector<std::pair<SlotId, BlockId>> found;  // `visit` may drop them.
    const auto note = [&](SlotId slot, const SlotRecord& record) {
      found.emplace_back(slot, record.meta.id);
    };
    const bool more = pool_.VisitPublished(extent, begin, end, note);
    for (const auto& [slot, id] : found) visit(slot, id);
    return more;
  }

  void Retire(uint32_t extent) override { pool_.Retire(extent); }
  SlotPlace PlaceOf(SlotId slot) const override { return pool_.PlaceOf(slot); }
  void AddMapper(uint32_t extent) override { pool_.AddMapper(extent); }
  void RemoveMapper(uint32_t extent) override { pool_.RemoveMapper(extent); }
  void SetReadyExtents(uint32_t count) override { pool_.SetReadyExtents(count); }
  uint64_t Tick() override { return pool_.Tick(); }
  int64_t EaseNanos() const override { return pool_.EaseNanos(); }
  DramUsage dram_usage() const override { return pool_.usage(); }

  // --- Blocks

  void Read(Batch<ReadOp>* batch) override { Submit(batch); }
  void Write(Batch<WriteOp>* batch) override { Submit(batch); }
  void Cancel(Batch<ReadOp>* batch) override { CancelJob(batch); }
  void Cancel(Batch<WriteOp>* batch) override { CancelJob(batch); }

  // Takes no time, so it is never late.
  void Erase(Batch<EraseOp>* batch) override {
    for (EraseOp& op : batch->ops) {
      const SlotId slot = Find(op.id);
      op.status = Status(slot == kNoSlot ? Code::kNotFound : Code::kOk);
      if (slot != kNoSlot) Drop(slot);
    }
    PostDone(batch);
  }

  // Host memory survives nothing, so there is nothing to wait for.
  void Flush(std::function<void(Status)> on_done) override {
    executor_->Post([on_done = std::move(on_done)] { on_done(Status()); });
  }

  // By position, so that parents come first, then by when they were published.
  void Enumerate(const std::function<void(const BlockMeta&)>& visit) const override {
    struct Entry {
      uint32_t position;
      uint64_t sequence;
      BlockId id;
    };
    std::vector<Entry> entries;
    entries.reserve(blocks_.size());
    for (const ExtentInfo& extent : pool_.Extents()) {
      pool_.VisitPublished(extent.extent, 0, extent.slots, [&](SlotId, const SlotRecord& record) {
        entries.push_back({record.meta.position, record.sequence, record.meta.id});
      });
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.position, a.sequence) < std::pair(b.position, b.sequence);
    });
    for (const Entry& entry : entries) {
      const SlotId slot = Find(entry.id);
      if (slot != kNoSlot) visit(pool_.Record(slot).meta);  // `visit` may drop blocks.
    }
  }

  Status Probe(const BlockId& id) const override {
    return Status(Find(id) == kNoSlot ? Code::kNotFound : Code::kOk);
  }

  TierUsage Usage() const override {
    return {.capacity_bytes = options_.capacity_bytes,
            .used_bytes = pool_.usage().extent_bytes,
            .live_bytes = live_bytes_,
            .block_count = blocks_.size(),
            .queued_ops = queued_ops_};
  }

  bool in_service() const override { return true; }

  std::vector<std::pair<std::string, uint64_t>> Counters() const override {
    const SlotPoolCounters& pool = pool_.counters();
    return {{"extents_made", pool.extents_made},
            {"extents_closed", pool.extents_closed},
            {"extents_failed", pool.extents_failed},
            {"extents_short", pool.extents_short},
            {"slots_allocated", pool.slots_allocated},
            {"slots_freed", pool.slots_freed},
            {"frees_deferred", pool.frees_deferred},
            {"copied_bytes", copied_bytes_},
            {"corrupt_blocks", corrupt_blocks_},
            {"bus_errors", bus_errors_},
            {"late_ops", late_ops_},
            {"refused_ops", refused_ops_}};
  }

 private:
  // --- Preparing: on success, `copy->bytes` says whether anything is left to copy.

  Status Prepare(ReadOp& op, Copy* copy) {
    const SlotId slot = Find(op.id);
    if (slot == kNoSlot) return Status(Code::kNotFound);
    const SlotRecord& record = pool_.Record(slot);
    if (op.target.size() != RoundUpToPage(record.meta.raw_bytes)) return Status(Code::kInvalid);
    if (queued_ops_ >= options_.max_queued_ops) return Refuse();
    pool_.Pin(slot);
    copy->sequence = record.sequence;
    FillCopy(copy, slot, pool_.Bytes(slot).data(), op.target.data(), record.meta);
    return Status();
  }

  Status Prepare(WriteOp& op, Copy* copy) {
    const BlockMeta& meta = op.meta;
    // Slots hold raw bytes, which engines read without us.
    if (meta.codec != Codec::kNone || meta.stored_bytes != meta.raw_bytes || meta.raw_bytes == 0 ||
        op.source.size() != RoundUpToPage(meta.raw_bytes)) {
      return Status(Code::kInvalid);
    }
    if (const SlotId known = Find(meta.id); known != kNoSlot) {
      if (op.replace) pool_.Record(known).meta.expiry_unix_seconds = meta.expiry_unix_seconds;
      return Status();
    }
    if (queued_ops_ >= options_.max_queued_ops) return Refuse();
    auto slot = Allocate(meta.id.tenant, meta.raw_bytes);
    if (!slot.ok()) return slot.status();
    pool_.Record(*slot).written = true;
    FillCopy(copy, *slot, op.source.data(), pool_.Bytes(*slot).data(), meta);
    return Status();
  }

  void FillCopy(Copy* copy, SlotId slot, const std::byte* from, std::byte* to,
                const BlockMeta& meta) {
    copy->slot = slot;
    copy->from = from;
    copy->to = to;
    copy->bytes = meta.raw_bytes;
    copy->checksum = meta.checksum;
    copy->extent = pool_.Keep(slot);
  }

  Status Refuse() {
    ++refused_ops_;
    return Status(Code::kBusy);
  }

  // --- Settling

  Status Settle(ReadOp& op, const Copy& copy) {
    SettleLate(&op, copy);
    if (!copy.matches) return Status(Code::kCorrupt);
    op.checksum = copy.checksum;
    return Status();
  }

  Status Settle(WriteOp& op, const Copy& copy) {
    if (copy.gone) PunchedOut(copy.slot);
    copied_bytes_ += copy.matches ? copy.bytes : 0;
    // Retired meanwhile: whoever drains the extent has seen its blocks already.
    const bool retired = copy.matches && pool_.ExtentRetired(copy.slot);
    if (copy.matches && !retired && Find(op.meta.id) == kNoSlot) {
      Publish(copy.slot, op.meta);
      return Status();
    }
    pool_.Free(copy.slot);
    if (!copy.matches) return Status(Code::kCorrupt);
    return Find(op.meta.id) == kNoSlot ? Refuse() : Status();
  }

  // The copy was given up before it began.
  void Abandon(const ReadOp*, const Copy& copy) { pool_.Unpin(copy.slot); }
  void Abandon(const WriteOp*, const Copy& copy) { pool_.Free(copy.slot); }

  // It was not: its worker goes on until it is through.
  void LeaveToWorker(const ReadOp*, const Copy&) {}
  void LeaveToWorker(const WriteOp*, const Copy& copy) { pool_.Quarantine(copy.slot); }

  // It ended when its operation had a status already. What a late write brought is not published.
  void SettleLate(const ReadOp*, const Copy& copy) {
    if (copy.gone) PunchedOut(copy.slot);
    copied_bytes_ += copy.matches ? copy.bytes : 0;
    const SlotRecord& record = pool_.Record(copy.slot);
    // Retracted meanwhile, the slot may have been filled anew: that block is not the corrupt one.
    if (!copy.matches && record.published && record.sequence == copy.sequence) {
      ++corrupt_blocks_;
      Drop(copy.slot);
    }
    pool_.Unpin(copy.slot);
  }
  void SettleLate(const WriteOp*, const Copy& copy) {
    if (copy.gone) PunchedOut(copy.slot);
    pool_.Free(copy.slot);
  }

  // The block is seen no longer. Slots that came from Allocate() are freed by who asked for them.
  void Drop(SlotId slot) {
    Retract(slot);
    if (pool_.Record(slot).written) pool_.Free(slot);
  }

  // A mapper punched a hole into the extent. Nothing new goes there; what is left is found corrupt,
  // or not, when it is read.
  void PunchedOut(SlotId slot) {
    ++bus_errors_;
    pool_.Retire(pool_.ExtentOf(slot));
  }

  // --- Batches

  template <class Op>
  using JobsByBatch = std::map<const void*, std::shared_ptr<Job<Op>>>;  // lookup only: never walked
  JobsByBatch<ReadOp>& Jobs(const Batch<ReadOp>*) { return reads_; }
  JobsByBatch<WriteOp>& Jobs(const Batch<WriteOp>*) { return writes_; }

  template <class Op>
  void Submit(Batch<Op>* batch) {
    AQ_CHECK(!Jobs(batch).contains(batch));
    auto job = std::make_shared<Job<Op>>();
    job->batch = batch;
    job->number = next_job_++;
    job->copies = std::make_unique<Copy[]>(batch->ops.size());
    const bool late = clock_->NowNanos() >= batch->deadline_nanos;
    for (size_t i = 0; i < batch->ops.size(); ++i) {
      Op& op = batch->ops[i];
      op.in_flight = false;
      Copy& copy = job->copies[job->count];
      copy.op = i;
      op.status = late ? Status(Code::kLate) : Prepare(op, &copy);
      if (copy.bytes == 0) continue;
      ++job->count;
      ++queued_ops_;
    }
    late_ops_ += late ? batch->ops.size() : 0;
    if (job->count == 0) return PostDone(batch);

    job->unsettled = job->count;
    Jobs(batch).emplace(batch, job);
    if (batch->deadline_nanos != kNoDeadline) {
      executor_->PostAt(batch->deadline_nanos, GiveUpTask(batch, job->number));
    }
    HandToWorkers(job);
  }

  template <class Op>
  void HandToWorkers(const std::shared_ptr<Job<Op>>& job) {
    for (size_t first = 0, last = 0; first < job->count; first = last) {
      uint64_t bytes = 0;
      while (last < job->count && last - first < kGroupCopies && bytes < kGroupBytes) {
        bytes += job->copies[last++].bytes;
      }
      workers_->Run([this, executor = executor_, alive = std::weak_ptr(alive_), job, first, last] {
        for (size_t i = first; i < last; ++i) RunCopy(job->copies[i]);
        executor->Post([this, alive, job, first, last] {
          if (!alive.expired()) OnCopied(*job, first, last);
        });
      });
    }
  }

  template <class Op>
  void OnCopied(Job<Op>& job, size_t first, size_t last) {
    queued_ops_ -= last - first;
    for (size_t i = first; i < last; ++i) {
      Copy& copy = job.copies[i];
      if (copy.claim == Claim::kOwner) continue;
      Op& op = job.batch->ops[copy.op];
      if (job.done) {
        SettleLate(&op, copy);
        if (job.batch->on_quiescent) job.batch->on_quiescent(*job.batch, copy.op);
        continue;
      }
      op.status = Settle(op, copy);
      copy.settled = true;
      --job.unsettled;
    }
    if (!job.done && job.unsettled == 0) Complete(job);
  }

  template <class Op>
  void CancelJob(Batch<Op>* batch) {
    const auto found = Jobs(batch).find(batch);
    if (found != Jobs(batch).end()) executor_->Post(GiveUpTask(batch, found->second->number));
  }

  template <class Op>
  Task GiveUpTask(Batch<Op>* batch, uint64_t number) {
    return [this, alive = std::weak_ptr(alive_), batch, number] {
      if (alive.expired()) return;
      const auto found = Jobs(batch).find(batch);
      if (found != Jobs(batch).end() && found->second->number == number) {
        const std::shared_ptr<Job<Op>> job = found->second;
        GiveUp(*job);
      }
    };
  }

  template <class Op>
  void GiveUp(Job<Op>& job) {
    for (size_t i = 0; i < job.count; ++i) {
      Copy& copy = job.copies[i];
      if (copy.settled) continue;
      Op& op = job.batch->ops[copy.op];
      op.status = Status(Code::kLate);
      ++late_ops_;
      Claim nobody = Claim::kNobody;
      if (copy.claim.compare_exchange_strong(nobody, Claim::kOwner)) {
        Abandon(&op, copy);
      } else {
        op.in_flight = true;
        LeaveToWorker(&op, copy);
      }
    }
    Complete(job);
  }

  template <class Op>
  void Complete(Job<Op>& job) {
    job.done = true;
    Batch<Op>* const batch = job.batch;
    Jobs(batch).erase(batch);  // The job itself is held by whoever called.
    batch->on_done(*batch);
  }

  template <class Op>
  void PostDone(Batch<Op>* batch) {
    executor_->Post([alive = std::weak_ptr(alive_), batch] {
      if (!alive.expired()) batch->on_done(*batch);
    });
  }

  const DramTierOptions options_;
  const BlockHash hash_;
  WorkerPool* const workers_;
  Executor* const executor_;
  Clock* const clock_;
  SlotPool pool_;
  IndexTable blocks_;  // BlockId to slot.
  uint64_t next_sequence_ = 1;
  uint64_t live_bytes_ = 0;

  uint64_t queued_ops_ = 0;  // Copies handed to workers and not come back.
  uint64_t next_job_ = 1;
  JobsByBatch<ReadOp> reads_;  // Not done.
  JobsByBatch<WriteOp> writes_;

  uint64_t copied_bytes_ = 0;
  uint64_t corrupt_blocks_ = 0;
  uint64_t bus_errors_ = 0;
  uint64_t late_ops_ = 0;
  uint64_t refused_ops_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Its weak copies guard tasks.
};

}  // namespace

Result<std::unique_ptr<DramTier>> NewDramTier(const DramTierOptions& options, ExtentSource* source,
                                              WorkerPool* workers, Executor* executor,
                                              Clock* clock) {
  AQ_RETURN_IF_ERROR(SlotPool::Validate(options));
  if (options.max_queued_ops == 0) return Status(Code::kInvalid, "max_queued_ops is zero");
  return std::unique_ptr<DramTier>(
      std::make_unique<DramTierImpl>(options, source, workers, executor, clock));
}

}  // namespace aquifer
