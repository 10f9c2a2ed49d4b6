// A tier of the contract suite on real threads: its executor and its workers run by themselves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/executor.h"
#include "tier/tier_contract.h"

namespace aquifer {

class ThreadedHarness : public TierHarness {
 public:
  void Do(const std::function<void()>& work) override {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    executor_->Post([&] {
      work();
      const std::lock_guard lock(mutex);
      done = true;
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }

  bool RunUntil(const std::function<bool()>& done) override {
    int64_t quiet_since = NowNanos();
    while (true) {
      bool result = false;
      uint64_t queued = 0;
      Do([&] {
        result = done();
        queued = tier()->Usage().queued_ops;
      });
      if (result) return true;
      if (queued > 0) quiet_since = NowNanos();
      if (NowNanos() - quiet_since > quiet_nanos_) return false;
      std::this_thread::yield();
    }
  }

  int64_t NowNanos() override { return clock_->NowNanos(); }

  bool Restart() override {
    Stop();
    Start();
    return true;
  }

 protected:
  // With nothing queued for so long, nothing moves.
  ThreadedHarness(Clock* clock, int64_t quiet_nanos) : clock_(clock), quiet_nanos_(quiet_nanos) {}

  // After what stands on them.
  void StopThreads() {
    workers_.reset();
    executor_->Stop();
    executor_.reset();
  }

  // Made by Start().
  std::unique_ptr<ThreadExecutor> executor_;
  std::unique_ptr<WorkerPool> workers_;

 private:
  virtual void Start() = 0;
  virtual void Stop() = 0;

  Clock* const clock_;
  const int64_t quiet_nanos_;
};

}  // namespace aquifer
