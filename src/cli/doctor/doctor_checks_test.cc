#include "cli/doctor/doctor_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace aquifer {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A host without fault.
HostFacts GoodHost() {
  HostFacts facts;
  facts.cpu = "a processor";
  facts.cores = 64;
  facts.checksum = "avx512";
  facts.checksum_is_vector = true;
  facts.extent_in_huge_pages = true;
  facts.transparent = "advise";
  facts.uring.defer_taskrun = facts.uring.coop_taskrun = true;
  facts.uring.file_table = facts.uring.buffer_table = true;
  facts.open_files = 1 << 20;
  facts.open_files_most = 1 << 20;
  facts.host_memory_bytes = 512 * kGiB;
  facts.memory_limit_bytes = 512 * kGiB;
  facts.memory_available_bytes = 400 * kGiB;
  facts.pidfd = facts.peer_pidfd = true;
  facts.features = {{"io_uring", ""}, {"CUDA", ""}};
  facts.gpus = {"NVIDIA H200", "NVIDIA H200"};
  facts.gpu_driver = facts.gpu_devices = true;
  facts.directory = "/mnt/nvme0";
  facts.file_system = "xfs";
  facts.disk_free_bytes = 2048 * kGiB;
  facts.disk_read_gbps = 7;
  facts.disk_write_gbps = 4;
  facts.memory_copy_gbps = 12;
  facts.checksum_gbps = 20;
  return facts;
}

Check Find(const HostFacts& facts, std::string_view name) {
  for (const Check& check : JudgeHost(facts)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "there is no check " << name;
  return {};
}

void ExpectVerdict(const HostFacts& facts, std::string_view name, Verdict verdict,
                   const std::string& advice) {
  const Check check = Find(facts, name);
  EXPECT_EQ(check.verdict, verdict) << name << ": " << check.value;
  EXPECT_THAT(check.advice, HasSubstr(advice));
  EXPECT_FALSE(check.value.empty());
}

TEST(DoctorChecksTest, AGoodHostGetsNoAdvice) {
  std::set<std::string> names;
  for (const Check& check : JudgeHost(GoodHost())) {
    EXPECT_EQ(check.verdict, Verdict::kOk) << check.name;
    EXPECT_EQ(check.advice, "") << check.name;
    EXPECT_FALSE(check.value.empty()) << check.name;
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
  }
  EXPECT_EQ(names.size(), 13u);
}

TEST(DoctorChecksTest, AHostWithoutSharedMemoryOrAnyMemoryIsUnusable) {
  HostFacts facts = GoodHost();
  facts.extent = Status(Code::kNoSpace, "memfd_create: Function not implemented");
  ExpectVerdict(facts, "shared memory", Verdict::kBad, "memfd");
  facts = GoodHost();
  facts.memory_available_bytes = 100 * kMiB;
  ExpectVerdict(facts, "memory", Verdict::kBad, "free some");
  facts.memory_limit_bytes = 200 * kMiB;
  ExpectVerdict(facts, "memory", Verdict::kBad, "memory.max");
  EXPECT_THAT(Find(facts, "memory").value, HasSubstr("the cgroup's limit; the host has 512GiB"));
}

TEST(DoctorChecksTest, ASlowOrMissingPartIsAWarningWithAdvice) {
  HostFacts facts = GoodHost();
  facts.checksum_is_vector = false;
  ExpectVerdict(facts, "cpu", Verdict::kWarn, "AVX2");
  facts.memory_available_bytes = 1 * kGiB;
  ExpectVerdict(facts, "memory", Verdict::kWarn, "4GiB");
  facts.extent_in_huge_pages = false;
  ExpectVerdict(facts, "huge pages", Verdict::kWarn, "vm.nr_hugepages");
  facts.uring.defer_taskrun = false;
  ExpectVerdict(facts, "io_uring", Verdict::kWarn, "Linux 6.1");
  facts.uring.usable = Status(Code::kUnavailable, "io_uring is forbidden here");
  ExpectVerdict(facts, "io_uring", Verdict::kWarn, "io_uring_disabled");
  facts.memlock_bytes = 8 * kMiB;
  ExpectVerdict(facts, "memlock", Verdict::kWarn, "LimitMEMLOCK");
  facts.may_lock_all = true;
  ExpectVerdict(facts, "memlock", Verdict::kOk, "");
  facts.open_files = 1024;
  ExpectVerdict(facts, "open files", Verdict::kWarn, "LimitNOFILE=9216");
  facts.peer_pidfd = false;
  ExpectVerdict(facts, "pidfd", Verdict::kWarn, "Linux 6.5");
  facts.pidfd = false;
  ExpectVerdict(facts, "pidfd", Verdict::kWarn, "Linux 5.3");
  facts.gpu_devices = false;
  ExpectVerdict(facts, "gpu", Verdict::kWarn, "--gpus all");
  facts.memory_copy_gbps = 2;
  ExpectVerdict(facts, "memory speed", Verdict::kWarn, "busy");
  facts.memory_measured = Status(Code::kNoSpace, "no memory");
  ExpectVerdict(facts, "memory speed", Verdict::kWarn, "free some");
}

TEST(DoctorChecksTest, DisksAreJudgedByWhatTheyAreAndHowFast) {
  HostFacts facts = GoodHost();
  facts.disk_free_bytes = kGiB;
  ExpectVerdict(facts, "disk", Verdict::kWarn, "little room");
  facts.file_system = "nfs";
  ExpectVerdict(facts, "disk", Verdict::kWarn, "local drive");
  facts.direct = Status(Code::kUnavailable, "Invalid argument");
  ExpectVerdict(facts, "disk", Verdict::kWarn, "page cache");
  facts.file_system = "tmpfs";
  ExpectVerdict(facts, "disk", Verdict::kWarn, "this is memory");
  facts.disk_read_gbps = 0.2;
  ExpectVerdict(facts, "disk speed", Verdict::kWarn, "NVMe drive");
  facts.disk_measured = Status(Code::kNoSpace, "too little free space");
  ExpectVerdict(facts, "disk speed", Verdict::kWarn, "--directory");
}

TEST(DoctorChecksTest, AHostWithoutAGpuIsFine) {
  HostFacts facts = GoodHost();
  facts.gpus.clear();
  facts.gpu_driver = facts.gpu_devices = false;
  EXPECT_EQ(Find(facts, "gpu").value, "none");
  EXPECT_EQ(Find(facts, "gpu").verdict, Verdict::kOk);
}

TEST(DoctorChecksTest, HugePagesAndTheKernelsSettingDoNotContradictEachOther) {
  HostFacts facts = GoodHost();
  facts.transparent = "never";
  EXPECT_EQ(Find(facts, "huge pages").value,
            "shared memory gets them from the kernel on request; none are reserved");
  facts.huge_pool_bytes = 4 * kGiB;
  facts.huge_pool_free_bytes = 2 * kGiB;
  EXPECT_EQ(Find(facts, "huge pages").value,
            "shared memory gets them from the reserved ones; 2GiB of 4GiB reserved ones are free");
  facts.huge_pool_bytes = facts.huge_pool_free_bytes = 0;
  facts.extent_in_huge_pages = false;
  EXPECT_EQ(Find(facts, "huge pages").value,
            "shared memory gets none (shmem_enabled: never); none are reserved");
}

TEST(DoctorChecksTest, TheBuildsFeaturesAreListedWithTheReasonsForTheMissingOnes) {
  HostFacts facts = GoodHost();
  EXPECT_EQ(Find(facts, "build").value, "with io_uring, CUDA");
  facts.features.push_back({"S3 stores", "a wheel speaks to no store"});
  EXPECT_EQ(Find(facts, "build").value,
            "with io_uring, CUDA; without S3 stores (a wheel speaks to no store)");
  facts.features.clear();
  EXPECT_EQ(Find(facts, "build").value, "no optional feature");
}

TEST(DoctorChecksTest, AGpuWithoutGpuCodeInTheBuildIsAWarningThatNamesWhatToInstall) {
  HostFacts facts = GoodHost();
  facts.features = {{"io_uring", ""}, {"CUDA", "no CUDA compiler found"}};
  ExpectVerdict(facts, "gpu", Verdict::kWarn, "tools/install-nvcc");
  EXPECT_THAT(Find(facts, "gpu").value,
              HasSubstr("NVIDIA H200; this build of Aquifer has no GPU code (no CUDA compiler"));
  facts.gpus.clear();
  facts.gpu_driver = facts.gpu_devices = false;
  ExpectVerdict(facts, "gpu", Verdict::kOk, "");
}

TEST(DoctorChecksTest, ThisBuildKnowsWhetherItHasGpuCode) {
  std::set<std::string> names;
  for (const BuildFeature& feature : BuildFeatures()) names.insert(feature.name);
  EXPECT_EQ(names.size(), 6u);
  EXPECT_TRUE(names.contains(std::string(kGpuFeature)));
}

TEST(DoctorChecksTest, AHostOfTodayGatheredHasNoHoles) {
  for (const Check& check : JudgeHost(GatherFacts("/tmp"))) {
    EXPECT_FALSE(check.value.empty()) << check.name;
    EXPECT_EQ(check.advice.empty(), check.verdict == Verdict::kOk) << check.name;
  }
}

}  // namespace
}  // namespace aquifer
