#include "node/config/node_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "node/config/admin_socket.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Kind = SizeChoice::Kind;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A host of 64 GiB, 40 of them available, whose directories are all in a scratch directory.
class NodePlanTest : public testing::Test {
 protected:
  NodePlanTest() {
    host_.memory = {.proc = scratch_.Sub("proc"),
                    .cgroup = scratch_.Sub("cgroup"),
                    .huge_pages = scratch_.Sub("huge")};
    host_.run_directory = scratch_.Sub("run");
    host_.runtime_directory = scratch_.Sub("runtime");
    host_.temporary_directory = scratch_.path();
    host_.state_directory = scratch_.Sub("state");
    host_.state_home = scratch_.Sub("home/.local/state");
    host_.uid = geteuid();
    std::filesystem::create_directories(scratch_.Sub("proc"));
    std::filesystem::create_directory(host_.runtime_directory);
    SetMemory(64 * kGiB, 40 * kGiB);
    config_.nvme_directories = std::vector<std::string>();
  }

  void SetMemory(uint64_t total, uint64_t available) {
    std::ofstream(scratch_.Sub("proc/meminfo"))
        << "MemTotal: " << total / 1024 << " kB\nMemAvailable: " << available / 1024 << " kB\n";
  }

  // What cannot be made: a file is in its place.
  static void Block(const std::string& path) { std::ofstream(path) << "in the way"; }

  NodePlan Plan() {
    auto plan = PlanNode(config_, host_);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    return plan.ok() ? *plan : NodePlan{};
  }
  Status Refusal() {
    const auto plan = PlanNode(config_, host_);
    EXPECT_FALSE(plan.ok());
    return plan.status();
  }

  ScratchDirectory scratch_;
  NodeHost host_;
  NodeConfig config_;
};

// ---- Socket ----

// As in the log.
std::string Described(const NodePlan& plan, const std::string& file = "") {
  return TableText("", DescribePlan(plan, file));
}

TEST_F(NodePlanTest, TheSocketIsInTheSystemsPlaceWhereItCanBe) {
  EXPECT_EQ(Plan().socket, scratch_.Sub("run/node.sock"));
  struct stat info{};
  ASSERT_EQ(stat(host_.run_directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755u);  // Engines of other users come through.
}

TEST_F(NodePlanTest, ElseItIsInTheUsersPlace) {
  Block(host_.run_directory);
  EXPECT_EQ(Plan().socket, scratch_.Sub("runtime/aquifer.sock"));
}

TEST_F(NodePlanTest, ElseInAPrivateDirectory) {
  Block(host_.run_directory);
  host_.runtime_directory = "";
  const std::string directory = scratch_.Sub("aquifer-" + std::to_string(geteuid()));
  EXPECT_EQ(Plan().socket, directory + "/node.sock");
  EXPECT_EQ(Plan().socket, directory + "/node.sock");  // It is there by now.
  struct stat info{};
  ASSERT_EQ(stat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(NodePlanTest, APrivateDirectoryThatSomebodyPreparedIsNotUsed) {
  Block(host_.run_directory);
  host_.runtime_directory = "";
  const std::string directory = scratch_.Sub("aquifer-" + std::to_string(geteuid()));
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr(directory), HasSubstr("--socket")));
  ASSERT_EQ(rmdir(directory.c_str()), 0);
  ASSERT_EQ(mkdir(scratch_.Sub("elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(symlink(scratch_.Sub("elsewhere").c_str(), directory.c_str()), 0);
  EXPECT_THAT(Refusal().message(), HasSubstr(directory));
}

TEST_F(NodePlanTest, ASocketThatWasAskedForNeedsItsDirectory) {
  config_.socket = scratch_.Sub("asked.sock");
  EXPECT_EQ(Plan().socket, config_.socket);
  config_.socket = scratch_.Sub("nowhere/asked.sock");
  EXPECT_EQ(Refusal().code(), Code::kInvalid);
  EXPECT_THAT(Refusal().message(), HasSubstr("nowhere is not a directory"));
}

// ---- DRAM ----

TEST_F(NodePlanTest, WithoutASizeItTakesAQuarterOfWhatIsAvailable) {
  EXPECT_EQ(Plan().cache.dram_bytes, 10 * kGiB);
  EXPECT_THAT(Plan().dram_reason, HasSubstr("40GiB"));
  EXPECT_THAT(Plan().warnings, IsEmpty());
}

TEST_F(NodePlanTest, TheCgroupCountsAsTheHost) {
  std::filesystem::create_directories(scratch_.Sub("proc/self"));
  std::filesystem::create_directories(scratch_.Sub("cgroup/pod"));
  std::ofstream(scratch_.Sub("proc/self/cgroup")) << "0::/pod\n";
  std::ofstream(scratch_.Sub("cgroup/pod/memory.max")) << 8 * kGiB << "\n";
  std::ofstream(scratch_.Sub("cgroup/pod/memory.current")) << 4 * kGiB << "\n";
  EXPECT_EQ(Plan().cache.dram_bytes, 1 * kGiB);
  config_.dram = {Kind::kPercent, 25};
  EXPECT_EQ(Plan().cache.dram_bytes, 2 * kGiB);  // Of the limit.
  config_.dram = {Kind::kBytes, 9 * kGiB};
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("dram.size"), HasSubstr("8GiB")));
}

TEST_F(NodePlanTest, WhatThisHostCannotDoIsRefusedWithItsPlace) {
  config_ = *ParseNodeConfig("socket = \"/x\"\n[dram]\nsize = \"900GiB\"\n", "aquifer.toml");
  EXPECT_THAT(Refusal().message(), StartsWith("aquifer.toml:3: dram.size: 900GiB is more"));
  ASSERT_TRUE(ApplyOverrides({.dram = "800GiB"}, &config_).ok());
  EXPECT_THAT(Refusal().message(), StartsWith("--dram: dram.size: 800GiB is more"));
  Block(scratch_.Sub("file"));
  ASSERT_TRUE(ApplyOverrides({.dram = "1GiB", .nvme = {scratch_.Sub("file")}}, &config_).ok());
  EXPECT_THAT(Refusal().message(), StartsWith("--nvme: nvme.directories: "));
}

TEST_F(NodePlanTest, APercentageIsOfAllThatThereIs) {
  config_.dram = {Kind::kPercent, 50};
  EXPECT_EQ(Plan().cache.dram_bytes, 32 * kGiB);
  config_.dram = {Kind::kPercent, 33};
  EXPECT_EQ(Plan().cache.dram_bytes % (64 * kMiB), 0u);  // In whole extents.
  SetMemory(1 * kGiB, 1 * kGiB);
  config_.dram = {Kind::kPercent, 1};
  EXPECT_THAT(Refusal().message(), HasSubstr("1% of 1GiB is less than 64MiB"));
}

TEST_F(NodePlanTest, MoreThanIsAvailableIsAWarningAndMoreThanThereIsAnError) {
  config_.dram = {Kind::kBytes, 50 * kGiB};
  EXPECT_EQ(Plan().cache.dram_bytes, 50 * kGiB);
  EXPECT_THAT(Plan().warnings, ElementsAre(HasSubstr("only 40GiB of memory are available")));
  config_.dram = {Kind::kBytes, 65 * kGiB};
  EXPECT_EQ(Refusal().code(), Code::kInvalid);
}

TEST_F(NodePlanTest, ASmallHostGivesOneExtentOrSaysThatItCannot) {
  SetMemory(kGiB, 150 * kMiB);
  config_.keep_available_bytes = 50 * kMiB;
  EXPECT_EQ(Plan().cache.dram_bytes, 64 * kMiB);
  config_.keep_available_bytes = 512 * kMiB;
  EXPECT_EQ(Refusal().code(), Code::kNoSpace);
  EXPECT_THAT(Refusal().message(), HasSubstr("dram.keep_available"));
}

TEST_F(NodePlanTest, MoreThanTheHostHasCannotBeKeptAvailable) {
  SetMemory(4 * kGiB, 3 * kGiB);
  config_.dram = {Kind::kBytes, kGiB};
  for (const uint64_t keep : {4 * kGiB - 63 * kMiB, 4 * kGiB, 100 * kGiB}) {
    config_.keep_available_bytes = keep;
    EXPECT_EQ(Refusal().code(), Code::kInvalid);
    EXPECT_THAT(Refusal().message(), HasSubstr("dram.keep_available: of the 4GiB"));
  }
  config_.keep_available_bytes = 4 * kGiB - 64 * kMiB;  // A time may come.
  EXPECT_THAT(Plan().warnings, ElementsAre(HasSubstr("the pool stays smaller")));
}

// ---- NVMe ----

TEST_F(NodePlanTest, WithoutDirectoriesNvmeIsInTheSystemsPlace) {
  config_.nvme_directories.reset();
  config_.nvme = {Kind::kBytes, 300 * kMiB};
  const NodePlan plan = Plan();
  EXPECT_THAT(plan.cache.nvme_directories, ElementsAre(scratch_.Sub("state/nvme")));
  EXPECT_EQ(plan.cache.nvme_bytes, 300 * kMiB);
  struct stat info{};
  ASSERT_EQ(stat(scratch_.Sub("state/nvme").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(NodePlanTest, ElseNvmeIsInTheUsersPlace) {
  config_.nvme_directories.reset();
  config_.nvme = {Kind::kBytes, 300 * kMiB};
  Block(host_.state_directory);
  EXPECT_THAT(Plan().cache.nvme_directories,
              ElementsAre(scratch_.Sub("home/.local/state/aquifer/nvme")));
}

TEST_F(NodePlanTest, ElseThereIsNoneAndAWarning) {
  config_.nvme_directories.reset();
  Block(host_.state_directory);
  host_.state_home = "";
  EXPECT_THAT(Plan().cache.nvme_directories, IsEmpty());
  EXPECT_THAT(Plan().warnings, ElementsAre(HasSubstr("there is no NVMe tier")));
}

TEST_F(NodePlanTest, AMemoryFileSystemIsNoPlaceForNvme) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  config_.nvme_directories.reset();
  std::string memory = "/dev/shm/node-plan-XXXXXX";
  ASSERT_NE(mkdtemp(memory.data()), nullptr);
  host_.state_directory = memory;
  host_.state_home = "";
  EXPECT_THAT(Plan().cache.nvme_directories, IsEmpty());
  // Whoever asks for it gets it, with a warning.
  config_.nvme_directories = {memory};
  config_.nvme = {Kind::kBytes, kMiB};
  EXPECT_THAT(Plan().cache.nvme_directories, ElementsAre(memory));
  EXPECT_THAT(Plan().warnings, Contains(HasSubstr("is in memory")));
  std::filesystem::remove_all(memory);
}

TEST_F(NodePlanTest, TheAutomaticSizeLeavesHalfAndDoesNotShrinkWithWhatWeStored) {
  DriveRoom room = {.device = 1, .total_bytes = 1000 * kGiB, .free_bytes = 100 * kGiB};
  host_.room_on = [&room](const std::string&) { return room; };
  config_.nvme_directories = {scratch_.Sub("drive")};  // Not there yet.
  EXPECT_EQ(Plan().cache.nvme_bytes, 32 * kGiB);
  // After a run that filled it.
  room.free_bytes -= 32 * kGiB;
  room.ours_bytes += 32 * kGiB;
  EXPECT_EQ(Plan().cache.nvme_bytes, 32 * kGiB);
  room.free_bytes = 900 * kGiB;
  EXPECT_EQ(Plan().cache.nvme_bytes, 256 * kGiB);
  room = {.device = 1, .total_bytes = 10 * kGiB, .free_bytes = kGiB};
  EXPECT_THAT(Plan().cache.nvme_directories, IsEmpty());
  EXPECT_THAT(Plan().warnings, ElementsAre(HasSubstr("too little room")));
}

TEST_F(NodePlanTest, DirectoriesOnOneFileSystemShareItAndTheSmallestDriveDecides) {
  const auto on = [](uint64_t device, uint64_t free_bytes) {
    return DriveRoom{.device = device, .total_bytes = 1000 * kGiB, .free_bytes = free_bytes};
  };
  config_.nvme_directories = {"/one", "/two"};
  host_.room_on = [&](const std::string&) { return on(1, 100 * kGiB); };
  EXPECT_EQ(Plan().cache.nvme_bytes, 2 * 16 * kGiB);
  host_.room_on = [&](const std::string& directory) {
    return directory == "/one" ? on(1, 100 * kGiB) : on(2, 10 * kGiB);
  };
  EXPECT_EQ(Plan().cache.nvme_bytes, 2 * 4 * kGiB);
  config_.nvme = {Kind::kBytes, 30 * kGiB};
  EXPECT_EQ(Plan().cache.nvme_bytes, 30 * kGiB);
  EXPECT_THAT(Plan().warnings, ElementsAre(AllOf(HasSubstr("/two"), HasSubstr("become full"))));
}

TEST_F(NodePlanTest, TheKernelIsAskedForTheRoom) {
  config_.nvme_directories = {scratch_.Sub("drive/deeper")};
  const NodePlan plan = Plan();
  if (!plan.cache.nvme_directories.empty()) {
    EXPECT_TRUE(std::has_single_bit(plan.cache.nvme_bytes));
  }
}

TEST_F(NodePlanTest, MoreThanTheFileSystemHoldsIsRefused) {
  config_.nvme_directories = {scratch_.Sub("drive")};
  config_.nvme = {Kind::kBytes, uint64_t{1} << 59};
  EXPECT_EQ(Refusal().code(), Code::kInvalid);
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("nvme.size"), HasSubstr("give less")));
}

TEST_F(NodePlanTest, SegmentsThatAreTooLongForADriveAreRefused) {
  config_.nvme_directories = {scratch_.Sub("one"), scratch_.Sub("two")};
  config_.nvme = {Kind::kBytes, 512 * kMiB};
  config_.nvme_segment_bytes = 64 * kMiB;
  EXPECT_EQ(Plan().cache.nvme_bytes, 512 * kMiB);
  config_.nvme_segment_bytes = 65 * kMiB;
  EXPECT_EQ(Refusal().code(), Code::kInvalid);
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("nvme.segment"), HasSubstr("at most 64MiB")));
}

// ---- The rest ----

TEST_F(NodePlanTest, TheCacheGetsWhatTheFileSays) {
  config_.keep_available_bytes = kGiB;
  config_.nvme_engine = NvmeEngine::kThreads;
  config_.nvme_sync = true;
  config_.nvme_segment_bytes = 64 * kMiB;  // Without drives it does not matter.
  config_.nvme_write_bytes_per_second = 5 * kMiB;
  config_.nvme_written_part = 0.65;
  config_.worker_threads = 7;
  config_.overdue_seconds = 9;
  const CacheOptions cache = Plan().cache;
  EXPECT_EQ(cache.keep_available_bytes, kGiB);
  EXPECT_EQ(cache.nvme_engine, NvmeEngine::kThreads);
  EXPECT_TRUE(cache.nvme_sync);
  EXPECT_EQ(cache.nvme_segment_bytes, 64 * kMiB);
  EXPECT_EQ(cache.write_bytes_per_second, 5 * kMiB);
  EXPECT_EQ(cache.nvme_written_part, 0.65);
  EXPECT_EQ(cache.worker_threads, 7u);
  EXPECT_EQ(cache.overdue_nanos, 9'000'000'000);
}

TEST_F(NodePlanTest, ThePlanSaysHowMuchIsWritten) {
  config_.nvme_directories = {scratch_.Sub("drive")};
  config_.nvme = {Kind::kBytes, 300 * kMiB};
  EXPECT_THAT(Described(Plan(), ""), Not(HasSubstr("written")));
  config_.nvme_write_bytes_per_second = 5 * kMiB;
  config_.nvme_written_part = 0.65;
  EXPECT_THAT(Described(Plan(), ""),
              AllOf(HasSubstr(", written at most 5MiB/s"), HasSubstr(", 65 % of blocks written")));
}

TEST_F(NodePlanTest, WritingOnlyAPartNeedsThePolicyThatLearns) {
  config_.nvme_written_part = 0.65;
  EXPECT_THAT(Described(Plan(), ""), HasSubstr("policy       learned"));
  config_.policy = EvictionPolicy::kLru;
  EXPECT_THAT(Refusal().message(),
              AllOf(HasSubstr("nvme.written_part"), HasSubstr("likely to return")));
  config_.nvme_written_part = 1;
  EXPECT_EQ(Plan().cache.eviction, EvictionPolicy::kLru);
}

TEST_F(NodePlanTest, HttpForOtherHostsIsAWarning) {
  EXPECT_THAT(Plan().warnings, IsEmpty());
  config_.http = HttpAddress{.host = "0.0.0.0"};
  EXPECT_THAT(Plan().warnings, ElementsAre(HasSubstr("from other hosts")));
}

TEST_F(NodePlanTest, TheDescriptionNamesEverythingThatIsUsed) {
  config_.nvme_directories = {scratch_.Sub("drive")};
  config_.nvme = {Kind::kBytes, 300 * kMiB};
  config_.nvme_sync = true;
  config_.http = HttpAddress{.host = "::1", .port = 80};
  config_.record_file = "/srv/trace";
  const std::string text = Described(Plan(), "/etc/aquifer.toml");
  EXPECT_THAT(text, AllOf(HasSubstr("/etc/aquifer.toml"), HasSubstr("run/node.sock"),
                          HasSubstr("[::1]:80"), HasSubstr("10GiB (of 40GiB available)"),
                          HasSubstr("512MiB of memory always left"), HasSubstr("300MiB in "),
                          HasSubstr("synced")));
  EXPECT_THAT(text, AllOf(HasSubstr("one, local"), HasSubstr("/srv/trace"), HasSubstr("within 20s"),
                          HasSubstr("encryption   off, because there is no master key")));
  NodePlan encrypted = Plan();
  encrypted.encrypted = true;
  EXPECT_THAT(Described(encrypted),
              HasSubstr("encryption   on, with the master key in the environment"));
  config_ = NodeConfig{};
  config_.nvme_directories = std::vector<std::string>();
  config_.http.reset();
  EXPECT_THAT(Described(Plan(), ""),
              AllOf(HasSubstr("config       defaults"), HasSubstr("nvme         off"),
                    HasSubstr("http         off")));
}

TEST(AdminSocketTest, TheAdministratorsSocketIsBesideTheNodes) {
  EXPECT_EQ(AdminSocketBeside("/run/aquifer/node.sock"), "/run/aquifer/node.admin.sock");
  EXPECT_EQ(AdminSocketBeside("/run/user/1/aquifer.sock"), "/run/user/1/aquifer.admin.sock");
  EXPECT_EQ(AdminSocketBeside("/tmp/x"), "/tmp/x.admin.sock");
}

TEST(NodeHostTest, ThisHostIsDescribed) {
  const NodeHost host = ThisHost();
  EXPECT_EQ(host.uid, geteuid());
  EXPECT_GT(AvailableMemoryBytes(host.memory), 0u);
}

}  // namespace
}  // namespace aquifer
