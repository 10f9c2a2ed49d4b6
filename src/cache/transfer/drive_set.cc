#include "cache/transfer/drive_set.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"

namespace aquifer {
namespace {

constexpr int64_t kLoadToWriteNanos = 10'000'000'000;

Result<OpenedDisk> OpenAndList(
    const std::function<Result<std::unique_ptr<Disk>>(const std::string&)>& open_disk,
    const std::string& directory) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Disk> disk, open_disk(directory));
  AQ_ASSIGN_OR_RETURN(std::vector<DiskFile> files, disk->List());
  return OpenedDisk{.disk = std::move(disk), .files = std::move(files)};
}

// An operator should know also of what is wrong with a drive that is in service.
std::string WhyOf(const NvmeDriveState& state) {
  if (!state.why.ok()) return state.why.message();
  if (state.skipped.empty()) return "";
  std::string why = "at the start some of it could not be read: " + state.skipped.front();
  if (state.skipped.size() > 1) {
    why += "; and " + std::to_string(state.skipped.size() - 1) + " more of that kind";
  }
  return why;
}

}  // namespace

// --- Life

Result<std::unique_ptr<DriveSet>> DriveSet::New(DriveSetParts parts) {
  std::unique_ptr<DriveSet> drives(new DriveSet(std::move(parts)));
  AQ_RETURN_IF_ERROR(drives->Build());
  return drives;
}

DriveSet::DriveSet(DriveSetParts parts)
    : parts_(std::move(parts)),
      records_({.catalog = parts_.catalog,
                .residency = parts_.residency,
                .eraser = parts_.eraser,
                .write_down = parts_.write_down,
                .executor = parts_.owner,
                .clock = parts_.clock}),
      advice_(parts_.residency),
      tasks_(parts_.owner) {}

DriveSet::~DriveSet() {
  tasks_.Close();
  Close();
}

Status DriveSet::Build() {
  if (!any()) return Status();
  std::vector<Disk*> borrowed;
  for (const std::string& directory : parts_.directories) {
    disks_.push_back(std::make_unique<LateDisk>(directory, parts_.owner));
    borrowed.push_back(disks_.back().get());
  }
  // Each directory has a lock file beside the segments, and the cap is over every byte.
  NvmeTierOptions options = parts_.tier;
  options.capacity_bytes -= disks_.size() * kPageBytes;
  Result<std::unique_ptr<NvmeTier>> tier = NewNvmeTier(options, borrowed, this, parts_.workers,
                                                       parts_.owner, parts_.clock, parts_.random);
  if (!tier.ok()) {
    return Status(tier.status().code(),
                  "nvme_bytes, nvme_segment_bytes: " + tier.status().message());
  }
  tier_ = *std::move(tier);
  records_.SetTier(tier_.get());
  records_.on_found = [this] {
    // A durable tier may not have all of what was found.
    if (std::exchange(ready_, true)) return parts_.on_more_found();
    parts_.loader->SetSource(tier_.get());
    parts_.write_down->SetTarget(tier_.get());
    on_ready_();
  };
  advice_.tenants_unknown = [this] { return records_.finding() || !ready_; };
  advice_.being_stored = [this](const BlockName& name) { return records_.waits(name); };
  return Status();
}

void DriveSet::Start(std::function<void()> on_ready) {
  on_ready_ = std::move(on_ready);
  {
    const MutexLock lock(&openings_->mutex);
    openings_->owner = parts_.owner;
  }
  for (size_t drive = 0; drive < disks_.size(); ++drive) {
    unanswered_.insert(drive);
    Open(drive);
  }
  tasks_.PostAt(parts_.clock->NowNanos() + parts_.open_wait_nanos, [this] { Recover(); });
}

// Opening may hang, so it happens elsewhere and shares what it touches.
void DriveSet::Open(size_t drive) {
  const std::string& directory = disks_[drive]->directory();
  auto opened = std::make_shared<Result<OpenedDisk>>(Status(Code::kUnavailable));
  Task open = [openings = openings_, open_disk = parts_.open_disk, directory, opened,
               answer =
                   tasks_.Guard([this, drive, opened] { OnOpened(drive, std::move(*opened)); })] {
    *opened = OpenAndList(open_disk, directory);
    const MutexLock lock(&openings->mutex);
    if (openings->owner != nullptr) openings->owner->Post(answer);
  };
  if (parts_.run_opening) return parts_.run_opening(directory, std::move(open));
  parts_.workers->Run(std::move(open));
}

void DriveSet::OnOpened(size_t drive, Result<OpenedDisk> opened) {
  LateDisk& disk = *disks_[drive];
  if (opened.ok()) {
    disk.SetOpen(*std::move(opened));
    for (const std::span<std::byte> bytes : memory_) disk.Remember(bytes);
  } else {
    disk.SetFailed(opened.status());
    tasks_.PostAt(parts_.clock->NowNanos() + parts_.reopen_nanos, [this, drive] { Open(drive); });
  }
  unanswered_.erase(drive);
  if (unanswered_.empty()) Recover();
}

// A drive that could not be read is tried again by the tier, which then says what it found.
void DriveSet::Recover() {
  if (std::exchange(recovering_, true)) return;
  for (const size_t drive : unanswered_) {
    disks_[drive]->SetFailed(Status(Code::kUnavailable, disks_[drive]->directory() +
                                                            ": opening it hangs; look at the drive "
                                                            "and at what is mounted there"));
  }
  tier_->Recover([this](const Status& recovered) {
    status_ = recovered;
    parts_.eraser->SetTarget(tier_.get());
    records_.Find();
  });
}

void DriveSet::Close() {
  ready_ = false;
  records_.Close();
  parts_.loader->SetSource(nullptr);
  {
    const MutexLock lock(&openings_->mutex);
    openings_->owner = nullptr;
  }
  for (const auto& disk : disks_) disk->Close();
}

void DriveSet::Remember(std::span<std::byte> memory) {
  memory_.push_back(memory);
  for (const auto& disk : disks_) disk->Remember(memory);
}

void DriveSet::Forget(std::span<std::byte> memory) {
  std::erase_if(memory_, [memory](auto known) { return known.data() == memory.data(); });
  for (const auto& disk : disks_) disk->Forget(memory);
}

// --- Asking

bool DriveSet::Serves(BlockRef ref) const {
  const Residency& residency = *parts_.residency;
  if (!residency.at(ref).in_tier(kTierNvme) || !usable()) return false;
  return tier_->AllInService() || tier_->Probe(residency.IdOf(ref)).code() != Code::kUnavailable;
}

std::vector<DriveStats> DriveSet::Stats() const {
  std::vector<DriveStats> drives;
  if (tier_ == nullptr) return drives;
  for (const NvmeDriveState& state : tier_->Drives()) {
    drives.push_back({.directory = parts_.directories[drives.size()],
                      .in_service = state.in_service,
                      .writable = state.writable,
                      .why = WhyOf(state)});
  }
  return drives;
}

DiskStats DriveSet::disk_stats() const {
  DiskStats all;
  for (const auto& disk : disks_) {
    all.requests += disk->stats().requests;
    all.submit_calls += disk->stats().submit_calls;
  }
  return all;
}

// --- What the tier says

void DriveSet::OnLost(std::span<const BlockId> ids, Code why) {
  advice_.OnLost(ids);
  for (const BlockId& id : ids) {
    const BlockRef ref = parts_.residency->Find(id);
    if (ref == kNoBlock) continue;
    parts_.residency->LeaveNvme(ref, why == Code::kCorrupt ? Leave::kCorrupt : Leave::kLostByTier);
    if (parts_.residency->InDramAndNotOnNvme(ref)) parts_.write_down->OnLost(ref);
  }
  parts_.on_dropped();
}

void DriveSet::OnHealth(bool in_service, const Status& why) {
  status_ = why;
  if (in_service) {
    parts_.write_down->Pump();
  } else {
    parts_.write_down->ReleaseHolds();
  }
  if (parts_.loader->pending() > 0) parts_.loader->Pump();
}

// --- Loads for writing

// Read by the next tick: nobody waits for it.
void DriveSet::LoadToWrite(BlockRef ref) {
  parts_.loader->Load(ref, DeadlineAfter(parts_.clock->NowNanos(), kLoadToWriteNanos),
                      {.waiter = this});
}

void DriveSet::OnLoaded(size_t, BlockRef ref, const Status& status) {
  parts_.write_down->OnLoaded(ref, status);
  if (!status.ok()) return;
  parts_.eraser->Pump();
  parts_.write_down->Pump();
}

}  // namespace aquifer
