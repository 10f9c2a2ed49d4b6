// The NVMe tier's life: opened, recovered, heard, and closed.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cache/core.h"

namespace aquifer {
namespace {

constexpr size_t kDetachSlice = 256;

// All that write-down, loads (512, or 32 a drive) and deletions (1024) have under way at once:
// nobody is refused for another's sake.
uint32_t QueuedOps(size_t drives) {
  constexpr size_t kWrites = WriteDown::kMaxInFlightBatches * WriteDown::kMaxBatchOps;
  return static_cast<uint32_t>(kWrites + std::max<size_t>(512, 32 * drives) + 1024);
}

// Larger blocks stay in DRAM: a segment must hold one with room to spare.
uint64_t LargestNvmeBlock(const CacheOptions& options) {
  if (options.nvme_segment_bytes == 0) return kMaxBlockBytes;
  return std::min(kMaxBlockBytes, options.nvme_segment_bytes / 2);
}

Result<OpenedDisk> OpenAndList(
    const std::function<Result<std::unique_ptr<Disk>>(const std::string&)>& open_disk,
    const std::string& directory) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Disk> disk, open_disk(directory));
  AQ_ASSIGN_OR_RETURN(std::vector<DiskFile> files, disk->List());
  return OpenedDisk{.disk = std::move(disk), .files = std::move(files)};
}

}  // namespace

Status Core::BuildNvme() {
  const CacheOptions& cache = options_.cache;
  std::vector<Disk*> borrowed;
  for (const std::string& directory : cache.nvme_directories) {
    disks_.push_back(std::make_unique<LateDisk>(directory, environment_.owner));
    borrowed.push_back(disks_.back().get());
  }
  // Each directory has a lock file beside the segments, and the cap is over every byte.
  Result<std::unique_ptr<NvmeTier>> tier =
      NewNvmeTier({.capacity_bytes = cache.nvme_bytes - disks_.size() * kPageBytes,
                   .segment_bytes = cache.nvme_segment_bytes,
                   .sync = cache.nvme_sync,
                   .max_queued_ops = QueuedOps(disks_.size()),
                   .max_block_bytes = LargestNvmeBlock(cache),
                   .detach_nanos = options_.detach_nanos,
                   .meter = environment_.meter,
                   .packer = environment_.packer},
                  borrowed, this, environment_.workers, environment_.owner, environment_.clock,
                  environment_.random);
  if (!tier.ok()) {
    return Status(tier.status().code(),
                  "nvme_bytes, nvme_segment_bytes: " + tier.status().message());
  }
  nvme_ = *std::move(tier);
  return Status();
}

// Opening may hang, so it happens elsewhere and shares what it touches.
void Core::OpenDrive(size_t drive) {
  const std::string& directory = disks_[drive]->directory();
  Task open = [this, alive = alive_, openings = openings_, open_disk = environment_.open_disk,
               directory, drive] {
    auto opened = std::make_shared<Result<OpenedDisk>>(OpenAndList(open_disk, directory));
    const MutexLock lock(&openings->mutex);
    if (openings->owner == nullptr) return;
    openings->owner->Post([this, alive, drive, opened] {
      if (*alive) OnOpened(drive, std::move(*opened));
    });
  };
  if (environment_.run_opening) return environment_.run_opening(directory, std::move(open));
  environment_.workers->Run(std::move(open));
}

void Core::OnOpened(size_t drive, Result<OpenedDisk> opened) {
  LateDisk& disk = *disks_[drive];
  if (opened.ok()) {
    disk.SetOpen(*std::move(opened));
    for (const std::span<std::byte> bytes : extents_) disk.Remember(bytes);
  } else {
    disk.SetFailed(opened.status());
    environment_.owner->PostAt(environment_.clock->NowNanos() + options_.reopen_nanos,
                               [this, drive, alive = alive_] {
                                 if (*alive) OpenDrive(drive);
                               });
  }
  unanswered_.erase(drive);
  if (unanswered_.empty()) RecoverNvme();
}

void Core::RecoverNvme() {
  if (std::exchange(recovering_, true)) return;
  for (const size_t drive : unanswered_) {
    disks_[drive]->SetFailed(Status(Code::kUnavailable, disks_[drive]->directory() +
                                                            ": opening it hangs; look at the drive "
                                                            "and at what is mounted there"));
  }
  nvme_->Recover([this](const Status& recovered) { OnRecovered(recovered); });
}

// A drive that could not be read is tried again by the tier, which then says what it found.
void Core::OnRecovered(const Status& status) {
  nvme_status_ = status;
  eraser_->SetTarget(nvme_.get());
  OnFound();
}

void Core::OnFound() {
  if (std::exchange(finding_, true)) {
    find_again_ = true;
    return;
  }
  finding_all_ = nvme_->AllRead();
  nvme_->EnumerateInSlices([this](const BlockMeta& meta) { TakeOver(meta); },
                           [this] { OnTakenOver(); });
}

void Core::OnTakenOver() {
  finding_ = false;
  eraser_->Pump();
  if (std::exchange(find_again_, false)) return OnFound();
  found_all_ = finding_all_ && nvme_->AllRead();
  if (found_all_) forgotten_tenants_.clear();
  if (std::exchange(nvme_ready_, true)) return;
  loader_->SetSource(nvme_.get());
  write_down_->SetTarget(nvme_.get());
  // What a crash kept from the durable tiers is written now.
  if (durable_ != nullptr) durable_->SweepSoon();
  if (on_ready_) std::exchange(on_ready_, nullptr)(Status());
}

// Nobody can read the blocks of a detached drive, and engines are to store them again. The drive
// brings them back as one does that opens late.
void Core::OnDetached() {
  found_all_ = false;
  detach_cursor_ = 0;
  if (!std::exchange(detaching_, true)) DetachSome();
}

void Core::DetachSome() {
  const Index& index = residency_->index();
  const size_t end = std::min<size_t>(detach_cursor_ + kDetachSlice, index.ref_limit());
  for (; detach_cursor_ < end; ++detach_cursor_) {
    const auto ref = static_cast<BlockRef>(detach_cursor_);
    if (!index.Exists(ref) || index.at(ref).state != BlockState::kResident) continue;
    if (!index.at(ref).in_tier(kTierNvme) || !nvme_->Detached(residency_->IdOf(ref))) continue;
    residency_->LeaveNvme(ref, Leave::kLostByTier);
    if (residency_->InDramAndNotOnNvme(ref)) write_down_->Add(ref);
  }
  write_down_->PumpSoon();
  detaching_ = detach_cursor_ < index.ref_limit();
  if (!detaching_) return;
  environment_.owner->Post([this, alive = alive_] {
    if (*alive) DetachSome();
  });
}

// A block that NVMe held over a restart.
void Core::TakeOver(const BlockMeta& meta) {
  if (eraser_->Owes(meta.id)) return;  // Deleted before it came to light.
  bool wanted = false;
  const Result<uint16_t> tenant = catalog_.Tenant(meta.id.tenant);
  if (tenant.ok()) {
    const Result<uint16_t> layout =
        catalog_.Learn(*tenant, meta.layout_fingerprint, meta.id.group, meta.raw_bytes);
    if (layout.ok()) {
      wanted = TakeOverAs(*tenant, *layout, meta);
      catalog_.Release(*tenant, *layout);  // The block holds it now.
    }
  }
  // Over a ceiling, not understood, or deleted before it came to light: nothing will ever ask for
  // this record. (One that the index has no room for is another matter.)
  if (!wanted) eraser_->Add(meta.id);
}

bool Core::TakeOverAs(uint16_t tenant, uint16_t layout, const BlockMeta& meta) {
  const BlockRef known = residency_->Find(meta.id);
  if (known != kNoBlock) {
    const BlockEntry& entry = residency_->at(known);
    // What was stored again may differ from its record, and so may what was stored before a record
    // came to light, unless that is of before all of the tenant's was deleted; both are right.
    const bool may_differ = residency_->MayDiffer(known) ||
                            (!entry.in_tier(kTierNvme) && !forgotten_tenants_.contains(tenant));
    const bool agrees =
        entry.state == BlockState::kResident && (entry.checksum == meta.checksum || may_differ);
    const bool writing = write_down_->Writes(meta.id);
    const bool nowhere_else = entry.residency == TierBit(kTierNvme);
    if (!agrees && !writing && (residency_->found(known) || nowhere_else)) {
      // Both are of earlier lives, and what the tier has of it now was stored last. Or the tier had
      // the same bytes from an earlier life when they were stored again, and these are later.
      residency_->Drop(known, Leave::kLostByTier);
      return AddFound(tenant, layout, meta);
    }
    return TakeOverKnown(known, agrees, meta);
  }
  // Dropped while it is being written: what is there now, that record or one which it replaces, is
  // deleted when that has ended.
  if (forgotten_tenants_.contains(tenant) || write_down_->Writes(meta.id)) return false;
  return AddFound(tenant, layout, meta);
}

bool Core::TakeOverKnown(BlockRef known, bool agrees, const BlockMeta& meta) {
  const BlockEntry& entry = residency_->at(known);
  const auto expiry = static_cast<uint32_t>(meta.expiry_unix_seconds);
  if (entry.state == BlockState::kFilling && !forgotten_tenants_.contains(entry.tenant)) {
    // It may be given up, and then this is what there is of it.
    found_busy_.insert(residency_->NameOf(known));
    return true;
  }
  if (agrees && entry.in_tier(kTierNvme)) {
    // A later record than the one that was found first, with another time to live.
    const bool renewed = residency_->stale(known) || entry.io_tiers != 0;
    if (residency_->found(known) && !renewed) residency_->SetExpiry(known, expiry);
    return true;
  }
  // Being written right now: that will end as it should, and replaces this one.
  if (write_down_->Writes(meta.id)) {
    write_down_->NoteOlderRecord(meta.id, forgotten_tenants_.contains(entry.tenant));
    return true;
  }
  if (agrees && residency_->ChargeNvme(known).ok()) {
    residency_->ArriveOnNvme(known);
    if (entry.checksum != meta.checksum) residency_->SetMayDiffer(known);
    // It was stored anew, and with that got another time than an earlier life had given it.
    if (entry.expiry_unix_seconds != expiry) write_down_->Renew(known);
    return true;
  }
  if (entry.in_tier(kTierNvme)) {
    // What was stored in this life is gone from the tier. What DRAM has is written once more.
    const bool in_dram = entry.in_tier(kTierDram);
    residency_->LeaveNvme(known, Leave::kLostByTier);
    if (in_dram) write_down_->Add(known);
  }
  return false;
}

void Core::TakeOverBusy(const BlockName& name) {
  if (!found_busy_.contains(name)) return;
  environment_.owner->Post([this, name, alive = alive_] {
    if (!*alive || found_busy_.erase(name) == 0) return;
    const auto meta = nvme_->MetaOf(IdOf(name));
    if (meta && sweeping_.contains(name.tenant)) {  // The sweep may be past it.
      EraseFound(name);
    } else if (meta) {
      TakeOver(*meta);
    }
    eraser_->Pump();
  });
}

BlockId Core::IdOf(const BlockName& name) const {
  return {.tenant = catalog_.tenant(name.tenant).id,
          .key = name.key,
          .group = name.group,
          .part = name.part};
}

void Core::EraseFound(const BlockName& name) {
  const BlockId id = IdOf(name);
  write_down_->Writes(id) ? write_down_->NoteOlderRecord(id, true) : eraser_->Add(id);
}

bool Core::AddFound(uint16_t tenant, uint16_t layout, const BlockMeta& meta) {
  const Result<BlockRef> added = residency_->AddOnNvme(
      {.name = {.tenant = tenant, .group = meta.id.group, .part = meta.id.part, .key = meta.id.key},
       .parent = meta.parent,
       .position = meta.position,
       .layout = layout,
       .state = BlockState::kResident,
       .expiry_unix_seconds = static_cast<uint32_t>(meta.expiry_unix_seconds),
       .checksum = meta.checksum,
       .engine_hash = meta.engine_hash,
       .now_nanos = environment_.clock->NowNanos()});
  if (added.ok()) return true;
  // Flushed is flushed: the record stays, for a start whose index has room for it.
  const Code why = added.status().code();
  if (why != Code::kNoSpace && why != Code::kBusy) return false;
  unindexed_.insert(tenant);
  return true;
}

void Core::CloseDisks() {
  nvme_ready_ = false;
  found_busy_.clear();
  if (loader_ != nullptr) loader_->SetSource(nullptr);
  {
    const MutexLock lock(&openings_->mutex);
    openings_->owner = nullptr;
  }
  for (const auto& disk : disks_) disk->Close();
  if (durable_ != nullptr) durable_->Close();
}

void Core::OnLost(std::span<const BlockId> ids, Code why) {
  for (const BlockId& id : ids) {
    if (const auto dropping = dropping_.find(id); dropping != dropping_.end()) {
      dropping_bytes_[dropping->second.tenant] -= dropping->second.bytes;
      dropping_.erase(dropping);
    }
    const BlockRef ref = residency_->Find(id);
    if (ref == kNoBlock) continue;
    residency_->LeaveNvme(ref, why == Code::kCorrupt ? Leave::kCorrupt : Leave::kLostByTier);
    if (residency_->InDramAndNotOnNvme(ref)) write_down_->OnLost(ref);
  }
  Housekeep();
}

// Pins come first, then what a tenant's floor protects, then what is worth most.
class Core::SegmentChoice final : public ReclaimChoice {
 public:
  explicit SegmentChoice(Core* core) : core_(core) {}

  void Add(std::span<const BlockId> ids) override {
    // Whose they are is not known yet.
    if (core_->finding_ || !core_->nvme_ready_) unknown_ = true;
    const Residency& residency = *core_->residency_;
    for (const BlockId& id : ids) {
      const uint32_t number = added_++;
      const BlockRef ref = residency.Find(id);
      if (ref == kNoBlock) continue;
      const uint16_t tenant = residency.at(ref).tenant;
      // An engine stores it anew just now: nothing is more likely to be asked for.
      if (core_->found_busy_.contains(residency.NameOf(ref))) {
        candidates_.push_back(
            {.tenant = tenant, .value = std::numeric_limits<double>::max(), .number = number});
        continue;
      }
      if (!residency.at(ref).in_tier(kTierNvme)) continue;
      const bool pinned = residency.at(ref).pins != 0;
      if (pinned) pinned_bytes_ += residency.SlotBytesOf(ref);
      bytes_[tenant] += residency.SlotBytesOf(ref);
      candidates_.push_back({.pinned = pinned,
                             .tenant = tenant,
                             .value = residency.NvmeValue(ref),
                             .number = number});
    }
  }

  bool MayReclaim(uint64_t keep_bytes) override {
    uint64_t must_keep = pinned_bytes_;
    for (const auto& [tenant, bytes] : bytes_) {
      const uint64_t over_floor = core_->NvmeToSpare(tenant);
      if (over_floor >= bytes) continue;
      must_keep += bytes - over_floor;
      at_floor_.insert(tenant);
    }
    return !unknown_ && must_keep <= keep_bytes;
  }

  std::vector<uint32_t> Order() override {
    for (Candidate& candidate : candidates_) {
      candidate.at_floor = at_floor_.contains(candidate.tenant);
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      if (a.pinned != b.pinned) return a.pinned;
      if (a.at_floor != b.at_floor) return a.at_floor;
      if (a.value != b.value) return a.value > b.value;
      return a.number < b.number;
    });
    std::vector<uint32_t> order;
    order.reserve(candidates_.size());
    for (const Candidate& candidate : candidates_) order.push_back(candidate.number);
    return order;
  }

 private:
  struct Candidate {
    bool pinned = false;
    bool at_floor = false;
    uint16_t tenant = 0;
    double value = 0;
    uint32_t number = 0;
  };

  Core* const core_;  // Not touched by Order().
  std::vector<Candidate> candidates_;
  std::map<uint16_t, uint64_t> bytes_;  // By tenant.
  std::set<uint16_t> at_floor_;
  uint64_t pinned_bytes_ = 0;
  uint32_t added_ = 0;
  bool unknown_ = false;
};

std::unique_ptr<ReclaimChoice> Core::OnReclaim() { return std::make_unique<SegmentChoice>(this); }

// Above the tenant's floor, and not on its way out.
uint64_t Core::NvmeToSpare(uint16_t tenant) const {
  const auto leaving = dropping_bytes_.find(tenant);
  const uint64_t bytes = leaving == dropping_bytes_.end() ? 0 : leaving->second;
  return residency_->NvmeOverFloor(tenant) - std::min(bytes, residency_->NvmeOverFloor(tenant));
}

// Asked again for each block: other drives reclaim at the same time, and a segment takes a while.
bool Core::MayDrop(const BlockId& id) {
  const BlockRef ref = residency_->Find(id);
  if (ref == kNoBlock || !residency_->at(ref).in_tier(kTierNvme)) return true;
  const BlockEntry& entry = residency_->at(ref);
  if (entry.pins != 0 && !entry.in_tier(kTierDram)) return false;
  const uint64_t bytes = residency_->SlotBytesOf(ref);
  if (NvmeToSpare(entry.tenant) < bytes) return false;
  const Dropping dropping{.tenant = entry.tenant, .bytes = bytes};
  if (dropping_.try_emplace(id, dropping).second) dropping_bytes_[entry.tenant] += bytes;
  return true;
}

void Core::OnHealth(bool in_service, const Status& why) {
  nvme_status_ = why;
  if (in_service) {
    write_down_->Pump();
  } else {
    write_down_->ReleaseHolds();
  }
  if (loader_->pending() > 0) loader_->Pump();
}

void Core::OnLoaded(size_t, BlockRef ref, const Status& status) {
  write_down_->OnLoaded(ref, status);
  if (!status.ok()) return;
  eraser_->Pump();
  write_down_->Pump();
}

}  // namespace aquifer
