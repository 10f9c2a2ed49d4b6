// One node of a world and what belongs to it: who looks at it, the faults of its drives and of its
// process, and what these excuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/world/auditor.h"
#include "sim/world/conversations.h"
#include "sim/world/engine.h"
#include "sim/world/fault.h"
#include "sim/world/floor_watch.h"
#include "sim/world/inspector.h"
#include "sim/world/node.h"
#include "sim/world/scheduler.h"
#include "sim/world/tenant_deletions.h"
#include "sim/world/trace.h"
#include "sim/world/truth.h"
#include "testing/seeded_random.h"

namespace aquifer {

// What the world lends to its hosts.
struct HostWorld {
  Scheduler* scheduler = nullptr;
  Truth* truth = nullptr;
  Conversations* conversations = nullptr;
  Trace* trace = nullptr;
  FaultCounts* faults_seen = nullptr;
  std::function<bool(const std::function<bool()>& holds)> run_until;
};

class Host {
 public:
  // The node outlives it.
  Host(SimulatedNode* node, const HostWorld& world);

  SimulatedNode* node() { return node_; }
  uint32_t number() const { return node_->number(); }
  Auditor* auditor() { return &auditor_; }
  Inspector* inspector() { return &inspector_; }
  TenantDeletions* deletions() { return &deletions_; }
  // Its engines, which the world owns.
  void AddEngine(Engine* engine) { engines_.push_back(engine); }

  void Start();
  // It starts again later, with empty drives where another host takes its place.
  void Kill(Death death, int64_t down_nanos, bool replaced = false);
  // A flush or a deletion was answered with ok.
  void OnPromise();
  // No fault of its own could excuse a miss.
  bool Calm() const;
  // The same of a miss in the durable tiers: it has served for a while, and has the tenant's key.
  bool ReachesStores(uint32_t tenant);
  void WatchFloors();
  void CheckStep(bool settling);

  // A fault of the kinds that befall a node, while it is alive. One that it dies of keeps it down
  // for so long.
  void Strike(const Fault& fault, int64_t down_nanos, SeededRandom* random);
  // Drives are not what they should be until then, and a little longer.
  void Disturb(int64_t nanos);
  // The faults are over.
  void Heal();
  bool reads_failed_at_start() const { return reads_failed_at_start_; }

 private:
  void Seen(const Fault& fault, uint64_t detail);
  void StrikeDrive(const Fault& fault, size_t drive, SeededRandom* random);
  bool FlipBit(size_t drive, SeededRandom* random);
  bool FlipFooterBits(size_t drive, SeededRandom* random);
  // Runs `end` later, unless the node has died by then: a new life has none of its faults.
  void EndLater(FaultKind kind, int64_t nanos, Task end);

  const HostWorld world_;
  SimulatedNode* const node_;
  const uint64_t available_bytes_;
  Inspector inspector_;
  FloorWatch floor_watch_;
  Auditor auditor_;
  TenantDeletions deletions_;
  std::vector<Engine*> engines_;
  bool faults_are_over_ = false;
  Task at_next_promise_;  // A fault that waits for one.
  int64_t serves_since_nanos_ = 0;
  int64_t calm_from_nanos_ = 0;
  int64_t full_until_nanos_ = 0;        // A file system is.
  bool read_late_ = false;              // Its drives may be read for the first time at any time.
  bool reads_failed_at_start_ = false;  // What was not read then is not known in this life.
};

}  // namespace aquifer
