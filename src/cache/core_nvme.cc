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

}  // namespace

// Opening may block, so it happens on a worker.
void Core::OpenDisks() {
  environment_.workers->Run([this, alive = alive_] {
    auto opened = std::make_shared<std::vector<std::unique_ptr<Disk>>>();
    auto failure = std::make_shared<Status>();
    for (const std::string& directory : options_.cache.nvme_directories) {
      Result<std::unique_ptr<Disk>> disk = environment_.open_disk(directory);
      if (!disk.ok()) {
        *failure = disk.status();
        break;
      }
      opened->push_back(*std::move(disk));
    }
    environment_.owner->Post([this, alive, opened, failure] {
      if (*alive) OnDisksOpened(std::move(*opened), *failure);
    });
  });
}

void Core::OnDisksOpened(std::vector<std::unique_ptr<Disk>> disks, Status status) {
  std::vector<Disk*> borrowed;
  borrowed.reserve(disks.size());
  for (const auto& disk : disks) borrowed.push_back(disk.get());
  if (status.ok()) {
    // Each directory has a lock file beside the segments, and the cap is over every byte.
    Result<std::unique_ptr<NvmeTier>> tier =
        NewNvmeTier({.capacity_bytes = options_.cache.nvme_bytes - disks.size() * kPageBytes,
                     .segment_bytes = options_.cache.nvme_segment_bytes,
                     .sync = options_.cache.nvme_sync,
                     .max_block_bytes = LargestNvmeBlock(options_.cache),
                     .meter = environment_.meter},
                    borrowed, this, environment_.workers, environment_.owner, environment_.clock,
                    environment_.random);
    if (tier.ok())
      nvme_ = *std::move(tier);
    else
      status = Status(tier.status().code(),
                      "nvme_bytes, nvme_segment_bytes: " + tier.status().message());
  }
  nvme_status_ = status;
  if (!status.ok()) {
    // The cache serves without it. Locks are let go, so that whoever has a directory can end.
    disks.clear();
    environment_.owner->PostAt(environment_.clock->NowNanos() + options_.reopen_nanos,
                               [this, alive = alive_] {
                                 if (*alive) OpenDisks();
                               });
    // Only options that can never work are worth telling: the rest is tried again.
    if (on_ready_) {
      std::exchange(on_ready_, nullptr)(status.code() == Code::kInvalid ? status : Status());
    }
    return;
  }
  disks_ = std::move(disks);
  for (const auto& disk : disks_) {
    for (const std::span<std::byte> bytes : extents_) disk->Remember(bytes);
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
  nvme_->EnumerateInSlices([this](const BlockMeta& meta) { TakeOver(meta); },
                           [this] { OnTakenOver(); });
}

void Core::OnTakenOver() {
  finding_ = false;
  eraser_->Pump();
  if (std::exchange(find_again_, false)) return OnFound();
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
    // Being written right now: that will end as it should.
    if (same && (entry.io_tiers & TierBit(kTierDram)) != 0) return;
    if (same && residency_->ChargeNvme(known)) return residency_->ArriveOnNvme(known);
  } else if (usable) {
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
  eraser_->Add(meta.id);  // Nothing will ever ask for it: over a ceiling, or not understood.
}

void Core::CloseDisks() {
  nvme_ready_ = false;
  if (loader_ != nullptr) loader_->SetSource(nullptr);
  disks_.clear();
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
