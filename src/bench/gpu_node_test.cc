// An engine on a GPU and a node, as processes. The test's own process never touches CUDA, so that
// its children can; where there is no GPU it is skipped.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>

#include "aquifer/cache.h"
#include "bench/gpu_engine.h"
#include "bench/peers/server_process.h"
#include "cuda/cuda_device.h"

namespace aquifer {
namespace {

constexpr uint32_t kTokens = 4096;  // 512 MiB.
// Two such sequences and 64 blocks more: what engines that are gone had is needed again.
constexpr const char* kDram = "1152MiB";
constexpr int kNoGpu = 77;
constexpr int kPatienceSeconds = 30;

// A process that does `work`, and whose exit status is what it returns. `ours` and what it is given
// are the ends of a connection. It dies with this one.
pid_t StartProcess(const std::function<int(int theirs)>& work, int* ours) {
  int ends[2] = {};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    ::_exit(work(ends[1]));
  }
  ::close(ends[1]);
  *ours = ends[0];
  return pid;
}

int ExitStatus(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// It may be dying, but its memory may still be written to.
bool IsThere(pid_t pid) {
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT), 0);
  return info.si_pid == 0;
}

// Its threads do nothing from then on; a GPU goes on with what it was told.
void Stop(pid_t pid) {
  ::kill(pid, SIGSTOP);
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WEXITED | WNOWAIT), 0);
  EXPECT_EQ(info.si_code, CLD_STOPPED);
}

bool Tell(int end) {
  const char byte = 1;
  return ::write(end, &byte, 1) == 1;
}

// False: the other process has ended.
bool IsTold(int end) {
  char byte = 0;
  return ::read(end, &byte, 1) == 1;
}

int RunProcess(const std::function<int()>& work) {
  int ours = -1;
  const pid_t pid = StartProcess([&](int) { return work(); }, &ours);
  ::close(ours);
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

// Stores and loads for ever, as fast as it can; every load is checked by its sums. With a `gate` it
// holds nothing before each store, tells so, and waits to be told.
int StoreAndLoadForEver(const GpuEngineOptions& options, std::optional<int> gate) {
  auto engine = GpuEngine::New(options);
  if (!engine.ok()) return Failed("starting", engine.status());
  while (true) {
    const Status moved = [&]() -> Status {
      AQ_RETURN_IF_ERROR((*engine)->Evict());
      if (gate.has_value() && !(Tell(*gate) && IsTold(*gate))) {
        return Status(Code::kUnavailable, "nobody waits for it");
      }
      AQ_RETURN_IF_ERROR((*engine)->Store());
      return (*engine)->Load();
    }();
    if (!moved.ok()) return Failed("an engine beside another", moved);
  }
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
                                      "--dram", kDram,   "--nvme",   "off",
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

  uint64_t LentSlots() { return Stats().Counter("lent_slots"); }

  // Once the node has done what it was asked to by processes that are stopped now.
  uint64_t SettledLentSlots() {
    uint64_t lent = LentSlots();
    for (int same = 0; same < 5;) {
      ::usleep(1000);
      const uint64_t now = LentSlots();
      same = now == lent ? same + 1 : 0;
      lent = now;
    }
    return lent;
  }

  bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 1000 * kPatienceSeconds; ++i) {
      if (holds()) return true;
      ::usleep(1000);
    }
    return false;
  }

  std::unique_ptr<ServerProcess> node_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(GpuNodeTest, BlocksThatAGpuStoresAreLoadedAgain) {
  EXPECT_EQ(RunProcess([&] { return StoreAndLoad({.socket = socket(), .tokens = kTokens}, 100); }),
            0);
  EXPECT_EQ(Stats().Counter("corrupt_blocks"), 0u);
}

// Engines that are killed beside one that goes on.
class GpuKillTest : public GpuNodeTest {
 protected:
  static constexpr int kKills = 4;
  static constexpr uint64_t kBlocks = kTokens / 16;

  void SetUp() override {
    GpuNodeTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const GpuEngineOptions options{.socket = socket(), .tokens = kTokens, .token = 8};
    survivor_ = StartProcess([&](int) { return StoreAndLoadForEver(options, {}); }, &survivor_end_);
    ASSERT_TRUE(StoresOn());
  }
  void TearDown() override {
    if (victim_ != 0) EndVictim();
    if (survivor_ == 0) return;
    ::kill(survivor_, SIGCONT);
    ::kill(survivor_, SIGTERM);
    EXPECT_EQ(ExitStatus(survivor_), 128 + SIGTERM) << "by itself it ends only with a failure";
    ::close(survivor_end_);
    EXPECT_EQ(Stats().Counter("corrupt_blocks"), 0u);
    EXPECT_EQ(Stats().Counter("corrupt_reported"), 0u);
  }

  // Whether somebody stores two sequences from now on.
  bool StoresOn() {
    const uint64_t before = Stats().Counter("committed");
    return Eventually([&] { return Stats().Counter("committed") >= before + 2 * kBlocks; });
  }

  // It has stored and loaded once, holds nothing, and waits to be told to go on.
  bool StartVictim() {
    const GpuEngineOptions options{.socket = socket(), .tokens = kTokens, .token = 7};
    victim_ = StartProcess([&](int theirs) { return StoreAndLoadForEver(options, theirs); },
                           &victim_end_);
    return IsTold(victim_end_) && Tell(victim_end_) && IsTold(victim_end_);
  }

  // Stops it somewhere in its store or load: there it holds slots, on top of the `others`. Returns
  // how many are lent then.
  uint64_t StopVictimInMidMove(uint64_t others) {
    EXPECT_TRUE(Tell(victim_end_));
    for (int tries = 0; tries < 100; ++tries) {
      ::usleep(1000);
      Stop(victim_);
      const uint64_t lent = SettledLentSlots();
      if (lent > others) return lent;
      ::kill(victim_, SIGCONT);
    }
    return others;
  }

  void EndVictim() {
    ::kill(victim_, SIGKILL);
    EXPECT_EQ(ExitStatus(victim_), 128 + SIGKILL);
    ::close(victim_end_);
    victim_ = 0;
    EXPECT_TRUE(Eventually([&] { return Stats().Counter("quarantined_bytes") == 0; }));
  }

  pid_t survivor_ = 0;
  int survivor_end_ = -1;
  pid_t victim_ = 0;
  int victim_end_ = -1;
};

// While its GPU writes to slots. The other engine stores and loads all the while, with not much
// more room than both need: it would find damage in what it was given too early, and no room if
// what the dead had did not come back.
TEST_F(GpuKillTest, AnEngineKilledInMidCopyHarmsNobody) {
  uint64_t in_mid_store = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    ASSERT_TRUE(StartVictim()) << "there was no room for it";
    const uint64_t aborted = Stats().Counter("aborted");
    ASSERT_TRUE(Tell(victim_end_));
    ::usleep(
        static_cast<useconds_t>(1000 + 2000 * kill));  // A store takes ten milliseconds or more.
    EndVictim();
    in_mid_store += Stats().Counter("aborted") > aborted ? 1 : 0;
    ASSERT_TRUE(StoresOn());
  }
  EXPECT_GT(in_mid_store, 0u) << "no kill came while it stored";
}

// The victim's loans stay lent for as long as its process is there, and end with it. The other
// engine is stopped meanwhile, so that all that changes is the victim's.
TEST_F(GpuKillTest, LoansOfAKilledEngineStayUntilItsProcessIsGone) {
  for (int kill = 0; kill < kKills; ++kill) {
    ASSERT_TRUE(StartVictim()) << "there was no room for it";
    Stop(survivor_);
    const uint64_t others = SettledLentSlots();
    const uint64_t lent = StopVictimInMidMove(others);
    ASSERT_GT(lent, others) << "it was never found to hold anything";
    ::kill(victim_, SIGKILL);
    uint64_t least = lent;
    while (true) {
      const uint64_t now = LentSlots();
      if (!IsThere(victim_)) break;
      least = std::min(least, now);
    }
    EXPECT_EQ(least, lent) << "slots that it could still write to were given back";
    EndVictim();
    EXPECT_TRUE(Eventually([&] { return LentSlots() == others; }));
    ::kill(survivor_, SIGCONT);
    ASSERT_TRUE(StoresOn());
  }
}

}  // namespace
}  // namespace aquifer
