// What befalls the stores that nodes share, and when they are well again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/world/fault.h"
#include "sim/world/scheduler.h"
#include "sim/world/shared_stores.h"
#include "sim/world/trace.h"
#include "sim/world/truth.h"
#include "testing/seeded_random.h"

namespace aquifer {

class StoreFaults {
 public:
  // `stores` may be null: then nothing ever befalls them.
  StoreFaults(SharedStores* stores, Scheduler* scheduler, Truth* truth, Trace* trace,
              FaultCounts* seen)
      : stores_(stores), scheduler_(scheduler), truth_(truth), trace_(trace), seen_(seen) {}

  void Strike(const Fault& fault, SeededRandom* random);
  // Nothing of theirs could excuse a miss.
  bool Calm() const { return stores_ != nullptr && scheduler_->now() >= calm_from_nanos_; }
  // They are not what they should be until then, and a little longer.
  void Disturb(int64_t nanos);
  void Heal();

 private:
  void Seen(const Fault& fault, uint64_t detail);
  void EndLater(FaultKind kind, int64_t nanos, Task end);

  SharedStores* const stores_;
  Scheduler* const scheduler_;
  Truth* const truth_;
  Trace* const trace_;
  FaultCounts* const seen_;
  int64_t calm_from_nanos_ = 0;
};

}  // namespace aquifer
