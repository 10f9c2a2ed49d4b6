#include "io/memory/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class AvailableMemoryTest : public testing::Test {
 protected:
  AvailableMemoryTest() {
    Write("proc/meminfo",
          "MemTotal:       8388608 kB\nMemFree:  10 kB\nMemAvailable:    1048576 kB\n");
  }

  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = scratch_.Sub(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  uint64_t Available() const { return AvailableMemoryBytes(roots_) / kMiB; }

  ScratchDirectory scratch_;
  const MemoryRoots roots_ = {.proc = scratch_.Sub("proc"),
                              .cgroup = scratch_.Sub("cgroup"),
                              .huge_pages = scratch_.Sub("huge")};
};

TEST_F(AvailableMemoryTest, WithoutCgroupsTheHostDecides) { EXPECT_EQ(Available(), 1024u); }

TEST_F(AvailableMemoryTest, AHostThatDoesNotSayHasNothing) {
  Write("proc/meminfo", "MemTotal:       8388608 kB\n");
  EXPECT_EQ(Available(), 0u);
}

TEST_F(AvailableMemoryTest, TheGroupsLimitLessWhatItUsesCounts) {
  Write("proc/self/cgroup", "0::/pods/one\n");
  Write("cgroup/pods/one/memory.max", "629145600\n");  // 600 MiB
  Write("cgroup/pods/one/memory.high", "max\n");
  Write("cgroup/pods/one/memory.current", "419430400\n");  // 400 MiB
  Write("cgroup/pods/one/memory.stat", "anon 5\nfile 99\ninactive_file 104857600\nx 1\n");
  EXPECT_EQ(Available(), 300u);
}

TEST_F(AvailableMemoryTest, TheLimitIsTheHostsMemoryOrTheGroups) {
  EXPECT_EQ(MemoryLimitBytes(roots_) / kMiB, 8192u);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("cgroup/a/memory.max", "629145600\n");
  Write("cgroup/a/memory.current", "419430400\n");  // The part in use does not count.
  Write("cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(MemoryLimitBytes(roots_) / kMiB, 600u);
  Write("proc/meminfo", "MemAvailable:    1048576 kB\n");
  EXPECT_EQ(MemoryLimitBytes(roots_), 0u);
}

TEST_F(AvailableMemoryTest, TheHighMarkCountsAsALimit) {
  Write("proc/self/cgroup", "0::/pod\n");
  Write("cgroup/pod/memory.max", "max\n");
  Write("cgroup/pod/memory.high", "524288000\n");
  Write("cgroup/pod/memory.current", "104857600\n");
  EXPECT_EQ(Available(), 400u);
}

TEST_F(AvailableMemoryTest, EveryEnclosingGroupCounts) {
  Write("proc/self/cgroup", "0::/a/b/c\n");
  Write("cgroup/a/b/c/memory.max", "max\n");
  Write("cgroup/a/memory.max", "104857600\n");
  Write("cgroup/a/memory.current", "52428800\n");
  EXPECT_EQ(Available(), 50u);
  Write("cgroup/memory.max", "10485760\n");  // The root: in a container, the container itself.
  EXPECT_EQ(Available(), 10u);
}

TEST_F(AvailableMemoryTest, AGroupBeyondItsLimitLeavesNothing) {
  Write("proc/self/cgroup", "0::/pod\n");
  Write("cgroup/pod/memory.max", "104857600\n");
  Write("cgroup/pod/memory.current", "209715200\n");
  EXPECT_EQ(Available(), 0u);
}

TEST_F(AvailableMemoryTest, MorePageCacheThanUseIsAllFree) {
  Write("proc/self/cgroup", "0::/pod\n");
  Write("cgroup/pod/memory.max", "104857600\n");
  Write("cgroup/pod/memory.current", "1048576\n");
  Write("cgroup/pod/memory.stat", "inactive_file 2097152\n");
  EXPECT_EQ(Available(), 100u);
}

TEST_F(AvailableMemoryTest, TheFirstVersionOfCgroupsCountsToo) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:cpuset,memory:/docker/x\n0::/\nnonsense\n1:x:y\n");
  Write("cgroup/memory/docker/x/memory.limit_in_bytes", "314572800\n");
  Write("cgroup/memory/docker/x/memory.usage_in_bytes", "209715200\n");
  Write("cgroup/memory/docker/x/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n");
  EXPECT_EQ(Available(), 200u);
}

TEST_F(AvailableMemoryTest, InAContainerTheHostsPathLeadsNowhereAndTheMountDecides) {
  Write("proc/self/cgroup", "4:memory:/kubepods/pod1\n");
  Write("cgroup/memory/memory.limit_in_bytes", "314572800\n");
  Write("cgroup/memory/memory.usage_in_bytes", "104857600\n");
  EXPECT_EQ(Available(), 200u);
}

TEST_F(AvailableMemoryTest, PromisedHugePagesAreNotFree) {
  EXPECT_EQ(FreeHugePageBytes(roots_), 0u);
  Write("huge/free_hugepages", "10\n");
  Write("huge/resv_hugepages", "4\n");
  EXPECT_EQ(FreeHugePageBytes(roots_), 12 * kMiB);
  Write("huge/resv_hugepages", "11\n");
  EXPECT_EQ(FreeHugePageBytes(roots_), 0u);
}

TEST_F(AvailableMemoryTest, ThisHostHasMemory) { EXPECT_GT(AvailableMemoryBytes({}), 0u); }

}  // namespace
}  // namespace aquifer
