// The NVMe tier's life: opened, recovered, heard, and closed.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cache/core.h"

namespace aquifer {
namespace {

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
                   .max_block_bytes = LargestNvmeBlock(cache),
                   .meter = environment_.meter},
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
  found_all_ = finding_all_;
  if (found_all_) forgotten_tenants_.clear();
  if (std::exchange(nvme_ready_, true)) return;
  loader_->SetSource(nvme_.get());
  write_down_->SetTarget(nvme_.get());
  if (on_ready_) std::exchange(on_ready_, nullptr)(Status());
}

// A block that NVMe held over a restart.
void Core::TakeOver(const BlockMeta& meta) {
  const Result<uint16_t> tenant = catalog_.Tenant(meta.id.tenant);
  const Result<uint16_t> layout =
      catalog_.Learn(meta.layout_fingerprint, meta.id.group, meta.raw_bytes);
  const bool usable = tenant.ok() && layout.ok() && meta.codec == Codec::kNone;
  if (eraser_->Owes(meta.id)) return;  // Deleted before it came to light.
  const BlockRef known = usable ? residency_->Find(meta.id) : BlockRef{kNoBlock};
  if (known != kNoBlock) {
    const BlockEntry& entry = residency_->at(known);
    const bool same = entry.state == BlockState::kResident && entry.checksum == meta.checksum;
    if (same && entry.in_tier(kTierNvme)) return;
    // Being written right now: that will end as it should, and replaces this one.
    if ((entry.io_tiers & TierBit(kTierDram)) != 0) return write_down_->NoteOlderRecord(meta.id);
    if (same && residency_->ChargeNvme(known)) return residency_->ArriveOnNvme(known);
    if (entry.in_tier(kTierNvme)) {
      // The calendar was set back, and an older record has won. What DRAM has is written once more.
      const bool in_dram = entry.in_tier(kTierDram);
      residency_->LeaveNvme(known, Leave::kLostByTier);
      if (in_dram) write_down_->Add(known);
    }
  } else if (usable && !forgotten_tenants_.contains(*tenant)) {
    const Result<BlockRef> added = residency_->AddOnNvme(
        {.name =
             {.tenant = *tenant, .group = meta.id.group, .part = meta.id.part, .key = meta.id.key},
         .parent = meta.parent,
         .position = meta.position,
         .layout = *layout,
         .state = BlockState::kResident,
         .expiry_unix_seconds = static_cast<uint32_t>(meta.expiry_unix_seconds),
         .checksum = meta.checksum,
         .engine_hash = meta.engine_hash,
         .now_nanos = environment_.clock->NowNanos()});
    if (added.ok()) return;
  }
  // Over a ceiling, not understood, deleted before it came to light, or being stored anew: nothing
  // will ever ask for this record.
  eraser_->Add(meta.id);
}

void Core::CloseDisks() {
  nvme_ready_ = false;
  if (loader_ != nullptr) loader_->SetSource(nullptr);
  {
    const MutexLock lock(&openings_->mutex);
    openings_->owner = nullptr;
  }
  for (const auto& disk : disks_) disk->Close();
}

void Core::OnLost(std::span<const BlockId> ids, Code why) {
  for (const BlockId& id : ids) {
    const BlockRef ref = residency_->Find(id);
    if (ref == kNoBlock) continue;
    residency_->LeaveNvme(ref, why == Code::kCorrupt ? Leave::kCorrupt : Leave::kLostByTier);
  }
  Housekeep();
}

std::map<uint16_t, uint64_t> Core::BytesByTenant(std::span<const BlockId> ids) const {
  std::map<uint16_t, uint64_t> bytes;
  for (const BlockId& id : ids) {
    const BlockRef ref = residency_->Find(id);
    if (ref != kNoBlock) bytes[residency_->at(ref).tenant] += residency_->SlotBytesOf(ref);
  }
  return bytes;
}

bool Core::MayReclaim(std::span<const BlockId> ids, uint64_t keep_bytes) {
  if (finding_ || !nvme_ready_) return false;  // Whose they are is not known yet.
  uint64_t must_keep = 0;
  for (const auto& [tenant, bytes] : BytesByTenant(ids)) {
    must_keep += bytes - std::min(bytes, residency_->NvmeOverFloor(tenant));
  }
  for (const BlockId& id : ids) {
    const BlockRef ref = residency_->Find(id);
    if (ref != kNoBlock && residency_->at(ref).pins != 0) must_keep += residency_->SlotBytesOf(ref);
  }
  return must_keep <= keep_bytes;
}

bool Core::MayDrop(const BlockId& id) {
  const BlockRef ref = residency_->Find(id);
  return ref == kNoBlock || residency_->at(ref).pins == 0 || residency_->at(ref).in_tier(kTierDram);
}

void Core::OnReclaim(std::span<const BlockId> ids, std::vector<size_t>* order) {
  struct Candidate {
    bool pinned = false;
    bool floor = false;
    double value = 0;
    size_t index = 0;
  };
  const std::map<uint16_t, uint64_t> bytes = BytesByTenant(ids);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < ids.size(); ++i) {
    const BlockRef ref = residency_->Find(ids[i]);
    if (ref == kNoBlock || !residency_->at(ref).in_tier(kTierNvme)) continue;
    const uint16_t tenant = residency_->at(ref).tenant;
    candidates.push_back({.pinned = residency_->at(ref).pins != 0,
                          .floor = residency_->NvmeOverFloor(tenant) < bytes.at(tenant),
                          .value = residency_->NvmeValue(ref),
                          .index = i});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.pinned != b.pinned) return a.pinned;
    if (a.floor != b.floor) return a.floor;
    if (a.value != b.value) return a.value > b.value;
    return a.index < b.index;
  });
  order->clear();
  for (const Candidate& candidate : candidates) order->push_back(candidate.index);
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

}  // namespace aquifer
