// The cost of posting for the thread that posts, and the time of a task there and back.
#include <benchmark/benchmark.h>

#include <atomic>

#include "base/clock.h"
#include "base/executor.h"

namespace aquifer {
namespace {

void BM_Post(benchmark::State& state) {
  auto executor = NewThreadExecutor({.name = "bench", .spin_nanos = 50'000}, SystemClock());
  std::atomic<uint64_t> ran = 0;
  uint64_t posted = 0;
  for (auto _ : state) {
    executor->Post([&ran] { ran.store(ran.load(std::memory_order_relaxed) + 1); });
    // A thousand may wait: an endless queue would measure the allocator.
    if (++posted % 1000 == 0) {
      while (posted - ran.load() > 1000) {
      }
    }
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Post)->UseRealTime();

void BM_RoundTrip(benchmark::State& state) {
  auto executor = NewThreadExecutor({.name = "bench", .spin_nanos = state.range(0)}, SystemClock());
  for (auto _ : state) {
    std::atomic<bool> done = false;
    executor->Post([&done] { done.store(true, std::memory_order_release); });
    while (!done.load(std::memory_order_acquire)) {
    }
  }
}
BENCHMARK(BM_RoundTrip)->ArgName("spin_nanos")->Arg(0)->Arg(50'000)->UseRealTime();

void BM_SetAndRunTimer(benchmark::State& state) {
  auto executor = NewThreadExecutor({.name = "bench", .spin_nanos = 50'000}, SystemClock());
  for (auto _ : state) {
    std::atomic<bool> done = false;
    executor->PostAt(SystemClock()->NowNanos(), [&done] { done.store(true); });
    while (!done.load()) {
    }
  }
}
BENCHMARK(BM_SetAndRunTimer)->UseRealTime();

}  // namespace
}  // namespace aquifer
