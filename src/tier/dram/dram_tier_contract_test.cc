// The contract of tier.h, over the DRAM tier: stepped by hand, and on real threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/executor.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "tier/dram/dram_tier.h"
#include "tier/tier_contract.h"

namespace aquifer {
namespace {

// An extent holds slots of one tenant and size, so they are small and many.
DramTierOptions OptionsOf(const TierContractOptions& options) {
  constexpr uint64_t kLeast = uint64_t{256} << 10;
  return {.capacity_bytes = options.capacity_bytes,
          .extent_bytes = std::max(kLeast, (options.max_block_bytes + 4095) / 4096 * 4096),
          .keep_available_bytes = 0,
          .ready_extents = UINT32_MAX,
          .max_queued_ops = options.max_queued_ops};
}

class SteppedHarness final : public TierHarness {
 public:
  explicit SteppedHarness(const TierContractOptions& options) {
    auto made = NewDramTier(OptionsOf(options), &extents_, &workers_, &gate_, &clock_);
    AQ_CHECK(made.ok());
    tier_ = *std::move(made);
    tier_->Tick();
    RunUntil([] { return false; });
  }

  Tier* tier() override { return tier_.get(); }
  void Do(const std::function<void()>& work) override { work(); }
  bool RunUntil(const std::function<bool()>& done) override {
    while (!done()) {
      gate_.copying = true;
      const bool worked = workers_.RunOne();
      gate_.copying = false;
      if (!executor_.RunOne() && !worked) return done();
    }
    return true;
  }
  int64_t NowNanos() override { return clock_.NowNanos(); }
  bool Advance(int64_t nanos) override {
    clock_.Advance(nanos);
    return true;
  }
  bool Hang(bool hanging) override {
    gate_.hanging = hanging;
    if (!hanging) {
      for (Task& task : gate_.held) executor_.Post(std::move(task));
      gate_.held.clear();
    }
    return true;
  }

 private:
  // A worker that hangs in a copy is one whose end is not heard of.
  struct Gate final : Executor {
    explicit Gate(Executor* executor) : executor(executor) {}
    void Post(Task task) override {
      if (copying && hanging) {
        held.push_back(std::move(task));
      } else {
        executor->Post(std::move(task));
      }
    }
    void PostAt(int64_t at_nanos, Task task) override {
      executor->PostAt(at_nanos, std::move(task));
    }

    Executor* const executor;
    bool copying = false;
    bool hanging = false;
    std::vector<Task> held;
  };

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  ManualExecutor workers_{&clock_};
  Gate gate_{&executor_};
  MemoryExtents extents_;
  std::unique_ptr<DramTier> tier_;
};

class ThreadsHarness final : public TierHarness {
 public:
  explicit ThreadsHarness(const TierContractOptions& options)
      : executor_(NewThreadExecutor({}, SystemClock())),
        workers_(NewThreadWorkerPool(2, "aq-test")) {
    auto made =
        NewDramTier(OptionsOf(options), &extents_, workers_.get(), executor_.get(), SystemClock());
    AQ_CHECK(made.ok());
    tier_ = *std::move(made);
    Do([&] { tier_->Tick(); });
    const uint64_t all = options.capacity_bytes / OptionsOf(options).extent_bytes;
    for (uint64_t made_so_far = 0; made_so_far < all; std::this_thread::yield()) {
      Do([&] { made_so_far = tier_->Counters()[0].second; });  // "extents_made".
    }
  }
  ~ThreadsHarness() override {
    Do([&] { tier_.reset(); });
    workers_.reset();
    executor_->Stop();
  }

  Tier* tier() override { return tier_.get(); }
  void Do(const std::function<void()>& work) override {
    std::promise<void> done;
    executor_->Post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  bool RunUntil(const std::function<bool()>& done) override {
    // Nothing moves once nothing is queued and what was posted meanwhile has run.
    for (int quiet = 0; quiet < 2;) {
      bool result = false;
      uint64_t queued = 0;
      Do([&] {
        result = done();
        queued = tier_->Usage().queued_ops;
      });
      if (result) return true;
      quiet = queued > 0 ? 0 : quiet + 1;
      std::this_thread::yield();
    }
    return false;
  }
  int64_t NowNanos() override { return SystemClock()->NowNanos(); }

 private:
  MemoryExtents extents_;
  const std::unique_ptr<ThreadExecutor> executor_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<DramTier> tier_;
};

template <class Harness>
TierContractParam ParamOf(const char* name) {
  return {.name = name, .make = [](const TierContractOptions& options) {
            return std::make_unique<Harness>(options);
          }};
}

INSTANTIATE_TEST_SUITE_P(Dram, TierContract,
                         testing::Values(ParamOf<SteppedHarness>("Stepped"),
                                         ParamOf<ThreadsHarness>("Threads")),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aquifer
