#include "sim/world/host.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kFullCheckSteps = 1000;
constexpr uint64_t kFloorSteps = 8;
// After a drive is well again: it is probed every second, and told what it missed.
constexpr int64_t kRecoveryNanos = 15 * kSecond;

// Of those whose blocks last, and leave a tier for others' sake only.
std::vector<TenantFloors> FloorsOf(const CacheOptions& cache) {
  std::vector<TenantFloors> floors;
  for (const TenantOptions& tenant : cache.tenants) {
    TenantFloors& own = floors.emplace_back();
    if (tenant.ttl_seconds > 0) continue;
    own.dram_bytes = tenant.dram_floor_bytes;
    if (tenant.nvme_ceiling_bytes >= cache.nvme_bytes) own.nvme_bytes = tenant.nvme_floor_bytes;
  }
  return floors;
}

}  // namespace

Host::Host(SimulatedNode* node, const HostWorld& world)
    : world_(world),
      node_(node),
      available_bytes_(node->extents()->AvailableBytes()),
      inspector_(node, world.truth),
      floor_watch_(FloorsOf(node->options())),
      auditor_(node, world.truth, world.conversations, world.trace, world.run_until),
      deletions_(node, world.truth) {}

void Host::CheckStep(bool settling) {
  inspector_.CheckStep();
  const uint64_t steps = world_.scheduler->steps();
  if (steps % kFullCheckSteps == 0 && node_->ready()) inspector_.CheckAll();
  if (steps % kFloorSteps == 0 && !settling) WatchFloors();
}

void Host::WatchFloors() {
  const std::vector<TenantOptions>& tenants = node_->options().tenants;
  for (uint32_t tenant = 0; tenant < tenants.size(); ++tenant) {
    if (!floor_watch_.Guards(tenant)) continue;
    int64_t quiet_since = 0;
    int64_t keeps_until = INT64_MAX;
    for (const auto& engine : engines_) {
      if (engine->tenant() != tenant) continue;
      quiet_since = std::max(quiet_since, engine->quiet_since());
      keeps_until = std::min(keeps_until, engine->keeps_until());
    }
    const bool keeps =
        Calm() && !world_.truth->damaged() && node_->clock()->UnixSeconds() < keeps_until;
    if (!keeps || quiet_since == INT64_MAX) {
      floor_watch_.Forget(tenant);
      continue;
    }
    const TenantSnapshot has = node_->core()->Tenants(tenant, 1)[0];
    std::string wrong = floor_watch_.See(
        tenant, quiet_since, world_.scheduler->now(),
        {.dram_bytes = has.dram_bytes, .nvme_bytes = has.nvme_bytes, .orphaned = has.orphaned});
    if (!wrong.empty()) world_.truth->Violate(std::move(wrong));
  }
}

// ---- Life and death ----

void Host::Start() {
  node_->Start([this] {
    world_.trace->Add(TraceKind::kNodeServes, node_->number());
    serves_since_nanos_ = world_.scheduler->now();
    for (Engine* const engine : engines_) engine->Begin();
  });
  deletions_.OnStart();
  world_.trace->Add(TraceKind::kNodeStarts, node_->life(), node_->number());
}

void Host::Kill(Death death, int64_t down_nanos, bool replaced) {
  const bool lost_writes = death == Death::kPower && !node_->options().nvme_sync;
  const uint64_t pending = node_->Die(death);
  world_.trace->Add(TraceKind::kNodeDies, node_->life(), static_cast<uint64_t>(death), pending,
                    node_->number());
  for (Engine* const engine : engines_) engine->NodeDied();
  deletions_.OnDeath();
  world_.truth->Died(lost_writes && !replaced, node_->number());
  if (replaced) {
    node_->ReplaceDrives();
    world_.truth->NodeReplaced(node_->number());
  }
  // The faults of its drives went with it, and it serves when it knows what they hold. But a file
  // system that is full is so for its next life, too.
  Scheduler* const scheduler = world_.scheduler;
  const bool full = scheduler->now() < full_until_nanos_;
  reads_failed_at_start_ = false;
  read_late_ = node_->opening_fails();
  if (!read_late_) calm_from_nanos_ = full ? full_until_nanos_ + kRecoveryNanos : 0;
  scheduler->At(scheduler->now() + down_nanos, 0, [this, life = node_->life()] {
    if (!node_->alive() && node_->life() == life) Start();
  });
}

void Host::OnPromise() {
  if (!at_next_promise_) return;
  // Not from inside the node.
  world_.scheduler->At(
      world_.scheduler->now(), 0,
      [this, life = node_->life(), act = std::exchange(at_next_promise_, nullptr)] {
        if (node_->alive() && node_->life() == life && !faults_are_over_) act();
      });
}

bool Host::Calm() const {
  return node_->ready() && !reads_failed_at_start_ && world_.scheduler->now() >= calm_from_nanos_;
}

bool Host::ReachesStores(uint32_t tenant) {
  if (!node_->ready() || world_.scheduler->now() < serves_since_nanos_ + 5 * kSecond) return false;
  const std::string& name = node_->options().tenants[tenant].name;
  return node_->keys() == nullptr || node_->keys()->Has(TenantIdOf(name));
}

void Host::Disturb(int64_t nanos) {
  world_.truth->Disturbed(node_->number());
  // A start does not wait long for a drive: this one may be read when the node serves.
  if (!node_->ready()) read_late_ = true;
  calm_from_nanos_ = std::max(calm_from_nanos_, world_.scheduler->now() + nanos + kRecoveryNanos);
}

// ---- Faults ----

void Host::Seen(const Fault& fault, uint64_t detail) {
  ++(*world_.faults_seen)[static_cast<size_t>(fault.kind)];
  world_.trace->Add(TraceKind::kFault, node_->number(), static_cast<uint64_t>(fault.kind), detail);
}

void Host::EndLater(FaultKind kind, int64_t nanos, Task end) {
  world_.scheduler->At(
      world_.scheduler->now() + nanos, 0, [this, kind, life = node_->life(), end = std::move(end)] {
        if (node_->life() != life || !node_->alive()) return;
        world_.trace->Add(TraceKind::kFaultEnds, node_->number(), static_cast<uint64_t>(kind));
        end();
      });
}

void Host::Strike(const Fault& fault, int64_t down_nanos, SeededRandom* random) {
  Scheduler* const scheduler = world_.scheduler;
  switch (fault.kind) {
    case FaultKind::kCrash:
    case FaultKind::kPowerLoss:
    case FaultKind::kHostReplaced: {
      Seen(fault, 0);
      const Death death = fault.kind == FaultKind::kCrash ? Death::kProcess : Death::kPower;
      const bool replaced = fault.kind == FaultKind::kHostReplaced;
      const bool now = random->Below(2) == 0;
      if (now) {
        Kill(death, down_nanos, replaced);
      } else {  // Just when something was promised: what does it rest on?
        at_next_promise_ = [this, death, down_nanos, replaced] {
          Kill(death, down_nanos, replaced);
        };
      }
      return;
    }
    case FaultKind::kUnopenable: {
      Seen(fault, 0);
      Kill(Death::kProcess, 0);
      node_->FailOpening(true);
      read_late_ = true;
      const auto nanos = static_cast<int64_t>(random->Below(20 * kSecond));
      Disturb(nanos);
      scheduler->At(scheduler->now() + nanos, 0, [this] { node_->FailOpening(false); });
      return;
    }
    case FaultKind::kNoMemory:
      Seen(fault, 0);
      node_->extents()->FailNext(1 + random->Below(8), Code::kNoSpace);
      return;
    case FaultKind::kMemoryShort: {
      const uint64_t bytes = random->Below(node_->options().dram_bytes + (2 << 20));
      Seen(fault, bytes);
      node_->extents()->SetAvailableBytes(bytes);
      scheduler->At(scheduler->now() + static_cast<int64_t>(random->Below(10 * kSecond)), 0,
                    [this] { node_->extents()->SetAvailableBytes(available_bytes_); });
      return;
    }
    default:
      if (node_->drives() > 0) StrikeDrive(fault, random->Below(node_->drives()), random);
  }
}

void Host::StrikeDrive(const Fault& fault, size_t drive, SeededRandom* random) {
  MemoryDisk* const disk = node_->disk(drive);
  if (disk == nullptr) return;
  const auto seen = [this, &fault](uint64_t detail) { Seen(fault, detail); };
  const auto nanos = static_cast<int64_t>(random->Below(2) == 0 ? random->Below(100 * kMilli)
                                                                : random->Below(300 * kSecond));
  // A drive that the node has closed since is not the same any more.
  const auto when_open = [this, drive](const std::function<void(MemoryDisk*)>& act) {
    return [this, drive, act] {
      if (MemoryDisk* const same = node_->disk(drive); same != nullptr) act(same);
    };
  };
  switch (fault.kind) {
    case FaultKind::kFailedWrites:
    case FaultKind::kFailedReads:
    case FaultKind::kFailedSyncs:
    case FaultKind::kFailedCreates: {
      const IoKind kind = fault.kind == FaultKind::kFailedWrites  ? IoKind::kWrite
                          : fault.kind == FaultKind::kFailedReads ? IoKind::kRead
                          : fault.kind == FaultKind::kFailedSyncs ? IoKind::kSync
                                                                  : IoKind::kCreate;
      const uint64_t count = 1 + random->Below(12);
      const Code code =
          random->Below(4) == 0 && kind != IoKind::kRead ? Code::kNoSpace : Code::kUnavailable;
      seen(count);
      disk->FailNext(kind, count, code);
      if (kind == IoKind::kRead && (!node_->ready() || read_late_)) reads_failed_at_start_ = true;
      Disturb(nanos);
      return EndLater(fault.kind, nanos,
                      when_open([kind](MemoryDisk* same) { same->FailNext(kind, 0, Code::kOk); }));
    }
    case FaultKind::kSlowDrive: {
      const auto slow = static_cast<int64_t>(kMilli + random->Below(8 * kSecond));
      seen(static_cast<uint64_t>(slow / kMilli));
      node_->SetSlow(drive, slow);
      Disturb(nanos + slow);
      return EndLater(fault.kind, nanos, [this, drive] { node_->SetSlow(drive, 0); });
    }
    case FaultKind::kHangingDrive:
      seen(static_cast<uint64_t>(nanos / kMilli));
      disk->Hang(true);
      Disturb(nanos);
      return EndLater(fault.kind, nanos, when_open([](MemoryDisk* same) { same->Hang(false); }));
    case FaultKind::kReadOnlyDrive:
      seen(static_cast<uint64_t>(nanos / kMilli));
      disk->SetReadOnly(true);
      Disturb(nanos);
      return EndLater(fault.kind, nanos,
                      when_open([](MemoryDisk* same) { same->SetReadOnly(false); }));
    case FaultKind::kFullDrive:
      seen(static_cast<uint64_t>(nanos / kMilli));
      node_->media(drive)->set_capacity_bytes(random->Below(node_->media(drive)->used_bytes() + 1));
      Disturb(nanos);
      full_until_nanos_ = std::max(full_until_nanos_, world_.scheduler->now() + nanos);
      world_.scheduler->At(world_.scheduler->now() + nanos, 0,
                           [this, drive] { node_->media(drive)->set_capacity_bytes(UINT64_MAX); });
      return;
    case FaultKind::kBitFlip:
      if (FlipBit(drive, random)) seen(0);
      return;
    case FaultKind::kFooterFlip:
      if (!FlipFooterBits(drive, random)) return;
      seen(0);
      // Footers are read at a start, and at no other time.
      return Kill(Death::kProcess, nanos);
    default:
      return;
  }
}

bool Host::FlipBit(size_t drive, SeededRandom* random) {
  const std::vector<DiskFile> files = node_->media(drive)->List();
  if (files.empty()) return false;
  const DiskFile file = files[random->Below(files.size())];
  if (file.bytes == 0) return false;
  const uint64_t offset = random->Below(file.bytes);
  node_->media(drive)->FlipBit(file.number, offset, static_cast<int>(random->Below(8)));
  world_.truth->Damaged();
  return true;
}

// docs/formats/nvme.md: what a footer says, the groups say too, so nothing is lost with it.
bool Host::FlipFooterBits(size_t drive, SeededRandom* random) {
  constexpr uint64_t kPage = 4096;
  MemoryMedia& media = *node_->media(drive);
  bool flipped = false;
  for (const DiskFile& file : media.List()) {
    if (file.bytes < 2 * kPage) continue;
    const std::vector<std::byte> trailer = media.Bytes(file.number, file.bytes - kPage, kPage);
    const std::vector<std::byte> header = media.Bytes(file.number, 0, kPage);
    const bool of_this_use = std::memcmp(trailer.data() + 16, header.data() + 40, 16) == 0;
    if (std::memcmp(trailer.data(), "AQUIFEND", 8) != 0 || !of_this_use) continue;
    uint64_t footer = 0;
    std::memcpy(&footer, trailer.data() + 40, sizeof(footer));
    if (footer >= file.bytes - kPage) continue;
    const uint64_t offset = footer + random->Below(file.bytes - kPage - footer);
    media.FlipBit(file.number, offset, static_cast<int>(random->Below(8)));
    flipped = true;
  }
  return flipped;
}

void Host::Heal() {
  faults_are_over_ = true;
  at_next_promise_ = nullptr;
  node_->FailOpening(false);
  node_->extents()->FailNext(0, Code::kOk);
  node_->extents()->SetAvailableBytes(available_bytes_);
  for (size_t drive = 0; drive < node_->drives(); ++drive) {
    node_->media(drive)->set_capacity_bytes(UINT64_MAX);
    if (node_->alive()) node_->SetSlow(drive, 0);
    MemoryDisk* const disk = node_->disk(drive);
    if (disk == nullptr) continue;
    for (const IoKind kind : {IoKind::kRead, IoKind::kWrite, IoKind::kSync, IoKind::kCreate}) {
      disk->FailNext(kind, 0, Code::kOk);
    }
    disk->SetReadOnly(false);
    disk->Hang(false);
  }
}

}  // namespace aquifer
