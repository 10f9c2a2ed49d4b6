#include "tier/nvme/nvme_tier.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "aquifer/layout.h"
#include "fmt/format.h"
#include "tier/nvme/nvme_tier_impl.h"

namespace aquifer {
namespace {

constexpr size_t kCollectedPerTask = 2048;
constexpr size_t kVisitedPerTask = 128;
constexpr int kSequencesPerSecondBits = 20;  // A million records a second, and then some.
constexpr uint64_t kMicrosPerSecond = 1'000'000;

}  // namespace

// ---- Batches ----

void NvmeTierImpl::SettleLate(Ledger::AnyBatch* batch) {
  std::visit(
      [this](const auto& one) {
        for (auto& state : one->states) {
          if (!state.settled) Settle(&state, Status(Code::kLate));
        }
      },
      *batch);
  if (std::holds_alternative<std::unique_ptr<WriteBatch>>(*batch)) DropLateWrites();
}

void NvmeTierImpl::OnDriveOut(NvmeDrive* drive) {
  // Only what waits for this drive. Settling changes no container that is walked here.
  std::vector<PendingWrite*> hanging;
  for (auto& [id, any] : ledger_.all()) {
    if (const auto* reads = std::get_if<std::unique_ptr<ReadBatch>>(&any)) {
      for (PendingRead& read : (*reads)->states) {
        if (!read.settled && read.place.drive == drive->number()) Settle(&read, drive->why());
      }
    } else if (const auto* writes = std::get_if<std::unique_ptr<WriteBatch>>(&any)) {
      for (PendingWrite& write : (*writes)->states) {
        bool waits = WaitsFor(write, drive->number());
        if (write.stage == PendingWrite::Stage::kFollowing && !write.settled) {
          const PendingWrite* const leader = pending_.find(write.meta.id)->second.leader;
          waits = leader != nullptr && LacksOnlyMark(*leader) && WaitsFor(*leader, drive->number());
        }
        if (write.settled || !waits) continue;
        Settle(&write, drive->why());
        if (write.drive == drive->number()) hanging.push_back(&write);
      }
    } else if (const auto* erases = std::get_if<std::unique_ptr<EraseBatch>>(&any)) {
      for (PendingErase& erase : (*erases)->states) {
        if (!erase.settled && WaitsFor(erase, *drive)) Settle(&erase, drive->why());
      }
    }
  }
  for (PendingWrite* write : hanging) GiveUp(write);
}

bool NvmeTierImpl::WaitsFor(const PendingErase& erase, const NvmeDrive& drive) const {
  if (erase.drive != UINT32_MAX) return erase.drive == drive.number();
  const auto found = pending_.find(erase.id);
  if (found == pending_.end()) return false;
  const auto at_drive = [&drive](const PendingWrite* write) {
    return WaitsFor(*write, drive.number());
  };
  const Pending& pending = found->second;
  return pending.moves > 0 || (pending.leader != nullptr && at_drive(pending.leader)) ||
         std::any_of(pending.given_up.begin(), pending.given_up.end(), at_drive);
}

void NvmeTierImpl::OnLost(std::vector<BlockId> ids, Code why) {
  if (listener_ == nullptr) return;
  shared_.Post([this, ids = std::move(ids), why] { listener_->OnLost(ids, why); });
}

void NvmeTierImpl::RunVerification(const std::shared_ptr<Verification>& verification, Task done) {
  Executor* const executor = shared_.executor;
  shared_.workers->Run([verification, executor, done = shared_.Guard(std::move(done))] {
    verification->Run();
    executor->Post(done);
  });
}

// ---- Starting ----

void NvmeTierImpl::Recover(std::function<void(Status)> on_done) {
  // Above whatever a drive holds that opens later, or not in this life: of two records of a block
  // the one with the higher sequence counts.
  const auto micros = static_cast<uint64_t>(std::max<int64_t>(shared_.clock->UnixMicros(), 0));
  const uint64_t second = (micros / kMicrosPerSecond) << kSequencesPerSecondBits;
  const uint64_t fraction = ((micros % kMicrosPerSecond) << kSequencesPerSecondBits);
  shared_.next_sequence = std::max(shared_.next_sequence, second + fraction / kMicrosPerSecond);
  auto waiting = std::make_shared<size_t>(drives_.size());
  auto answer = std::make_shared<std::function<void(Status)>>(std::move(on_done));
  for (const auto& drive : drives_) {
    drive->Recover([this, waiting, answer](const Status& status) {
      if (!status.ok()) {
        shared_.recovery.messages.push_back(status.ToString() + "; the drive is tried again");
      }
      if (--*waiting > 0) return;
      started_ = true;
      shared_.Post([this, answer] {
        (*answer)(in_service() ? Status()
                               : Status(Code::kUnavailable, "no drive can be used: " + WhyOut()));
        SchedulePump();
      });
    });
  }
}

// ---- Asking ----

std::vector<NvmeDriveState> NvmeTierImpl::Drives() const {
  std::vector<NvmeDriveState> states;
  for (const auto& drive : drives_) {
    NvmeDriveState state{.in_service = drive->in_service(),
                         .writable = drive->writable(),
                         .why = drive->why(),
                         .skipped = drive->skipped()};
    if (!state.in_service && state.why.ok()) {
      state.why = Status(Code::kUnavailable, "it has not been read yet");
    }
    states.push_back(std::move(state));
  }
  return states;
}

std::string NvmeTierImpl::WhyOut() const {
  std::string why;
  for (const auto& drive : drives_) {
    if (drive->in_service()) continue;
    if (!why.empty()) why += "; ";
    why += drive->why().message();
  }
  return why;
}

bool NvmeTierImpl::Detached(const BlockId& id) const {
  const NvmeIndex::EntryId entry = shared_.index.Find(id);
  return entry != NvmeIndex::kNone && drives_[shared_.index.Place(entry).drive]->detached();
}

bool NvmeTierImpl::Visible(NvmeIndex::EntryId entry) const {
  return !shared_.index.Expired(entry, shared_.clock->UnixSeconds()) &&
         drives_[shared_.index.Place(entry).drive]->in_service();
}

void NvmeTierImpl::EnumerateInSlices(std::function<void(const BlockMeta&)> visit,
                                     std::function<void()> on_done) {
  auto enumeration = std::make_shared<Enumeration>();  // Of whichever task has it next.
  enumeration->visit = std::move(visit);
  enumeration->on_done = std::move(on_done);
  enumeration->order.reserve(shared_.index.size());
  shared_.Post([this, enumeration] { CollectSlice(enumeration); });
}

void NvmeTierImpl::CollectSlice(const std::shared_ptr<Enumeration>& enumeration) {
  const auto next = static_cast<NvmeIndex::EntryId>(enumeration->cursor);
  enumeration->cursor = shared_.index.Collect(next, kCollectedPerTask, &enumeration->order);
  if (enumeration->cursor != NvmeIndex::kNone) {
    return shared_.Post([this, enumeration] { CollectSlice(enumeration); });
  }
  enumeration->cursor = 0;
  // Sorting a million takes a tenth of a second: a worker's.
  Executor* const executor = shared_.executor;
  Task visit = shared_.Guard([this, enumeration] { VisitSlice(enumeration); });
  shared_.workers->Run([enumeration, executor, visit = std::move(visit)] {
    std::sort(enumeration->order.begin(), enumeration->order.end());
    executor->Post(visit);
  });
}

void NvmeTierImpl::VisitSlice(const std::shared_ptr<Enumeration>& enumeration) {
  const std::vector<NvmeIndex::OrderKey>& order = enumeration->order;
  const size_t end = std::min(enumeration->cursor + kVisitedPerTask, order.size());
  for (; enumeration->cursor < end; ++enumeration->cursor) {
    const NvmeIndex::EntryId entry = order[enumeration->cursor].entry;
    if (!shared_.index.Used(entry)) continue;
    NvmeDrive* const drive = drives_[shared_.index.Place(entry).drive].get();
    if (!drive->in_service()) drive->AnnounceAgain();
    if (shared_.index.Expired(entry, shared_.clock->UnixSeconds())) {
      // For good: who enumerates never asks for it, also when the calendar is set back.
      ++shared_.counters.blocks_expired;
      OnLost({shared_.index.Id(entry)}, Code::kNotFound);
      drive->DropUnmarked(entry);
      continue;
    }
    if (Visible(entry)) enumeration->visit(shared_.index.Meta(entry));
  }
  if (end == order.size()) return enumeration->on_done();
  shared_.Post([this, enumeration] { VisitSlice(enumeration); });
}

Status NvmeTierImpl::Probe(const BlockId& id) const {
  const NvmeIndex::EntryId entry = shared_.index.Find(id);
  if (entry == NvmeIndex::kNone) {
    const bool known = in_service() || DrivesRead() == drives_.size();
    return Status(known ? Code::kNotFound : Code::kUnavailable);
  }
  if (shared_.index.Expired(entry, shared_.clock->UnixSeconds())) return Status(Code::kNotFound);
  if (!drives_[shared_.index.Place(entry).drive]->in_service()) return Status(Code::kUnavailable);
  return Status();
}

std::optional<BlockMeta> NvmeTierImpl::MetaOf(const BlockId& id) const {
  const NvmeIndex::EntryId entry = shared_.index.Find(id);
  if (entry == NvmeIndex::kNone) return std::nullopt;
  return shared_.index.Meta(entry);
}

uint32_t NvmeTierImpl::DeviceOf(const BlockId& id) const {
  const NvmeIndex::EntryId entry = shared_.index.Find(id);
  return entry == NvmeIndex::kNone ? 0 : shared_.index.Place(entry).drive;
}

TierUsage NvmeTierImpl::Usage() const {
  TierUsage usage;
  usage.capacity_bytes = shared_.options.capacity_bytes;
  for (const auto& drive : drives_) {
    usage.used_bytes += drive->used_bytes();
    usage.live_bytes += drive->live_bytes();
  }
  usage.block_count = shared_.index.size();
  usage.queued_ops = ledger_.places_taken();
  return usage;
}

std::vector<std::pair<std::string, uint64_t>> NvmeTierImpl::Counters() const {
  const NvmeCounters& counters = shared_.counters;
  const NvmeRecovery& recovery = shared_.recovery;
  uint64_t file_bytes = 0;
  uint64_t memory_bytes = shared_.index.memory_bytes();
  uint64_t in = 0;
  uint64_t writable = 0;
  for (const auto& drive : drives_) {
    file_bytes += drive->file_bytes();
    memory_bytes += drive->memory_bytes();
    in += drive->in_service() ? 1 : 0;
    writable += drive->writable() ? 1 : 0;
  }
  return {
      {"live_blocks", shared_.index.size()},
      {"blocks_written", counters.blocks_written},
      {"bytes_written", counters.bytes_written},
      {"blocks_read", counters.blocks_read},
      {"bytes_read", counters.bytes_read},
      {"blocks_erased", counters.blocks_erased},
      {"blocks_expired", counters.blocks_expired},
      {"corrupt_blocks", counters.corrupt_blocks},
      {"corrupt_sources", counters.corrupt_sources},
      {"refused_seals", counters.refused_seals},
      {"without_key", counters.without_key},
      {"corrupt_records", recovery.corrupt_records},
      {"torn_segments", recovery.segments_by_scan},
      {"skipped_segments", recovery.segments_skipped},
      {"read_errors", counters.read_errors},
      {"write_errors", counters.write_errors},
      {"create_errors", counters.create_errors},
      {"map_writes", counters.map_writes},
      {"segments_opened", counters.segments_opened},
      {"segments_sealed", counters.segments_sealed},
      {"segments_reclaimed", counters.segments_reclaimed},
      {"reclaim_moved_blocks", counters.reclaim_moved_blocks},
      {"reclaim_moved_bytes", counters.reclaim_moved_bytes},
      {"reclaim_dropped_blocks", counters.reclaim_dropped_blocks},
      {"probes", counters.probes},
      {"times_out_of_service", counters.times_out_of_service},
      {"drives_in_service", in},
      {"drives_writable", writable},
      {"file_bytes", file_bytes},
      {"index_bytes", memory_bytes},
  };
}

// ---- Making one ----

namespace {

constexpr uint64_t kMinSegments = 4;  // A drive: one to fill, one that is full, two free.

Result<uint64_t> ChooseSegmentBytes(const NvmeTierOptions& options, size_t drives) {
  const uint64_t per_drive = options.capacity_bytes / drives;
  const uint64_t least = MinSegmentBytes(options.max_block_bytes);
  const uint64_t most = per_drive / kMinSegments / kPageBytes * kPageBytes;
  if (most < least) {
    return Status(
        Code::kInvalid,
        fmt::format("capacity_bytes {} over {} drive(s) gives segments of at most {} bytes, but a "
                    "block of max_block_bytes {} needs {}: raise capacity_bytes to {}, or lower "
                    "max_block_bytes",
                    options.capacity_bytes, drives, most, options.max_block_bytes, least,
                    least * kMinSegments * drives));
  }
  if (options.segment_bytes == 0) {
    const uint64_t wanted = std::clamp(std::bit_ceil(options.capacity_bytes / 256),
                                       uint64_t{64} << 20, uint64_t{1} << 30);
    return std::min(std::max(wanted, std::bit_ceil(least)), most);
  }
  if (options.segment_bytes % kPageBytes != 0) {
    return Status(Code::kInvalid,
                  fmt::format("segment_bytes {} is not a multiple of 4096", options.segment_bytes));
  }
  if (options.segment_bytes < least) {
    return Status(Code::kInvalid,
                  fmt::format("segment_bytes {} is under the {} that a block of max_block_bytes {} "
                              "needs: raise segment_bytes, or lower max_block_bytes",
                              options.segment_bytes, least, options.max_block_bytes));
  }
  if (options.segment_bytes > most) {
    return Status(Code::kInvalid,
                  fmt::format("segment_bytes {} fits fewer than {} times into the {} bytes of each "
                              "drive: lower segment_bytes to {}, or raise capacity_bytes",
                              options.segment_bytes, kMinSegments, per_drive, most));
  }
  return options.segment_bytes;
}

}  // namespace

Result<std::unique_ptr<NvmeTier>> NewNvmeTier(const NvmeTierOptions& options,
                                              std::vector<Disk*> disks, TierListener* listener,
                                              WorkerPool* workers, Executor* executor, Clock* clock,
                                              Random* random) {
  if (disks.empty() || disks.size() > 256) {
    return Status(Code::kInvalid, fmt::format("{} drives; 1 to 256 are possible", disks.size()));
  }
  if (options.max_block_bytes == 0 || options.max_block_bytes > kMaxBlockBytes) {
    return Status(Code::kInvalid, fmt::format("max_block_bytes {} is not within 1 to {}",
                                              options.max_block_bytes, kMaxBlockBytes));
  }
  if (options.max_queued_ops == 0) return Status(Code::kInvalid, "max_queued_ops is zero");
  if (options.probe_interval_nanos <= 0 || options.hang_nanos <= 0) {
    return Status(Code::kInvalid, "probe_interval_nanos and hang_nanos must be positive");
  }
  NvmeShared shared;
  shared.options = options;
  AQ_ASSIGN_OR_RETURN(shared.options.segment_bytes, ChooseSegmentBytes(options, disks.size()));
  shared.index = NvmeIndex(random->Next64());
  shared.index.SetMeter(options.meter);
  shared.workers = workers;
  shared.executor = executor;
  shared.clock = clock;
  shared.random = random;
  return std::unique_ptr<NvmeTier>(
      std::make_unique<NvmeTierImpl>(std::move(shared), std::move(disks), listener));
}

}  // namespace aquifer
