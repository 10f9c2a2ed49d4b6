#include "sim/world/world.h"

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
constexpr uint64_t kSettleSteps = 200'000;
// After a drive is well again: it is probed every second, and told what it missed.
constexpr int64_t kRecoveryNanos = 15 * kSecond;

TruthOptions TruthOf(const Scenario& scenario) {
  TruthOptions options;
  for (const TenantOptions& tenant : scenario.node.core.cache.tenants) {
    options.tenants.push_back(
        {.dram_ceiling_bytes = tenant.dram_ceiling_bytes, .ttl_seconds = tenant.ttl_seconds});
  }
  // An index that is full turns blocks away that NVMe has.
  options.keeps_what_is_safe = scenario.roomy && scenario.node.core.max_blocks > 64;
  return options;
}

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

World::World(const Scenario& scenario, Trace* trace)
    : scenario_(scenario),
      trace_(trace),
      truth_(TruthOf(scenario), scheduler_.clock()),
      conversations_({.layouts = scenario.layouts,
                      .tenants = static_cast<uint32_t>(scenario.node.core.cache.tenants.size()),
                      .most = scenario.conversations,
                      .chain_blocks = scenario.chain_blocks},
                     &truth_),
      node_(scenario.node, &scheduler_),
      inspector_(&node_, &truth_),
      floor_watch_(FloorsOf(scenario.node.core.cache)) {
  scheduler_.on_step = [this] { trace_->Step(scheduler_.now(), scheduler_.steps()); };
  for (uint32_t i = 0; i < scenario.engines.size(); ++i) {
    if (!scenario.engines[i].present) continue;
    const uint32_t tenant = scenario.engines[i].tenant;
    engines_.push_back(std::make_unique<Engine>(
        EngineOptions{.number = i,
                      .tenant = tenant,
                      .tenant_name = scenario.node.core.cache.tenants[tenant].name,
                      .layouts = scenario.layouts,
                      .ranks = scenario.engines[i].ranks,
                      .think_nanos = scenario.think_nanos,
                      .overdue_nanos = scenario.node.core.cache.overdue_nanos,
                      .seed = scenario.engines[i].seed},
        EngineWorld{.scheduler = &scheduler_,
                    .node = &node_,
                    .truth = &truth_,
                    .conversations = &conversations_,
                    .trace = trace_,
                    .counts = &counts_,
                    .calm = [this] { return Calm(); },
                    .on_promise = [this] { OnPromise(); }}));
  }
  auditor_ = std::make_unique<Auditor>(
      &node_, &truth_, &conversations_, trace_,
      [this](const std::function<bool()>& holds) { return RunUntil(holds, 3600 * kSecond); });
}

World::~World() {
  if (node_.alive()) node_.Die(Death::kProcess);
}

void World::Run() {
  StartNode();
  while (!failed() && scheduler_.steps() < scenario_.steps) {
    while (next_fault_ < scenario_.faults.size() &&
           scenario_.faults[next_fault_].step <= scheduler_.steps()) {
      Strike(scenario_.faults[next_fault_++]);
    }
    if (!Step()) return truth_.Violate("nothing is left to happen");
  }
  if (!failed()) Settle();
}

bool World::Step() {
  if (!scheduler_.RunOne()) return false;
  inspector_.CheckStep();
  if (scheduler_.steps() % kFullCheckSteps == 0 && node_.ready()) inspector_.CheckAll();
  if (scheduler_.steps() % kFloorSteps == 0 && !settling_) WatchFloors();
  return true;
}

void World::WatchFloors() {
  const std::vector<TenantOptions>& tenants = node_.options().tenants;
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
        Calm() && !truth_.damaged() && scheduler_.clock()->UnixSeconds() < keeps_until;
    if (!keeps || quiet_since == INT64_MAX) {
      floor_watch_.Forget(tenant);
      continue;
    }
    const TenantSnapshot has = node_.core()->Tenants(tenant, 1)[0];
    std::string wrong = floor_watch_.See(
        tenant, quiet_since, scheduler_.now(),
        {.dram_bytes = has.dram_bytes, .nvme_bytes = has.nvme_bytes, .orphaned = has.orphaned});
    if (!wrong.empty()) truth_.Violate(std::move(wrong));
  }
}

bool World::RunUntil(const std::function<bool()>& holds, int64_t nanos) {
  const int64_t end = scheduler_.now() + nanos;
  const uint64_t last_step = scheduler_.steps() + kSettleSteps;
  while (!failed() && !holds()) {
    if (scheduler_.now() > end || scheduler_.steps() > last_step || !Step()) return false;
  }
  return !failed();
}

// ---- Life and death ----

void World::StartNode() {
  node_.Start([this] {
    trace_->Add(TraceKind::kNodeServes, 0);
    for (const auto& engine : engines_) engine->Begin();
  });
  trace_->Add(TraceKind::kNodeStarts, node_.life());
}

void World::KillNode(Death death, int64_t down_nanos) {
  const bool lost_writes = death == Death::kPower && !node_.options().nvme_sync;
  const uint64_t pending = node_.Die(death);
  trace_->Add(TraceKind::kNodeDies, node_.life(), static_cast<uint64_t>(death), pending);
  for (const auto& engine : engines_) engine->NodeDied();
  truth_.Died(lost_writes);
  // The faults of its drives went with it, and it serves when it knows what they hold. But a file
  // system that is full is so for its next life, too.
  const bool full = scheduler_.now() < full_until_nanos_;
  reads_failed_at_start_ = false;
  read_late_ = node_.opening_fails();
  if (!read_late_) calm_from_nanos_ = full ? full_until_nanos_ + kRecoveryNanos : 0;
  scheduler_.At(scheduler_.now() + down_nanos, 0, [this, life = node_.life()] {
    if (!node_.alive() && node_.life() == life) StartNode();
  });
}

void World::OnPromise() {
  if (!at_next_promise_) return;
  // Not from inside the node.
  scheduler_.At(scheduler_.now(), 0,
                [this, life = node_.life(), act = std::exchange(at_next_promise_, nullptr)] {
                  if (node_.alive() && node_.life() == life && !settling_) act();
                });
}

bool World::Calm() const {
  return node_.ready() && !reads_failed_at_start_ && scheduler_.now() >= calm_from_nanos_;
}

void World::Disturb(int64_t nanos) {
  truth_.Disturbed();
  // A start does not wait long for a drive: this one may be read when the node serves.
  if (!node_.ready()) read_late_ = true;
  calm_from_nanos_ = std::max(calm_from_nanos_, scheduler_.now() + nanos + kRecoveryNanos);
}

// ---- Faults ----

void World::EndLater(FaultKind kind, int64_t nanos, Task end) {
  scheduler_.At(scheduler_.now() + nanos, 0,
                [this, kind, life = node_.life(), end = std::move(end)] {
                  if (node_.life() != life || !node_.alive()) return;
                  trace_->Add(TraceKind::kFaultEnds, 0, static_cast<uint64_t>(kind));
                  end();
                });
}

void World::Strike(const Fault& fault) {
  if (!node_.alive()) return;
  SeededRandom random(fault.draw);
  const auto seen = [this, &fault](uint64_t detail) {
    ++faults_seen_[static_cast<size_t>(fault.kind)];
    trace_->Add(TraceKind::kFault, 0, static_cast<uint64_t>(fault.kind), detail);
  };
  const auto down = static_cast<int64_t>(random.Below(2) == 0 ? random.Below(kSecond)
                                                              : random.Below(600 * kSecond));
  switch (fault.kind) {
    case FaultKind::kCrash:
    case FaultKind::kPowerLoss: {
      seen(0);
      const Death death = fault.kind == FaultKind::kCrash ? Death::kProcess : Death::kPower;
      if (random.Below(2) == 0) return KillNode(death, down);
      // Just when something was promised: what does it rest on?
      at_next_promise_ = [this, death, down] { KillNode(death, down); };
      return;
    }
    case FaultKind::kUnopenable: {
      seen(0);
      KillNode(Death::kProcess, 0);
      node_.FailOpening(true);
      read_late_ = true;
      const auto nanos = static_cast<int64_t>(random.Below(20 * kSecond));
      Disturb(nanos);
      scheduler_.At(scheduler_.now() + nanos, 0, [this] { node_.FailOpening(false); });
      return;
    }
    case FaultKind::kClientDeath:
      if (engines_.empty()) return;
      seen(0);
      return engines_[random.Below(engines_.size())]->Die();
    case FaultKind::kNoMemory:
      seen(0);
      return node_.extents()->FailNext(1 + random.Below(8), Code::kNoSpace);
    case FaultKind::kMemoryShort: {
      const uint64_t bytes = random.Below(node_.options().dram_bytes + (2 << 20));
      seen(bytes);
      node_.extents()->SetAvailableBytes(bytes);
      scheduler_.At(scheduler_.now() + static_cast<int64_t>(random.Below(10 * kSecond)), 0,
                    [this] { node_.extents()->SetAvailableBytes(scenario_.node.available_bytes); });
      return;
    }
    case FaultKind::kSuspend: {
      const auto nanos = static_cast<int64_t>(random.Below(2) == 0 ? random.Below(10 * kSecond)
                                                                   : random.Below(7200 * kSecond));
      seen(static_cast<uint64_t>(nanos / kMilli));
      scheduler_.Suspend(nanos);
      // Requests at the drives look as if they had hung.
      Disturb(0);
      truth_.CalendarSet();
      return truth_.Suspended(nanos);
    }
    case FaultKind::kCalendarJump: {
      const auto seconds = static_cast<int64_t>(random.Below(7200)) - 3600;
      seen(static_cast<uint64_t>(seconds));
      scheduler_.ShiftCalendar(seconds);
      return truth_.CalendarSet();
    }
    default:
      if (node_.drives() == 0) return;
      return StrikeDrive(fault, random.Below(node_.drives()), &random);
  }
}

void World::StrikeDrive(const Fault& fault, size_t drive, SeededRandom* random) {
  MemoryDisk* const disk = node_.disk(drive);
  if (disk == nullptr) return;
  const auto seen = [this, &fault](uint64_t detail) {
    ++faults_seen_[static_cast<size_t>(fault.kind)];
    trace_->Add(TraceKind::kFault, 0, static_cast<uint64_t>(fault.kind), detail);
  };
  const auto nanos = static_cast<int64_t>(random->Below(2) == 0 ? random->Below(100 * kMilli)
                                                                : random->Below(300 * kSecond));
  // A drive that the node has closed since is not the same any more.
  const auto when_open = [this, drive](const std::function<void(MemoryDisk*)>& act) {
    return [this, drive, act] {
      if (MemoryDisk* const same = node_.disk(drive); same != nullptr) act(same);
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
      if (kind == IoKind::kRead && (!node_.ready() || read_late_)) reads_failed_at_start_ = true;
      Disturb(nanos);
      return EndLater(fault.kind, nanos,
                      when_open([kind](MemoryDisk* same) { same->FailNext(kind, 0, Code::kOk); }));
    }
    case FaultKind::kSlowDrive: {
      const auto slow = static_cast<int64_t>(kMilli + random->Below(8 * kSecond));
      seen(static_cast<uint64_t>(slow / kMilli));
      node_.SetSlow(drive, slow);
      Disturb(nanos + slow);
      return EndLater(fault.kind, nanos, [this, drive] { node_.SetSlow(drive, 0); });
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
      node_.media(drive)->set_capacity_bytes(random->Below(node_.media(drive)->used_bytes() + 1));
      Disturb(nanos);
      full_until_nanos_ = std::max(full_until_nanos_, scheduler_.now() + nanos);
      scheduler_.At(scheduler_.now() + nanos, 0,
                    [this, drive] { node_.media(drive)->set_capacity_bytes(UINT64_MAX); });
      return;
    case FaultKind::kBitFlip:
      if (FlipBit(drive, random)) seen(0);
      return;
    case FaultKind::kFooterFlip:
      if (!FlipFooterBits(drive, random)) return;
      seen(0);
      // Footers are read at a start, and at no other time.
      return KillNode(Death::kProcess, nanos);
    default:
      return;
  }
}

bool World::FlipBit(size_t drive, SeededRandom* random) {
  const std::vector<DiskFile> files = node_.media(drive)->List();
  if (files.empty()) return false;
  const DiskFile file = files[random->Below(files.size())];
  if (file.bytes == 0) return false;
  const uint64_t offset = random->Below(file.bytes);
  node_.media(drive)->FlipBit(file.number, offset, static_cast<int>(random->Below(8)));
  truth_.Damaged();
  return true;
}

// docs/formats/nvme.md: what a footer says, the groups say too, so nothing is lost with it.
bool World::FlipFooterBits(size_t drive, SeededRandom* random) {
  constexpr uint64_t kPage = 4096;
  MemoryMedia& media = *node_.media(drive);
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

// ---- The end ----

void World::HealAll() {
  next_fault_ = scenario_.faults.size();
  at_next_promise_ = nullptr;
  node_.FailOpening(false);
  node_.extents()->FailNext(0, Code::kOk);
  node_.extents()->SetAvailableBytes(scenario_.node.available_bytes);
  for (size_t drive = 0; drive < node_.drives(); ++drive) {
    node_.media(drive)->set_capacity_bytes(UINT64_MAX);
    if (node_.alive()) node_.SetSlow(drive, 0);
    MemoryDisk* const disk = node_.disk(drive);
    if (disk == nullptr) continue;
    for (const IoKind kind : {IoKind::kRead, IoKind::kWrite, IoKind::kSync, IoKind::kCreate}) {
      disk->FailNext(kind, 0, Code::kOk);
    }
    disk->SetReadOnly(false);
    disk->Hang(false);
  }
}

void World::Settle() {
  settling_ = true;
  trace_->Add(TraceKind::kSettling, 0);
  HealAll();
  if (!RunUntil([this] { return node_.ready(); }, 3600 * kSecond)) {
    if (!failed()) truth_.Violate("the node does not come back");
    return;
  }
  for (const auto& engine : engines_) engine->Stop();
  const auto idle = [this] {
    return std::all_of(engines_.begin(), engines_.end(),
                       [](const auto& engine) { return engine->idle(); });
  };
  if (!RunUntil(idle, 3600 * kSecond)) {
    if (!failed()) truth_.Violate("the engines do not come to an end");
    return;
  }
  // What a drive missed while it was out is made up for.
  Rest();
  if (failed()) return;
  // What could not be read at the start is neither found nor deleted; after another one it is.
  if (reads_failed_at_start_) {
    inspector_.CheckAll();
    RestartWell();
    Rest();
    if (failed()) return;
  }
  inspector_.CheckAtRest();
  auditor_->FindAll();
  if (!failed() && scenario_.ends_with_deletion) DeleteEverything();
}

void World::Rest() {
  const int64_t rested = scheduler_.now() + kRecoveryNanos;
  RunUntil([this, rested] { return scheduler_.now() >= rested; }, 2 * kRecoveryNanos);
}

// Nothing is left, now and after a restart.
void World::DeleteEverything() {
  auditor_->DeleteAll();
  Rest();
  if (failed()) return;
  inspector_.CheckEmpty();
  RestartWell();
  if (!failed()) auditor_->FindNothing();
}

void World::RestartWell() {
  KillNode(Death::kProcess, 0);
  const bool back = RunUntil([this] { return node_.ready(); }, 3600 * kSecond);
  if (!back && !failed()) truth_.Violate("the node does not come back");
}

}  // namespace aquifer
