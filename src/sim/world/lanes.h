// Where a simulated node's work runs. Each lane is one of the real thing's threads, as far as order
// goes: the owner runs what it is given in turn, workers and drives end in any order. How long each
// thing takes is drawn from the seed, so that every order which could happen does, in some seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/executor.h"
#include "sim/world/scheduler.h"
#include "testing/seeded_random.h"

namespace aquifer {

class OwnerLane final : public Executor {
 public:
  OwnerLane(Scheduler* scheduler, Scheduler::Party party, uint64_t seed, int64_t task_nanos)
      : scheduler_(scheduler), party_(party), random_(seed), task_nanos_(task_nanos) {}

  void Post(Task task) override {
    // One after the other: a task begins when the one before it has had its time.
    free_at_nanos_ = std::max(free_at_nanos_, scheduler_->now()) +
                     static_cast<int64_t>(random_.Below(static_cast<uint64_t>(task_nanos_))) + 1;
    scheduler_->At(free_at_nanos_, party_, std::move(task));
  }
  void PostAt(int64_t at_nanos, Task task) override {
    scheduler_->At(at_nanos, party_, std::move(task));
  }

 private:
  Scheduler* const scheduler_;
  const Scheduler::Party party_;
  SeededRandom random_;
  const int64_t task_nanos_;
  int64_t free_at_nanos_ = 0;
};

class WorkerLane final : public WorkerPool {
 public:
  WorkerLane(Scheduler* scheduler, Scheduler::Party party, uint64_t seed, int64_t task_nanos)
      : scheduler_(scheduler), party_(party), random_(seed), task_nanos_(task_nanos) {}

  void Run(Task task) override {
    // Now and then one is not scheduled for long.
    const int64_t stretch = random_.Below(64) == 0 ? 1000 : 1;
    const auto nanos =
        static_cast<int64_t>(random_.Below(static_cast<uint64_t>(task_nanos_ * stretch)));
    scheduler_->At(scheduler_->now() + nanos, party_, std::move(task));
  }

 private:
  Scheduler* const scheduler_;
  const Scheduler::Party party_;
  SeededRandom random_;
  const int64_t task_nanos_;
};

// What a MemoryDisk completes on. The disk says when; a slow drive adds to that.
class DriveLane final : public Executor {
 public:
  DriveLane(Scheduler* scheduler, Scheduler::Party party, uint64_t seed)
      : scheduler_(scheduler), party_(party), random_(seed) {}

  // From now on each group may take up to so much longer.
  void SetSlow(int64_t nanos) { slow_nanos_ = nanos; }

  void Post(Task task) override { PostAt(scheduler_->now(), std::move(task)); }
  void PostAt(int64_t at_nanos, Task task) override {
    if (slow_nanos_ > 0) {
      at_nanos += static_cast<int64_t>(random_.Below(static_cast<uint64_t>(slow_nanos_)));
    }
    scheduler_->At(at_nanos, party_, std::move(task));
  }

 private:
  Scheduler* const scheduler_;
  const Scheduler::Party party_;
  SeededRandom random_;
  int64_t slow_nanos_ = 0;
};

}  // namespace aquifer
