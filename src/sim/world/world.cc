#include "sim/world/world.h"

#include <algorithm>
#include <string>
#include <utility>

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kSettleSteps = 200'000;
// After a drive is well again: it is probed every second, and told what it missed. A store is asked
// less often.
constexpr int64_t kRecoveryNanos = 15 * kSecond;
constexpr int64_t kStoreRecoveryNanos = 90 * kSecond;
// Other nodes hear of a destroyed key within a minute, and drop what it sealed within another.
constexpr int64_t kTenantGoneNanos = 125 * kSecond;

TruthOptions TruthOf(const Scenario& scenario, const Clock* store_clock) {
  TruthOptions options;
  for (const TenantOptions& tenant : scenario.node.core.cache.tenants) {
    options.tenants.push_back({.dram_ceiling_bytes = tenant.dram_ceiling_bytes,
                               .ttl_seconds = tenant.ttl_seconds,
                               .durable = tenant.durability == Durability::kDurable});
  }
  // An index that is full turns blocks away that NVMe has.
  options.keeps_what_is_safe = scenario.roomy && scenario.node.core.max_blocks > 64;
  options.stores = !scenario.stores.stores.empty();
  options.has_lasting = scenario.stores.has_lasting();
  if (options.stores) options.store_clock = store_clock;
  return options;
}

}  // namespace

World::World(const Scenario& scenario, Trace* trace) : scenario_(scenario), trace_(trace) {
  if (!scenario.stores.stores.empty()) {
    stores_ = std::make_unique<SharedStores>(scenario.stores, &scheduler_);
  }
  nodes_.push_back(std::make_unique<SimulatedNode>(scenario.node, &scheduler_, stores_.get()));
  if (scenario.second_node.has_value()) {
    nodes_.push_back(
        std::make_unique<SimulatedNode>(*scenario.second_node, &scheduler_, stores_.get()));
  }
  std::vector<const Clock*> clocks;
  for (const auto& node : nodes_) clocks.push_back(node->clock());
  truth_ = std::make_unique<Truth>(TruthOf(scenario, scheduler_.clock()), clocks);
  conversations_ = std::make_unique<Conversations>(
      ConversationsOptions{
          .layouts = scenario.layouts,
          .tenants = static_cast<uint32_t>(scenario.node.core.cache.tenants.size()),
          .most = scenario.conversations,
          .chain_blocks = scenario.chain_blocks},
      truth_.get());
  store_faults_ = std::make_unique<StoreFaults>(stores_.get(), &scheduler_, truth_.get(), trace_,
                                                &faults_seen_);
  scheduler_.on_step = [this] { trace_->Step(scheduler_.now(), scheduler_.steps()); };
  for (const auto& node : nodes_) MakeHost(node.get());
  for (uint32_t i = 0; i < scenario.engines.size(); ++i) {
    if (scenario.engines[i].present) MakeEngine(i);
  }
}

World::~World() {
  for (const auto& node : nodes_) {
    if (node->alive()) node->Die(Death::kProcess);
  }
}

void World::MakeHost(SimulatedNode* node) {
  hosts_.push_back(std::make_unique<Host>(
      node, HostWorld{.scheduler = &scheduler_,
                      .truth = truth_.get(),
                      .conversations = conversations_.get(),
                      .trace = trace_,
                      .faults_seen = &faults_seen_,
                      .run_until = [this](const std::function<bool()>& holds) {
                        return RunUntil(holds, 3600 * kSecond);
                      }}));
}

void World::MakeEngine(uint32_t number) {
  const EnginePlan& plan = scenario_.engines[number];
  Host* const host = hosts_[plan.node].get();
  engines_.push_back(std::make_unique<Engine>(
      EngineOptions{.number = number,
                    .tenant = plan.tenant,
                    .tenant_name = scenario_.node.core.cache.tenants[plan.tenant].name,
                    .layouts = scenario_.layouts,
                    .ranks = plan.ranks,
                    .think_nanos = scenario_.think_nanos,
                    .overdue_nanos = scenario_.node.core.cache.overdue_nanos,
                    .stores = stores_ != nullptr,
                    .listings_lag = scenario_.stores.listings_lag(),
                    .seed = plan.seed},
      EngineWorld{.scheduler = &scheduler_,
                  .node = host->node(),
                  .truth = truth_.get(),
                  .conversations = conversations_.get(),
                  .trace = trace_,
                  .counts = &counts_,
                  .calm = [host] { return host->Calm(); },
                  .stores_calm =
                      [this, host, tenant = plan.tenant] {
                        return store_faults_->Calm() && host->ReachesStores(tenant);
                      },
                  .on_promise = [host] { host->OnPromise(); }}));
  host->AddEngine(engines_.back().get());
}

void World::Run() {
  for (const auto& host : hosts_) host->Start();
  while (!failed() && scheduler_.steps() < scenario_.steps) {
    while (next_fault_ < scenario_.faults.size() &&
           scenario_.faults[next_fault_].step <= scheduler_.steps()) {
      Strike(scenario_.faults[next_fault_++]);
    }
    if (!Step()) return truth_->Violate("nothing is left to happen");
  }
  if (!failed()) Settle();
}

bool World::Step() {
  if (!scheduler_.RunOne()) return false;
  for (const auto& host : hosts_) host->CheckStep(settling_);
  return true;
}

bool World::RunUntil(const std::function<bool()>& holds, int64_t nanos) {
  const int64_t end = scheduler_.now() + nanos;
  // With another node one may be away for an hour, while the other ticks.
  const uint64_t last_step = scheduler_.steps() + kSettleSteps * (hosts_.size() > 1 ? 10 : 1);
  while (!failed() && !holds()) {
    if (scheduler_.now() > end || scheduler_.steps() > last_step || !Step()) return false;
  }
  return !failed();
}

// ---- Faults ----

void World::Seen(const Host* host, const Fault& fault, uint64_t detail) {
  ++faults_seen_[static_cast<size_t>(fault.kind)];
  trace_->Add(TraceKind::kFault, host->number(), static_cast<uint64_t>(fault.kind), detail);
}

void World::Strike(const Fault& fault) {
  SeededRandom random(fault.draw);
  Host* host = hosts_[0].get();
  if (hosts_.size() > 1) host = hosts_[SeededRandom(~fault.draw).Below(hosts_.size())].get();
  if (fault.kind > FaultKind::kHostReplaced && fault.kind < FaultKind::kTenantDeleted) {
    return store_faults_->Strike(fault, &random);
  }
  if (host->node()->alive()) StrikeHost(host, fault, &random);
}

void World::StrikeHost(Host* host, const Fault& fault, SeededRandom* random) {
  const auto down = static_cast<int64_t>(random->Below(2) == 0 ? random->Below(kSecond)
                                                               : random->Below(600 * kSecond));
  switch (fault.kind) {
    case FaultKind::kClientDeath:
      if (engines_.empty()) return;
      Seen(host, fault, 0);
      return engines_[random->Below(engines_.size())]->Die();
    case FaultKind::kSuspend: {
      const auto nanos = static_cast<int64_t>(
          random->Below(2) == 0 ? random->Below(10 * kSecond) : random->Below(7200 * kSecond));
      Seen(host, fault, static_cast<uint64_t>(nanos / kMilli));
      scheduler_.Suspend(nanos);  // All of them: there is one time.
      // Requests at the drives and stores look as if they had hung.
      store_faults_->Disturb(0);
      for (const auto& one : hosts_) {
        one->Disturb(0);
        truth_->CalendarSet(one->number());
      }
      return truth_->Suspended(nanos);
    }
    case FaultKind::kCalendarJump: {
      const auto seconds = static_cast<int64_t>(random->Below(7200)) - 3600;
      Seen(host, fault, static_cast<uint64_t>(seconds));
      host->node()->clock()->Shift(seconds);
      return truth_->CalendarSet(host->number());
    }
    case FaultKind::kTenantDeleted:
      return DeleteTenant(host, fault, random);
    default:
      return host->Strike(fault, down, random);
  }
}

void World::DeleteTenant(Host* host, const Fault& fault, SeededRandom* random) {
  if (!host->node()->ready() || host->node()->keys() == nullptr) return;
  const auto tenant =
      static_cast<uint32_t>(random->Below(scenario_.node.core.cache.tenants.size()));
  const bool all_hear = std::all_of(hosts_.begin(), hosts_.end(), [&](const auto& one) {
    return one.get() == host || one->deletions()->Hears(tenant);
  });
  const uint64_t moment = all_hear ? truth_->Moment() : 0;
  if (!host->deletions()->Destroy(tenant, moment)) return;
  Seen(host, fault, tenant);
  if (!all_hear) return;
  for (const auto& other : hosts_) {
    if (other.get() == host) continue;
    other->deletions()->OnDestroyed(tenant, moment);
  }
  ExpectDropped(tenant, moment);
}

// Not where the hosts slept meanwhile, or their key store was away.
void World::ExpectDropped(uint32_t tenant, uint64_t moment) {
  scheduler_.At(scheduler_.now() + kTenantGoneNanos, 0, [this, tenant, moment] {
    if (!store_faults_->Calm()) return ExpectDropped(tenant, moment);
    for (const auto& one : hosts_) one->deletions()->OnKeyOverdue(tenant, moment);
  });
}

// ---- The end ----

bool World::AwaitAll() {
  const auto ready = [this] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& node) { return node->ready(); });
  };
  if (RunUntil(ready, 3600 * kSecond)) return true;
  if (!failed()) truth_->Violate("the node does not come back");
  return false;
}

void World::Settle() {
  settling_ = true;
  trace_->Add(TraceKind::kSettling, 0);
  next_fault_ = scenario_.faults.size();
  store_faults_->Heal();
  for (const auto& host : hosts_) host->Heal();
  // One node waits for no other: its engines would go on for as long as that one is down.
  if (hosts_.size() > 1) {
    for (const auto& engine : engines_) engine->Stop();
  }
  if (!AwaitAll()) return;
  for (const auto& engine : engines_) engine->Stop();
  const auto idle = [this] {
    return std::all_of(engines_.begin(), engines_.end(),
                       [](const auto& engine) { return engine->idle(); });
  };
  if (!RunUntil(idle, 3600 * kSecond)) {
    if (!failed()) truth_->Violate("the engines do not come to an end");
    return;
  }
  // What a drive missed while it was out is made up for.
  Rest();
  if (failed()) return;
  // What could not be read at the start is neither found nor deleted; after another one it is.
  const bool unread = std::any_of(hosts_.begin(), hosts_.end(),
                                  [](const auto& host) { return host->reads_failed_at_start(); });
  if (unread) {
    for (const auto& host : hosts_) host->inspector()->CheckAll();
    RestartWell();
    Rest();
    if (failed()) return;
  }
  for (const auto& host : hosts_) {
    host->inspector()->CheckAtRest();
    host->auditor()->FindAll();
  }
  if (!failed() && scenario_.ends_with_deletion) DeleteEverything();
}

void World::Rest() {
  const int64_t nanos = stores_ == nullptr ? kRecoveryNanos : kStoreRecoveryNanos;
  const int64_t rested = scheduler_.now() + nanos;
  RunUntil([this, rested] { return scheduler_.now() >= rested; }, 2 * nanos);
}

// Nothing is left, now and after a restart.
void World::DeleteEverything() {
  if (stores_ != nullptr) Rest();  // Until all that was written last is listed.
  for (const auto& host : hosts_) host->auditor()->DeleteAll();
  Rest();
  if (failed()) return;
  for (const auto& host : hosts_) host->inspector()->CheckEmpty();
  RestartWell();
  for (const auto& host : hosts_) {
    if (!failed()) host->auditor()->FindNothing();
  }
}

void World::RestartWell() {
  for (const auto& host : hosts_) host->Kill(Death::kProcess, 0);
  AwaitAll();
}

}  // namespace aquifer
