// One seed's world: a node, its engines, the faults that befall them, and the truth about it all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/world/auditor.h"
#include "sim/world/conversations.h"
#include "sim/world/engine.h"
#include "sim/world/fault.h"
#include "sim/world/floor_watch.h"
#include "sim/world/inspector.h"
#include "sim/world/node.h"
#include "sim/world/scenario.h"
#include "sim/world/scheduler.h"
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

  const std::string& violation() const { return truth_.violation(); }
  const EngineCounts& counts() const { return counts_; }
  const FaultCounts& faults_seen() const { return faults_seen_; }
  uint64_t steps() const { return scheduler_.steps(); }
  int64_t simulated_nanos() const { return scheduler_.now(); }

 private:
  bool failed() const { return !truth_.violation().empty(); }
  bool Step();
  void StartNode();
  void KillNode(Death death, int64_t down_nanos);
  // A flush or a deletion was answered with ok.
  void OnPromise();
  bool Calm() const;
  void WatchFloors();
  // Drives are not what they should be until then, and a little longer.
  void Disturb(int64_t nanos);

  void Strike(const Fault& fault);
  void StrikeDrive(const Fault& fault, size_t drive, SeededRandom* random);
  bool FlipBit(size_t drive, SeededRandom* random);
  bool FlipFooterBits(size_t drive, SeededRandom* random);
  // Runs `end` later, unless the node has died by then: a new life has none of its faults.
  void EndLater(FaultKind kind, int64_t nanos, Task end);
  void HealAll();

  // The faults are over: everything is answered, found again, deleted, and given back.
  void Settle();
  void Rest();
  void RestartWell();
  void DeleteEverything();
  bool RunUntil(const std::function<bool()>& holds, int64_t nanos);

  const Scenario scenario_;
  Trace* const trace_;
  Scheduler scheduler_;
  Truth truth_;
  Conversations conversations_;
  SimulatedNode node_;
  Inspector inspector_;
  FloorWatch floor_watch_;
  EngineCounts counts_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<Auditor> auditor_;
  FaultCounts faults_seen_{};
  size_t next_fault_ = 0;
  bool settling_ = false;
  Task at_next_promise_;  // A fault that waits for one.
  int64_t calm_from_nanos_ = 0;
  int64_t full_until_nanos_ = 0;        // A file system is.
  bool read_late_ = false;              // Its drives may be read for the first time at any time.
  bool reads_failed_at_start_ = false;  // What was not read then is not known in this life.
};

}  // namespace aquifer
