#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "aquifer/checksum.h"
#include "base/checksum/checksum_kernel.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/raw_disk.h"
#include "cli/doctor/doctor_checks.h"
#include "cli/machine.h"
#include "cli/temporary_directory.h"
#include "io/disk/errno_status.h"
#include "io/memory/available_memory.h"
#include "io/memory/extent.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Newer than the headers of Debian 12.
#endif

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kExtentBytes = 64 * kMiB;
constexpr uint64_t kBlockBytes = 2 * kMiB;
constexpr uint64_t kDiskBlocks = 128;  // 256 MiB: beyond what a drive's own cache hides for long.
constexpr uint64_t kSpareDiskBytes = 256 * kMiB;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t NumberIn(const std::string& path) {
  const std::string text = FirstLine(path);
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// "always [madvise] never" means madvise.
std::string ChosenIn(const std::string& path) {
  const std::string line = FirstLine(path);
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "unknown";
  return line.substr(begin + 1, end - begin - 1);
}

uint64_t HostMemoryBytes() {
  // Without cgroups there is only the host.
  return MemoryLimitBytes({.cgroup = "/nonexistent"});
}

bool HasCapability(unsigned capability) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kName = "CapEff:\t";
    if (!line.starts_with(kName)) continue;
    uint64_t bits = 0;
    std::from_chars(line.data() + kName.size(), line.data() + line.size(), bits, 16);
    return (bits >> capability & 1) != 0;
  }
  return false;
}

uint64_t LimitOf(rlim_t limit) { return limit == RLIM_INFINITY ? UINT64_MAX : limit; }

void GatherLimits(HostFacts* facts) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts->memlock_bytes = LimitOf(limit.rlim_cur);
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts->open_files = LimitOf(limit.rlim_cur);
    facts->open_files_most = LimitOf(limit.rlim_max);
  }
  facts->may_lock_all = HasCapability(CAP_IPC_LOCK);
}

// The pools of every page size there is.
void GatherHugePages(HostFacts* facts) {
  facts->transparent = ChosenIn("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const MemoryRoots roots;
  facts->huge_pool_bytes = NumberIn(roots.huge_pages + "/nr_hugepages") * 2 * kMiB;
  facts->huge_pool_free_bytes = FreeHugePageBytes(roots);
  const auto extent = SystemExtentSource()->New(kExtentBytes);
  facts->extent = extent.status();
  facts->extent_in_huge_pages = extent.ok() && (*extent)->huge_pages();
}

void GatherPidfd(HostFacts* facts) {
  const auto own = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  facts->pidfd = own >= 0;
  if (own >= 0) close(own);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  int peer = -1;
  socklen_t length = sizeof(peer);
  facts->peer_pidfd = getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &peer, &length) == 0;
  if (facts->peer_pidfd) close(peer);
  close(pair[0]);
  close(pair[1]);
}

void GatherGpus(HostFacts* facts) {
  namespace fs = std::filesystem;
  std::error_code error;
  facts->gpu_driver = fs::exists("/proc/driver/nvidia", error);
  facts->gpu_devices = fs::exists("/dev/nvidiactl", error);
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "information");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("Model:")) continue;
      const size_t begin = line.find_first_not_of(" \t", 6);
      if (begin != std::string::npos) facts->gpus.push_back(line.substr(begin));
    }
  }
}

Status ProbeDirect(const std::string& directory) {
  const std::string path = directory + "/direct";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, "open past the page cache", path);
  close(fd);
  unlink(path.c_str());
  return Status();
}

// The best of a few: a doctor asks what the host can do, not how busy it is.
template <class Work>
double BestGbps(uint64_t bytes, const Work& work) {
  constexpr int kRounds = 5;
  double best = 0;
  for (int i = 0; i < kRounds; ++i) {
    const Stopwatch watch;
    work();
    best = std::max(best, GigabytesPerSecond(bytes, watch.Seconds()));
  }
  return best;
}

}  // namespace

HostFacts GatherFacts(const std::string& directory) {
  const Machine machine = DescribeMachine();
  HostFacts facts;
  facts.features = BuildFeatures();
  facts.cpu = machine.cpu;
  facts.cores = machine.cores;
  facts.kernel = machine.kernel;
  facts.checksum = ChecksumKernels().front().name;
  facts.checksum_is_vector = ChecksumKernels().size() > 1;
  const MemoryRoots roots;
  facts.host_memory_bytes = HostMemoryBytes();
  facts.memory_limit_bytes = MemoryLimitBytes(roots);
  facts.memory_available_bytes = AvailableMemoryBytes(roots);
  GatherHugePages(&facts);
  facts.uring = GatherUringFacts();
  GatherLimits(&facts);
  GatherPidfd(&facts);
  GatherGpus(&facts);
  facts.directory = directory;
  facts.file_system = FileSystemOf(directory);
  facts.disk_free_bytes = FreeDiskBytes(directory);
  return facts;
}

void MeasureMemory(HostFacts* facts) {
  const uint64_t bytes = WorkingSetBytes(kBlockBytes, facts->memory_available_bytes);
  auto from = BenchMemory::New(bytes);
  auto to = BenchMemory::New(bytes);
  facts->memory_measured = from.ok() ? to.status() : from.status();
  if (!from.ok() || !to.ok()) return;
  FillFromSeed(from->bytes(), 1);
  facts->memory_copy_gbps = BestGbps(bytes, [&] {
    std::memcpy(to->data(), from->data(), bytes);
    KeepValue(*to->data());
  });
  facts->checksum_gbps = BestGbps(bytes, [&] { KeepValue(ChecksumOf(from->bytes()).low); });
}

void MeasureDisk(const std::string& scratch, HostFacts* facts) {
  facts->direct = ProbeDirect(scratch);
  facts->disk_measured = facts->direct;
  if (!facts->direct.ok()) return;
  if (facts->disk_free_bytes < kDiskBlocks * kBlockBytes + kSpareDiskBytes) {
    facts->disk_measured = Status(Code::kNoSpace, "too little free space");
    return;
  }
  for (const bool write : {true, false}) {
    const auto disk = RawDisk::New(scratch, kDiskBlocks,
                                   {.block_bytes = kBlockBytes, .depth = 16, .write = write});
    const Result<double> gbps = disk.ok() ? (*disk)->RunInHugePages() : disk.status();
    facts->disk_measured = gbps.status();
    if (!gbps.ok()) return;
    (write ? facts->disk_write_gbps : facts->disk_read_gbps) = *gbps;
  }
}

}  // namespace aquifer
