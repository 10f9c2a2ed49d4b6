// Measures what an idle node costs its host in memory and time. The program runs with its defaults;
// only the places of its socket and its files are given.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "aquifer/cache.h"
#include "io/memory/extent.h"
#include "testing/cache/served_node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/scratch_directory.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kExtentBytes = 64 * kMiB;
// Prepared before any client asks, so that the first one does not wait.
constexpr uint64_t kReadyExtents = 4;
constexpr uint64_t kPoolBytes = 1024 * kMiB;
constexpr uint64_t kBlockBytes = kMiB;

uint64_t KibOf(const std::string& line) {
  std::istringstream in(line.substr(line.find(':') + 1));
  uint64_t kib = 0;
  in >> kib;
  return kib;
}

// A figure of /proc/PID/status, in bytes.
uint64_t StatusBytes(pid_t pid, const std::string& field) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return KibOf(line) * 1024;
  }
  ADD_FAILURE() << "there is no " << field;
  return 0;
}

// How much of the pool a process has mapped, and how much of that is in memory.
struct Pool {
  uint64_t mapped_bytes = 0;
  uint64_t resident_bytes = 0;

  friend bool operator==(const Pool&, const Pool&) = default;
};
Pool PoolOf(pid_t pid) {
  Pool pool;
  bool extent = false;
  std::ifstream file(fmt::format("/proc/{}/smaps", pid));
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    const bool head = line.find('-') < line.find(' ') && line.find('-') < colon;
    if (head) extent = line.find("memfd:aquifer-extent") != std::string::npos;
    if (!extent) continue;
    if (line.starts_with("Size:")) pool.mapped_bytes += KibOf(line) * 1024;
    if (line.starts_with("Rss:")) pool.resident_bytes += KibOf(line) * 1024;
  }
  return pool;
}

// Ticks of processor time, and how often one of its threads went to sleep.
struct Activity {
  uint64_t ticks = 0;
  uint64_t sleeps = 0;
};
Activity ActivityOf(pid_t pid) {
  Activity activity;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    std::ifstream stat(task.path() / "stat");
    std::string text;
    std::getline(stat, text);
    std::istringstream behind_name(text.substr(text.rfind(')') + 2));
    std::string word;
    for (int field = 3; field <= 15 && behind_name >> word; ++field) {
      if (field >= 14) activity.ticks += std::stoull(word);  // utime, stime
    }
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) activity.sleeps += KibOf(line);
    }
  }
  return activity;
}

class IdleNode : public testing::Test {
 protected:
  void SetUp() override {
    node_.emplace(AQUIFER_PROGRAM_PATH,
                  std::vector<std::string>{"--socket", socket_, "--dram", "1GiB", "--nvme",
                                           scratch_.Sub("nvme") + ":1GiB"});
    ASSERT_TRUE(node_->AwaitReady()) << node_->said();
    ASSERT_TRUE(Settles());
  }
  // Returns true once the node has prepared its memory.
  bool Settles() {
    Pool before;
    for (int looks = 0, same = 0; looks < 600; ++looks) {
      const Pool now = PoolOf(node_->pid());
      same = now == before && now.mapped_bytes > 0 ? same + 1 : 0;
      if (same == 10) return true;
      before = now;
      std::this_thread::sleep_for(milliseconds(50));
    }
    return false;
  }

  ScratchDirectory scratch_;
  const std::string socket_ = scratch_.Sub("node.sock");
  std::optional<ServedNode> node_;
};

TEST_F(IdleNode, IsSmallAndItsFiguresAreTrue) {
  const pid_t pid = node_->pid();
  EXPECT_LT(StatusBytes(pid, "RssAnon") + StatusBytes(pid, "RssFile"), 64 * kMiB);
  const Pool pool = PoolOf(pid);
  EXPECT_LE(pool.mapped_bytes, kReadyExtents * kExtentBytes);
  EXPECT_EQ(pool.resident_bytes, pool.mapped_bytes) << "it has mapped what is not there";

  const auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  // A client that may store is connected: the node prepares all of the pool.
  EXPECT_TRUE(engine.Eventually([&] { return engine.Counter("pool_bytes") == kPoolBytes; }, 120));
  ASSERT_TRUE(Settles());
  const Pool larger = PoolOf(pid);
  EXPECT_EQ(larger.mapped_bytes, kPoolBytes);
  EXPECT_EQ(larger.resident_bytes, larger.mapped_bytes);
  EXPECT_EQ(engine.Counter("pool_bytes"), larger.mapped_bytes);
  EXPECT_LT(StatusBytes(pid, "RssAnon") + StatusBytes(pid, "RssFile"), 64 * kMiB);
}

// Ticks and sleeps are divided by the elapsed time, so a busy host does not change the result.
TEST_F(IdleNode, UsesNoProcessorTimeToSpeakOf) {
  const auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  ASSERT_EQ(engine.Store(chain), 4u);
  ASSERT_TRUE(engine.Flush().ok());
  // The node makes the pool ready at a slow pace, and is idle only after that.
  ASSERT_TRUE(engine.Eventually([&] { return engine.Counter("pool_bytes") == kPoolBytes; }, 120));
  ASSERT_TRUE(Settles());

  const auto begin = steady_clock::now();
  const Activity node_before = ActivityOf(node_->pid());
  const Activity client_before = ActivityOf(::getpid());
  std::this_thread::sleep_for(milliseconds(ByTestLevel(2000, 4000, 20'000)));
  const Activity node = ActivityOf(node_->pid());
  const Activity client = ActivityOf(::getpid());
  const double seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
  const double ticks = seconds * static_cast<double>(::sysconf(_SC_CLK_TCK));
  // The node looks at its tiers and at the host's memory twice a second, or more often if others
  // could use up the memory in less time.
  const bool ample = SystemExtentSource()->AvailableBytes() > uint64_t{14} << 30;
  EXPECT_LE(static_cast<double>(node.ticks - node_before.ticks),
            2 + (ample ? 0.001 : 0.01) * ticks);
  EXPECT_LE(static_cast<double>(node.sleeps - node_before.sleeps),
            20 + (ample ? 20 : 60) * seconds);
  EXPECT_LE(static_cast<double>(client.ticks - client_before.ticks), 2.0);
  EXPECT_LE(static_cast<double>(client.sleeps - client_before.sleeps), 20.0);
}

}  // namespace
}  // namespace aquifer
