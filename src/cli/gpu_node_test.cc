// An engine on a GPU and a node, as processes. The test's own process never touches CUDA, so that
// its children can; where there is no GPU it is skipped.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "aquifer/cache.h"
#include "cli/gpu_engine.h"
#include "cli/server_process.h"
#include "cuda/cuda_device.h"

namespace aquifer {
namespace {

constexpr uint32_t kTokens = 8192;  // 1 GiB.
constexpr int kNoGpu = 77;

// A process that does `work`, and whose exit status is what it returns. It may write to `ready`.
pid_t StartProcess(const std::function<int(int ready)>& work, int* ready) {
  int ends[2] = {};
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    ::_exit(work(ends[1]));
  }
  ::close(ends[1]);
  *ready = ends[0];
  return pid;
}

int ExitStatus(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int RunProcess(const std::function<int()>& work) {
  int ready = -1;
  const pid_t pid = StartProcess([&](int) { return work(); }, &ready);
  ::close(ready);
  return ExitStatus(pid);
}

// Says why on standard error.
int Failed(const char* what, const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

// Stores, forgets, loads and compares.
int StoreAndLoad(const GpuEngineOptions& options, uint64_t seed) {
  auto engine = GpuEngine::New(options);
  if (!engine.ok()) return Failed("starting", engine.status());
  GpuEngine& e = **engine;
  for (int round = 0; round < 3; ++round) {  // Through the ring first, and then pinned.
    const Status stored = [&]() -> Status {
      AQ_RETURN_IF_ERROR(e.Evict());
      AQ_RETURN_IF_ERROR(e.Fill(seed + round));
      AQ_RETURN_IF_ERROR(e.Store());
      AQ_RETURN_IF_ERROR(e.Clear());
      AQ_RETURN_IF_ERROR(e.Load());
      AQ_ASSIGN_OR_RETURN(const bool same, e.Holds(seed + round));
      if (!same) return Status(Code::kCorrupt, "other bytes came back");
      if (round == 1) return e.AwaitPinsSeconds().status();
      return Status();
    }();
    if (!stored.ok()) return Failed("a round", stored);
  }
  return 0;
}

class GpuNodeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (RunProcess([] { return DescribeCudaDevice(0).ok() ? 0 : kNoGpu; }) == kNoGpu) {
      GTEST_SKIP() << "there is no GPU here";
    }
    const char* const given = std::getenv("AQUIFER_PROGRAM");  // Set by tools/gpu-check.
    const std::string program = given != nullptr ? given : AQUIFER_PROGRAM_PATH;
    auto node = ServerProcess::Start([&](const std::string& directory) {
      return std::vector<std::string>{program,  "serve", "--socket", directory + "/node.sock",
                                      "--dram", "3GiB",  "--nvme",   "off",
                                      "--http", "off"};
    });
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *std::move(node);
    const Status ready = node_->Await([&]() -> Status {
      AQ_ASSIGN_OR_RETURN(cache_, Connect({.socket = socket()}, {}));
      return Status();
    });
    ASSERT_TRUE(ready.ok()) << ready.ToString();
  }

  std::string socket() const { return node_->directory() + "/node.sock"; }

  CacheStats Stats() {
    StatsRequest request;
    cache_->Stats(&request);
    cache_->Wait(request, INT64_MAX);
    return request.stats;
  }

  std::unique_ptr<ServerProcess> node_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(GpuNodeTest, WhatAGpuStoresIsLoadedAgain) {
  EXPECT_EQ(RunProcess([&] { return StoreAndLoad({.socket = socket(), .tokens = kTokens}, 100); }),
            0);
  EXPECT_EQ(Stats().Counter("corrupt_blocks"), 0u);
}

// Killed at whatever moment: its slots go to nobody before it is gone, and then to everyone.
TEST_F(GpuNodeTest, AnEngineKilledInMidCopyHarmsNobody) {
  for (int kill = 0; kill < 6; ++kill) {
    int ready = -1;
    const pid_t victim = StartProcess(
        [&](int tell) {
          auto engine = GpuEngine::New({.socket = socket(), .tokens = kTokens, .token = 7});
          if (!engine.ok()) return Failed("starting", engine.status());
          while (true) {
            if (!(*engine)->Evict().ok()) return 1;
            const char byte = 1;
            if (::write(tell, &byte, 1) != 1) return 1;
            if (!(*engine)->Store().ok()) return 1;
            if (!(*engine)->Load().ok()) return 1;
          }
        },
        &ready);
    char byte = 0;
    for (int begun = 0; begun <= kill; ++begun) ASSERT_EQ(::read(ready, &byte, 1), 1);
    ::usleep(static_cast<useconds_t>(3000 + 4000 * kill));  // Somewhere in the store.
    ::kill(victim, SIGKILL);
    EXPECT_EQ(ExitStatus(victim), 128 + SIGKILL);
    ::close(ready);

    // Another engine finds its own bytes where the dead one's slots were.
    EXPECT_EQ(RunProcess([&] {
                return StoreAndLoad({.socket = socket(), .tokens = kTokens, .token = 8},
                                    1000 + 10 * static_cast<uint64_t>(kill));
              }),
              0);
    const CacheStats stats = Stats();
    EXPECT_EQ(stats.Counter("corrupt_blocks"), 0u);
    EXPECT_EQ(stats.Counter("quarantined_bytes"), 0u);
  }
}

}  // namespace
}  // namespace aquifer
