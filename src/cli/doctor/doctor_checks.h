// The checks of `aquifer doctor`: facts of a host are gathered in one place (doctor_facts.cc) and
// judged in another (doctor_checks.cc), so that the judgement is tested with hosts that we do not
// have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

enum class Verdict : uint8_t {
  kOk,
  kWarn,  // Aquifer works, but not as well as it could.
  kBad,   // Aquifer cannot be used here.
};

std::string_view VerdictName(Verdict verdict);  // "ok", "warn", "bad"

struct Check {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string value;   // The finding, in a few words.
  std::string advice;  // The next step, in one line; empty where all is well.
};

// The features of io_uring that we use, as far as they work here.
struct UringFacts {
  Status usable{};             // Why not.
  bool defer_taskrun = false;  // Linux 6.1.
  bool coop_taskrun = false;   // Linux 5.19.
  bool file_table = false;
  bool buffer_table = false;
};

// A part of Aquifer that a build may leave out.
struct BuildFeature {
  std::string name;     // "CUDA"
  std::string why_not;  // Empty: this build has it.
};
inline constexpr std::string_view kGpuFeature = "CUDA";

struct HostFacts {
  std::vector<BuildFeature> features{};

  std::string cpu;
  unsigned cores = 0;
  std::string kernel;
  std::string checksum;  // The loop that this processor runs: "avx512", "portable"
  bool checksum_is_vector = false;

  Status extent{};  // Whether the memory that engines share can be made: memfd, seals, faulting in.
  bool extent_in_huge_pages = false;
  std::string transparent;  // Of shared memory, as the kernel says it: "never", "advise"
  uint64_t huge_pool_bytes = 0;
  uint64_t huge_pool_free_bytes = 0;

  UringFacts uring{};
  uint64_t memlock_bytes = UINT64_MAX;
  bool may_lock_all = false;  // CAP_IPC_LOCK: the limit does not count.
  uint64_t open_files = UINT64_MAX;
  uint64_t open_files_most = UINT64_MAX;  // The user may raise it to this.

  uint64_t host_memory_bytes = 0;
  uint64_t memory_limit_bytes = 0;  // As the cgroup sees it.
  uint64_t memory_available_bytes = 0;

  bool pidfd = false;
  bool peer_pidfd = false;  // SO_PEERPIDFD, Linux 6.5.

  std::vector<std::string> gpus;  // By model.
  bool gpu_driver = false;
  bool gpu_devices = false;

  std::string directory;  // On the disk that is judged.
  std::string file_system;
  uint64_t disk_free_bytes = 0;
  Status direct{};  // Whether the page cache can be bypassed there.
  Status disk_measured{};
  double disk_read_gbps = 0;
  double disk_write_gbps = 0;

  Status memory_measured{};
  double memory_copy_gbps = 0;  // memcpy by one thread.
  double checksum_gbps = 0;     // One thread.
};

// In the order of their importance to a reader, not by verdict.
std::vector<Check> JudgeHost(const HostFacts& facts);

// Everything that takes no time.
HostFacts GatherFacts(const std::string& directory);
// These measure, for a few seconds each. `scratch` is an empty directory on the disk.
void MeasureMemory(HostFacts* facts);
void MeasureDisk(const std::string& scratch, HostFacts* facts);

// Of this program, as CMake wrote them down (doctor_features.cc.in).
std::vector<BuildFeature> BuildFeatures();

// Supplied by the file that CMake picks.
UringFacts GatherUringFacts();

}  // namespace aquifer
