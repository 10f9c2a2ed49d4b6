#include "cuda/host_pins.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "testing/gpu/fake_gpu.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

void AwaitNoneWaiting(const HostPins& pins) {
  while (pins.counts().waiting > 0) {
  }
}

TEST(HostPinsTest, AddedMemoryIsPinnedOnceAGpuIsUsed) {
  FakeGpuLog log;
  Bytes early(4096);
  Bytes late(4096);
  {
    HostPins pins;
    pins.Add(early);
    EXPECT_EQ(pins.counts().waiting, 1u);
    EXPECT_TRUE(pins.Around(early).empty());
    pins.Use(std::make_unique<FakeGpu>(&log, FakeGpuOptions{}));
    pins.Add(late);
    AwaitNoneWaiting(pins);
    EXPECT_EQ(log.pinned, 2u);
    EXPECT_EQ(pins.Around(std::span(late).subspan(100, 50)).data(), late.data());
    EXPECT_TRUE(pins.Around(std::span(late.data() + 4000, 200)).empty());
    pins.Remove(early);
    EXPECT_EQ(log.pinned, 1u);
    EXPECT_TRUE(pins.Around(early).empty());
  }
  EXPECT_EQ(log.pinned, 0u);
}

TEST(HostPinsTest, MemoryThatCannotBePinnedIsToldOnceAndLeftAlone) {
  FakeGpuLog log;
  Bytes memory(4096);
  Bytes more(4096);
  std::vector<std::string> told;
  {
    HostPins pins;
    pins.Use(std::make_unique<FakeGpu>(&log, FakeGpuOptions{.fail_call = 1}),
             [&](const Status& why) { told.push_back(why.message()); });
    pins.Add(memory);
    pins.Add(more);
    AwaitNoneWaiting(pins);
    EXPECT_EQ(pins.counts().failed, 2u);
    EXPECT_FALSE(pins.failure().ok());
    EXPECT_TRUE(pins.Around(memory).empty());
    pins.Remove(memory);
    EXPECT_EQ(pins.counts().failed, 1u);
  }
  EXPECT_EQ(told, std::vector<std::string>{"the fake GPU does not pin"});
}

TEST(HostPinsTest, ARemovalWaitsForThePinning) {
  FakeGpuLog log;
  log.hold_pins = true;
  HostPins pins;
  pins.Use(std::make_unique<FakeGpu>(&log, FakeGpuOptions{}));
  Bytes memory(4096);
  pins.Add(memory);
  while (log.pinning == 0) {
  }
  std::atomic<bool> removing = false;
  std::atomic<bool> removed = false;
  std::thread remover([&] {
    removing = true;
    pins.Remove(memory);
    removed = true;
  });
  while (!removing) {
  }
  for (int i = 0; i < 10'000 && !removed; ++i) std::this_thread::yield();
  EXPECT_FALSE(removed) << "while the driver pins it";
  EXPECT_EQ(pins.counts().waiting, 1u);
  log.hold_pins = false;
  log.hold_pins.notify_all();
  remover.join();
  EXPECT_EQ(log.pinned, 0u);
  EXPECT_EQ(pins.counts().pinned, 0u);
}

TEST(HostPinsTest, MemoryRemovedAtAnyMomentIsNotPinned) {
  FakeGpuLog log;
  HostPins pins;
  pins.Use(std::make_unique<FakeGpu>(&log, FakeGpuOptions{}));
  for (int i = 0; i < 200; ++i) {
    Bytes memory(4096);
    pins.Add(memory);
    if (i % 3 == 0) AwaitNoneWaiting(pins);
    pins.Remove(memory);
    ASSERT_EQ(log.pinned, 0u);
  }
}

}  // namespace
}  // namespace aquifer
