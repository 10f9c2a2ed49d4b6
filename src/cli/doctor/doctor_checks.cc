#include "cli/doctor/doctor_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text/size_text.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kExtentBytes = 64 * kMiB;
constexpr uint64_t kLeastMemory = 2 * kExtentBytes;  // For one extent and the node itself.
constexpr uint64_t kUsefulMemory = 4 * kGiB;
constexpr uint64_t kUsefulMemlock = kGiB;
constexpr uint64_t kOtherFiles = 1024;  // Connections, drives, libraries.
constexpr uint64_t kUsefulDisk = 16 * kGiB;
constexpr double kUsefulDiskGbps = 1;  // Below that, most models recompute as fast as it loads.
constexpr double kUsefulCopyGbps = 5;

Check Ok(std::string name, std::string value) {
  return {.name = std::move(name), .value = std::move(value), .advice = ""};
}
Check Warn(std::string name, std::string value, std::string advice) {
  return {.name = std::move(name),
          .verdict = Verdict::kWarn,
          .value = std::move(value),
          .advice = std::move(advice)};
}
Check Bad(std::string name, std::string value, std::string advice) {
  Check check = Warn(std::move(name), std::move(value), std::move(advice));
  check.verdict = Verdict::kBad;
  return check;
}

std::string LimitText(uint64_t limit) {
  return limit == UINT64_MAX ? "unlimited" : fmt::format("{}", limit);
}

Check JudgeCpu(const HostFacts& facts) {
  std::string value = fmt::format("{}, {} cores, {}, checksum by {}", facts.cpu, facts.cores,
                                  facts.kernel, facts.checksum);
  if (facts.checksum_is_vector) return Ok("cpu", std::move(value));
  return Warn("cpu", std::move(value),
              "without AVX2 checksums cost several times as much; if this is a virtual machine, "
              "pass the host's processor through");
}

Check JudgeMemoryLimit(const HostFacts& facts) {
  const bool grouped = facts.memory_limit_bytes < facts.host_memory_bytes;
  std::string value = fmt::format("{} available of {}{}", SizeText(facts.memory_available_bytes),
                                  SizeText(facts.memory_limit_bytes),
                                  grouped ? fmt::format(", the cgroup's limit; the host has {}",
                                                        SizeText(facts.host_memory_bytes))
                                          : ", no cgroup limit");
  if (facts.memory_available_bytes < kLeastMemory) {
    return Bad("memory", std::move(value),
               fmt::format("a node needs {}: free some{}", SizeText(kLeastMemory),
                           grouped ? ", or raise the cgroup's memory.max" : ""));
  }
  if (facts.memory_available_bytes < kUsefulMemory) {
    return Warn("memory", std::move(value),
                fmt::format("that holds few conversations; {} or more make a useful pool",
                            SizeText(kUsefulMemory)));
  }
  return Ok("memory", std::move(value));
}

Check JudgeSharedMemory(const HostFacts& facts) {
  if (facts.extent.ok()) return Ok("shared memory", "memfd, sealed and faulted in");
  return Bad("shared memory", facts.extent.message(),
             "engines share memory through memfd (Linux 3.17); allow it in the sandbox, and leave "
             "it 64MiB of memory");
}

Check JudgeHugePages(const HostFacts& facts) {
  const std::string reserved =
      facts.huge_pool_bytes == 0
          ? "none are reserved"
          : fmt::format("{} of {} reserved ones are free", SizeText(facts.huge_pool_free_bytes),
                        SizeText(facts.huge_pool_bytes));
  if (!facts.extent.ok()) return Ok("huge pages", reserved);
  if (facts.extent_in_huge_pages) {
    // The kernel makes them on request, whatever shmem_enabled says.
    const bool from_pool = facts.huge_pool_free_bytes >= kExtentBytes;
    return Ok(
        "huge pages",
        fmt::format("shared memory gets them {}; {}",
                    from_pool ? "from the reserved ones" : "from the kernel on request", reserved));
  }
  return Warn(
      "huge pages",
      fmt::format("shared memory gets none (shmem_enabled: {}); {}", facts.transparent, reserved),
      "drives read into small pages at less than half the speed; use Linux 6.1 or newer, "
      "or reserve pages: sysctl vm.nr_hugepages=N (2MiB each)");
}

Check JudgeUring(const HostFacts& facts) {
  const UringFacts& uring = facts.uring;
  if (!uring.usable.ok()) {
    return Warn("io_uring", uring.usable.message(),
                "NVMe works with threads instead, at more CPU; allow io_uring (sysctl "
                "kernel.io_uring_disabled=0, or the container's seccomp profile)");
  }
  std::vector<std::string> has;
  std::vector<std::string> lacks;
  (uring.file_table ? has : lacks).emplace_back("file table");
  (uring.buffer_table ? has : lacks).emplace_back("buffer table");
  (uring.defer_taskrun ? has : lacks).emplace_back("deferred work");
  if (!uring.defer_taskrun && uring.coop_taskrun) has.emplace_back("cooperative work");
  if (lacks.empty()) return Ok("io_uring", fmt::format("{}", fmt::join(has, ", ")));
  return Warn("io_uring", fmt::format("{}; not: {}", fmt::join(has, ", "), fmt::join(lacks, ", ")),
              "it works, at more CPU a block; Linux 6.1 or newer has all of it");
}

Check JudgeMemlock(const HostFacts& facts) {
  if (facts.may_lock_all) return Ok("memlock", "no limit for this user (CAP_IPC_LOCK)");
  if (facts.memlock_bytes == UINT64_MAX) return Ok("memlock", "unlimited");
  std::string value = SizeText(facts.memlock_bytes);
  if (facts.memlock_bytes >= std::max(kUsefulMemlock, facts.memory_limit_bytes)) {
    return Ok("memlock", std::move(value));
  }
  return Warn("memlock", std::move(value),
              "the pool cannot be registered with io_uring, or with a GPU, beyond that: ulimit -l "
              "unlimited, or LimitMEMLOCK=infinity in the unit");
}

Check JudgeOpenFiles(const HostFacts& facts) {
  // An extent is a descriptor.
  const uint64_t needed = facts.memory_limit_bytes / kExtentBytes + kOtherFiles;
  std::string value = LimitText(facts.open_files);
  if (facts.open_files_most != facts.open_files) {
    value += fmt::format(", can be raised to {}", LimitText(facts.open_files_most));
  }
  if (facts.open_files >= needed) return Ok("open files", std::move(value));
  return Warn("open files", std::move(value),
              fmt::format("a pool of all memory and its clients need {0}: ulimit -n {0}, or "
                          "LimitNOFILE={0} in the unit",
                          needed));
}

Check JudgePidfd(const HostFacts& facts) {
  if (facts.peer_pidfd) return Ok("pidfd", "pidfd_open, SO_PEERPIDFD");
  if (facts.pidfd) {
    return Warn("pidfd", "pidfd_open, no SO_PEERPIDFD",
                "an engine that ends while it connects may be taken for another process; Linux 6.5 "
                "or newer has it");
  }
  return Warn("pidfd", "none",
              "the memory of an engine that died is given back late; use Linux 5.3 or newer, or "
              "allow pidfd_open in the sandbox");
}

const BuildFeature* FindFeature(const HostFacts& facts, std::string_view name) {
  for (const BuildFeature& feature : facts.features) {
    if (feature.name == name) return &feature;
  }
  return nullptr;
}

// A feature that is missing is told and not judged: many builds leave one out on purpose.
Check JudgeBuild(const HostFacts& facts) {
  std::vector<std::string> has;
  std::vector<std::string> lacks;
  for (const BuildFeature& feature : facts.features) {
    if (feature.why_not.empty()) {
      has.push_back(feature.name);
    } else {
      lacks.push_back(fmt::format("{} ({})", feature.name, feature.why_not));
    }
  }
  std::string value =
      has.empty() ? "no optional feature" : fmt::format("with {}", fmt::join(has, ", "));
  if (!lacks.empty()) value += fmt::format("; without {}", fmt::join(lacks, ", "));
  return Ok("build", std::move(value));
}

Check JudgeGpu(const HostFacts& facts) {
  if (facts.gpu_driver && !facts.gpu_devices) {
    return Warn("gpu", "a driver, and no /dev/nvidia*",
                "give the container the devices (--gpus all), or load the module nvidia-uvm");
  }
  const bool any = !facts.gpus.empty() || facts.gpu_devices;
  std::string value = !any                 ? "none"
                      : facts.gpus.empty() ? "of unknown model"
                                           : fmt::format("{}", fmt::join(facts.gpus, ", "));
  const BuildFeature* const code = FindFeature(facts, kGpuFeature);
  if (!any || code == nullptr || code->why_not.empty()) return Ok("gpu", std::move(value));
  return Warn("gpu",
              fmt::format("{}; this build of Aquifer has no GPU code ({})", value, code->why_not),
              "install a CUDA compiler, 13.0 or newer (tools/install-nvcc in the source folder, or "
              "the package cuda-nvcc-13-0 of NVIDIA's repository); then build, or pip install, "
              "again");
}

Check JudgeDisk(const HostFacts& facts) {
  std::string value = fmt::format("{} on {}, {} free{}", facts.directory, facts.file_system,
                                  SizeText(facts.disk_free_bytes),
                                  facts.direct.ok() ? ", O_DIRECT" : ", no O_DIRECT");
  constexpr std::array<std::string_view, 3> kUnfit = {"nfs", "fuse", "overlay"};
  if (facts.file_system == "tmpfs") {
    return Warn("disk", std::move(value),
                "this is memory: name a directory on a drive with --directory");
  }
  if (!facts.direct.ok()) {
    return Warn("disk", std::move(value),
                "reads and writes go through the page cache, which costs memory and time; use ext4 "
                "or xfs");
  }
  if (std::find(kUnfit.begin(), kUnfit.end(), facts.file_system) != kUnfit.end()) {
    return Warn("disk", std::move(value), "use a local drive with ext4 or xfs");
  }
  if (facts.disk_free_bytes < kUsefulDisk) {
    return Warn("disk", std::move(value),
                fmt::format("that is little room; {} or more are useful, or name another directory "
                            "with --directory",
                            SizeText(kUsefulDisk)));
  }
  return Ok("disk", std::move(value));
}

Check JudgeDiskSpeed(const HostFacts& facts) {
  if (!facts.disk_measured.ok()) {
    return Warn("disk speed", fmt::format("not measured: {}", facts.disk_measured.message()),
                "name a directory with 512MiB free, on a drive, with --directory");
  }
  std::string value = fmt::format("reads {:.2f} GB/s, writes {:.2f} GB/s, in blocks of 2MiB",
                                  facts.disk_read_gbps, facts.disk_write_gbps);
  if (facts.disk_read_gbps >= kUsefulDiskGbps) return Ok("disk speed", std::move(value));
  return Warn("disk speed", std::move(value),
              "at under 1 GB/s many models recompute as fast as this loads; use an NVMe drive, or "
              "several");
}

Check JudgeMemorySpeed(const HostFacts& facts) {
  if (!facts.memory_measured.ok()) {
    return Warn("memory speed", fmt::format("not measured: {}", facts.memory_measured.message()),
                "free some memory and try again");
  }
  std::string value = fmt::format("one thread copies {:.1f} GB/s and checksums {:.1f} GB/s",
                                  facts.memory_copy_gbps, facts.checksum_gbps);
  if (facts.memory_copy_gbps >= kUsefulCopyGbps) return Ok("memory speed", std::move(value));
  return Warn("memory speed", std::move(value),
              "that is slow: is the host busy, or are memory channels empty?");
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kBad:
      return "bad";
  }
  return "unknown";
}

std::vector<Check> JudgeHost(const HostFacts& facts) {
  return {
      JudgeCpu(facts),          JudgeMemoryLimit(facts), JudgeMemorySpeed(facts),
      JudgeSharedMemory(facts), JudgeHugePages(facts),   JudgeDisk(facts),
      JudgeDiskSpeed(facts),    JudgeUring(facts),       JudgeMemlock(facts),
      JudgeOpenFiles(facts),    JudgePidfd(facts),       JudgeGpu(facts),
      JudgeBuild(facts),
  };
}

}  // namespace aquifer
