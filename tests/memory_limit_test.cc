// Tests a node and its engines under one memory limit, as in a container. An engine has mapped and
// leased all of a pool that takes most of the memory, while the node is killed and started again.
// No process is killed for lack of memory.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "testing/cache/served_node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kExtentBytes = 64 * kMiB;
constexpr uint64_t kLimitBytes = 640 * kMiB;
constexpr uint64_t kPoolBytes = 6 * kExtentBytes;  // 60 % of the limit.
constexpr uint64_t kBlockBytes = kMiB;
constexpr size_t kBlocks = 6 * 60;  // A few less than the pool holds.
constexpr size_t kBatch = 20;
constexpr const char* kEngineFlag = "--engine-child";
constexpr const char* kHogFlag = "--hog-child";

// ---- A memory limit ----

bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// The directory of this process's own memory group, and whether it is of cgroup version 1.
std::optional<std::pair<std::string, bool>> OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  std::optional<std::pair<std::string, bool>> own;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers == "memory") return {{"/sys/fs/cgroup/memory" + path, true}};
    if (controllers.empty()) own = {{"/sys/fs/cgroup" + path, false}};
  }
  return own;
}

class MemoryGroup {
 public:
  // Returns null, and the reason, if this process may not make one.
  static std::unique_ptr<MemoryGroup> New(uint64_t bytes, std::string* why) {
    const auto own = OwnGroup();
    if (!own.has_value()) return *why = "this host has no groups of memory", nullptr;
    std::unique_ptr<MemoryGroup> group(
        new MemoryGroup(fmt::format("{}/aquifer-test-{}", own->first, ::getpid()), own->second));
    std::error_code error;
    if (!own->second) WriteTo(own->first + "/cgroup.subtree_control", "+memory");
    if (!std::filesystem::create_directory(group->path_, error)) {
      return *why = "no group of memory can be made here: " + error.message(), nullptr;
    }
    const std::string limit = own->second ? "/memory.limit_in_bytes" : "/memory.max";
    if (!WriteTo(group->path_ + limit, std::to_string(bytes))) {
      return *why = "no limit of memory can be set here", nullptr;
    }
    WriteTo(group->path_ + (own->second ? "/memory.swappiness" : "/memory.swap.max"), "0");
    return group;
  }
  // Call when no process is in the group any more.
  ~MemoryGroup() {
    for (int i = 0; i < 100 && ::rmdir(path_.c_str()) != 0 && errno == EBUSY; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }

  // A command that runs another one in the group.
  std::vector<std::string> Wrapper() const {
    return {"sh", "-c", fmt::format("echo $$ > {}/cgroup.procs && exec \"$@\"", path_), "sh"};
  }
  uint64_t Kills() const {
    std::ifstream file(path_ + (first_version_ ? "/memory.oom_control" : "/memory.events"));
    std::string name;
    for (uint64_t value = 0; file >> name >> value;) {
      if (name == "oom_kill") return value;
    }
    ADD_FAILURE() << "the group does not count those who were killed";
    return 0;
  }

 private:
  MemoryGroup(std::string path, bool first_version)
      : path_(std::move(path)), first_version_(first_version) {}

  const std::string path_;
  const bool first_version_;
};

// ---- The children ----

// Takes far more memory than the limit.
int RunHog() {
  DieWithParent();
  void* const memory = ::mmap(nullptr, 2 * kLimitBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  AQ_CHECK(memory != MAP_FAILED);
  std::memset(memory, 1, 2 * kLimitBytes);
  return 0;
}

uint64_t MappedBytes() {
  std::ifstream maps("/proc/self/maps");
  uint64_t extents = 0;
  for (std::string line; std::getline(maps, line);) {
    extents += line.find("memfd:aquifer-extent") != std::string::npos ? 1 : 0;
  }
  return extents * kExtentBytes;
}

// Stores as much as fits, leases the blocks that are there, and returns them when told.
class Filler {
 public:
  explicit Filler(const std::string& socket)
      : cache_(*Connect({.socket = socket, .timeout_nanos = 60 * kDefaultTimeoutNanos}, {})),
        engine_(cache_.get(), LayoutOfBytes(kBlockBytes)) {}

  std::string Do(const std::string& command) {
    if (command == "fill")
      return engine_.Eventually([this] { return Fill(); }) ? "full" : "not full";
    if (command == "store") return Store();
    if (command == "lease") return Lease();
    if (command == "release") return Release();
    return fmt::format("{} matched", engine_.Matched(chain()));
  }

 private:
  Chain chain() const { return Chain(engine_.layout(), {.seed = 1, .blocks = kBlocks}); }

  // While the pool still grows, the last blocks may take the place of the first.
  bool Fill() { return StoreOnce() == kBlocks && engine_.Matched(chain()) == kBlocks; }
  // Stores as much as the node takes, for a while.
  std::string Store() {
    size_t most = 0;
    for (int tries = 0; tries < 3 && most < kBlocks; ++tries) {
      std::this_thread::sleep_for(milliseconds(20));  // The node prepares memory meanwhile.
      const size_t stored = StoreOnce();
      if (stored > most) tries = 0;
      most = std::max(most, stored);
    }
    return fmt::format("stored {}", most);
  }
  size_t StoreOnce() {
    const Chain all = chain();
    size_t there = 0;
    for (size_t first = 0; first < all.size(); first += kBatch) {
      const BlockRange range{.first = first, .count = kBatch};
      ReserveRequest reserve;
      reserve.chain = engine_.Slice(all, range);
      reserve.parent = all.parent(first);
      reserve.position = static_cast<uint32_t>(first);
      cache_->Reserve(&reserve);
      engine_.Finish(reserve);
      for (const ReserveOp& op : reserve.ops) there += op.outcome == ReserveOutcome::kHave ? 1 : 0;
      const auto commit = engine_.FillAndCommit(all, range, reserve);
      for (const CommitOp& op : commit->ops) there += op.published ? 1 : 0;
    }
    return there;
  }
  std::string Lease() {
    fetch_ = engine_.Fetch(chain());
    size_t leased = 0;
    for (const FetchOp& op : fetch_->ops) leased += op.lease != 0 ? 1 : 0;
    return fmt::format("{} {}", leased, MappedBytes());
  }
  std::string Release() {
    const Recalled recalled = engine_.CheckAndRelease(chain(), {}, *fetch_);
    return fmt::format("{} right, {} wrong", recalled.right, recalled.wrong + recalled.corrupt);
  }

  const std::unique_ptr<Cache> cache_;
  TestEngine engine_;
  std::unique_ptr<FetchRequest> fetch_;
};

int RunEngine(const std::string& socket) {
  DieWithParent();
  Filler filler(socket);
  TellParent("ready");
  while (const auto command = HearParent()) TellParent(filler.Do(*command));
  return 0;
}

// ---- The test ----

class MemoryLimit : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    group_ = MemoryGroup::New(kLimitBytes, &why);
    if (group_ == nullptr) GTEST_SKIP() << why;
    std::ofstream(config_) << "[dram]\nsize = \"60%\"\nkeep_available = \"96MiB\"\n";
  }
  void StartNode() {
    node_.emplace(AQUIFER_PROGRAM_PATH,
                  std::vector<std::string>{"--config", config_, "--socket", socket_, "--nvme",
                                           "off", "--http", "off"},
                  group_->Wrapper());
    ASSERT_TRUE(node_->AwaitReady()) << node_->said();
  }
  std::unique_ptr<ChildProcess> StartEngine() {
    auto engine = ChildProcess::Start({kEngineFlag, socket_}, group_->Wrapper());
    EXPECT_EQ(engine->ReadLine(seconds(60)), "ready");
    return engine;
  }
  static std::string Ask(ChildProcess* child, const std::string& command) {
    child->Tell(command);
    return child->ReadLine(seconds(120)).value_or("dead");
  }

  std::unique_ptr<MemoryGroup> group_;  // Destroyed last.
  ScratchDirectory scratch_;
  const std::string socket_ = scratch_.Sub("node.sock");
  const std::string config_ = scratch_.Sub("aquifer.toml");
  std::optional<ServedNode> node_;
};

TEST_F(MemoryLimit, ANodeThatIsKilledAndStartedAgainKillsNobody) {
  // Checks that the limit works.
  const auto hog = ChildProcess::Start({kHogFlag}, group_->Wrapper());
  ASSERT_EQ(hog->Wait(), -SIGKILL);
  const uint64_t kills = group_->Kills();
  ASSERT_GT(kills, 0u);

  ASSERT_NO_FATAL_FAILURE(StartNode());
  EXPECT_THAT(node_->said(), testing::HasSubstr("384MiB (60% of 640MiB)"));
  const auto holder = StartEngine();
  ASSERT_EQ(Ask(holder.get(), "fill"), "full");
  const std::string held = Ask(holder.get(), "lease");
  uint64_t blocks = 0;
  uint64_t mapped_bytes = 0;
  ASSERT_EQ(std::sscanf(held.c_str(), "%lu %lu", &blocks, &mapped_bytes), 2) << held;
  EXPECT_EQ(mapped_bytes, kPoolBytes) << "it has not mapped the whole pool";
  EXPECT_EQ(blocks, kBlocks);

  for (int life = 0; life < ByTestLevel(1, 2, 10); ++life) {
    node_->Kill();
    node_->Wait();
    ASSERT_NO_FATAL_FAILURE(StartNode());  // While the old pool is still held.
    const auto other = StartEngine();
    EXPECT_THAT(Ask(other.get(), "store"), testing::StartsWith("stored "));
    EXPECT_EQ(group_->Kills(), kills) << "in life " << life;
  }
  // Leased blocks are unchanged, and when they are released there is room again.
  EXPECT_EQ(Ask(holder.get(), "release"), fmt::format("{} right, 0 wrong", blocks));
  const auto last = StartEngine();
  EXPECT_EQ(Ask(last.get(), "fill"), "full");
  EXPECT_EQ(group_->Kills(), kills);
  const std::string all = fmt::format("{} matched", kBlocks);
  std::string matched;  // The client of the last node finds the new one by itself, in a moment.
  for (int tries = 0; tries < 600 && matched != all; ++tries) {
    matched = Ask(holder.get(), "match");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(matched, all);
  node_->Signal(SIGTERM);
  EXPECT_EQ(node_->Wait(), 0);
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  const std::string_view flag = argc > 1 ? argv[1] : "";
  if (flag == aquifer::kHogFlag) return aquifer::RunHog();
  if (flag == aquifer::kEngineFlag && argc == 3) return aquifer::RunEngine(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
