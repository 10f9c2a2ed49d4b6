// One seed's world: its nodes, the stores that they share, their engines, the faults that befall
// all of them, and the truth about it all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/world/conversations.h"
#include "sim/world/engine.h"
#include "sim/world/fault.h"
#include "sim/world/host.h"
#include "sim/world/node.h"
#include "sim/world/scenario.h"
#include "sim/world/scheduler.h"
#include "sim/world/shared_stores.h"
#include "sim/world/store_faults.h"
#include "sim/world/trace.h"
#include "sim/world/truth.h"

namespace aquifer {

class World {
 public:
  // `trace` outlives it.
  World(const Scenario& scenario, Trace* trace);
  ~World();

  // To the end, or to the first violation.
  void Run();

  const std::string& violation() const { return truth_->violation(); }
  const EngineCounts& counts() const { return counts_; }
  const FaultCounts& faults_seen() const { return faults_seen_; }
  uint64_t steps() const { return scheduler_.steps(); }
  int64_t simulated_nanos() const { return scheduler_.now(); }

 private:
  bool failed() const { return !truth_->violation().empty(); }
  void MakeHost(SimulatedNode* node);
  void MakeEngine(uint32_t number);
  bool Step();

  void Strike(const Fault& fault);
  void StrikeHost(Host* host, const Fault& fault, SeededRandom* random);
  void DeleteTenant(Host* host, const Fault& fault, SeededRandom* random);
  void ExpectDropped(uint32_t tenant, uint64_t moment);
  void Seen(const Host* host, const Fault& fault, uint64_t detail);

  // The faults are over: everything is answered, found again, deleted, and given back.
  void Settle();
  void Rest();
  bool AwaitAll();
  void RestartWell();
  void DeleteEverything();
  bool RunUntil(const std::function<bool()>& holds, int64_t nanos);

  const Scenario scenario_;
  Trace* const trace_;
  Scheduler scheduler_;
  std::unique_ptr<SharedStores> stores_;  // Null: there are none.
  std::vector<std::unique_ptr<SimulatedNode>> nodes_;
  std::unique_ptr<Truth> truth_;
  std::unique_ptr<Conversations> conversations_;
  std::unique_ptr<StoreFaults> store_faults_;
  FaultCounts faults_seen_{};
  EngineCounts counts_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Engine>> engines_;
  size_t next_fault_ = 0;
  bool settling_ = false;
};

}  // namespace aquifer
