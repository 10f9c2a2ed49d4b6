#include "node/config/node_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/text/duration_text.h"
#include "base/text/size_text.h"
#include "net/local/default_socket.h"
#include "node/config/admin_socket.h"

namespace aquifer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kExtentBytes = 64 * kMiB;
constexpr uint64_t kAutoDramDivisor = 4;
constexpr uint64_t kAutoLeastDriveBytes = kGiB;
constexpr uint64_t kAutoMostDriveBytes = 256 * kGiB;
constexpr uint64_t kLeastSegments = 4;  // To fill one, keep one and have two free.
constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr std::string_view kSegmentPrefix = "segment-";

// ---- Directories ----

bool Writable(const std::string& directory) {
  struct stat info{};
  return stat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         access(directory.c_str(), W_OK | X_OK) == 0;
}

// True when it is there, perhaps only now, and can be written.
bool MakeWritable(const std::string& directory, mode_t mode) {
  if (mkdir(directory.c_str(), mode) == 0) {
    // Whatever the umask is: /run/aquifer must let engines of other users in.
    if (chmod(directory.c_str(), mode) != 0) return false;
  }
  return Writable(directory);
}

// A directory under /tmp could have been put there by anybody.
bool MakePrivate(const std::string& directory, uid_t uid) {
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) return false;
  struct stat info{};
  return lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == uid &&
         (info.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

Result<std::string> ChooseSocket(const NodeConfig& config, const NodeHost& host) {
  if (!config.socket.empty()) {
    const std::string directory = fs::path(config.socket).parent_path().string();
    if (Writable(directory)) return config.socket;
    return Status(Code::kInvalid,
                  fmt::format("socket {}: {} is not a directory that this user can write to; make "
                              "it, or name another socket",
                              config.socket, directory));
  }
  const std::vector<std::string> paths =
      DefaultSockets({.run_directory = host.run_directory,
                      .runtime_directory = host.runtime_directory,
                      .temporary_directory = host.temporary_directory},
                     host.uid);
  constexpr mode_t kForAll = S_IRWXU | S_IRGRP | S_IXGRP | S_IROTH | S_IXOTH;
  for (const std::string& path : paths) {
    const std::string directory = fs::path(path).parent_path().string();
    bool usable = false;
    if (directory == host.run_directory) {
      usable = MakeWritable(directory, kForAll);
    } else if (directory == host.runtime_directory) {
      usable = Writable(directory);
    } else {
      usable = MakePrivate(directory, host.uid);
    }
    if (usable && path.size() <= kMaxSocketPathBytes) return path;
  }
  return Status(Code::kInvalid,
                fmt::format("there is no place for a socket; tried {}; name one with --socket",
                            fmt::join(paths, ", ")));
}

// ---- DRAM ----

Status NotEnoughMemory(uint64_t available, uint64_t keep) {
  return Status(Code::kNoSpace,
                fmt::format("{} of memory are available and {} of that are to be kept available: "
                            "there is no room for the {} that a node needs at least; free some, or "
                            "lower dram.keep_available",
                            SizeText(available), SizeText(keep), SizeText(kExtentBytes)));
}

Status PlanDram(const NodeHost& host, NodePlan* plan) {
  const SizeChoice& choice = plan->config.dram;
  const uint64_t keep = plan->config.keep_available_bytes;
  const uint64_t available = AvailableMemoryBytes(host.memory);
  const uint64_t limit = MemoryLimitBytes(host.memory);
  const uint64_t room = available - std::min(available, keep);
  if (limit != 0 && (limit < kExtentBytes || keep > limit - kExtentBytes)) {
    return Status(Code::kInvalid,
                  fmt::format("dram.keep_available: of the {} of memory that there are here, {} "
                              "leave no room for the {} that a node needs at least; give less",
                              SizeText(limit), SizeText(keep), SizeText(kExtentBytes)));
  }
  uint64_t& bytes = plan->cache.dram_bytes;
  switch (choice.kind) {
    case SizeChoice::Kind::kAuto:
      bytes = std::min(available / kAutoDramDivisor, room) / kExtentBytes * kExtentBytes;
      // A small host gives what it can.
      if (bytes == 0 && room >= kExtentBytes) bytes = kExtentBytes;
      if (bytes == 0) return NotEnoughMemory(available, keep);
      plan->dram_reason = fmt::format("of {} available", SizeText(available));
      break;
    case SizeChoice::Kind::kPercent:
      bytes = limit * choice.value / 100 / kExtentBytes * kExtentBytes;
      if (bytes == 0) {
        return Status(Code::kInvalid,
                      fmt::format("dram.size: {}% of {} is less than {}; give more", choice.value,
                                  SizeText(limit), SizeText(kExtentBytes)));
      }
      plan->dram_reason = fmt::format("{}% of {}", choice.value, SizeText(limit));
      break;
    case SizeChoice::Kind::kBytes:
      bytes = choice.value;
      if (limit != 0 && bytes > limit) {
        return Status(
            Code::kInvalid,
            fmt::format("dram.size: {} is more than the {} of memory that there are here; "
                        "give less, or a percentage such as 40%",
                        SizeText(bytes), SizeText(limit)));
      }
      break;
  }
  if (available != 0 && bytes > room) {
    plan->warnings.push_back(
        fmt::format("only {} of memory are available, and {} of that are kept available: the pool "
                    "stays smaller until there is more",
                    SizeText(available), SizeText(keep)));
  }
  return Status();
}

// ---- NVMe ----

// The directory itself, or the nearest one above it that exists.
std::string ExistingAbove(const std::string& directory) {
  fs::path path = directory;
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

bool InMemory(const std::string& directory) {
  struct statfs info{};
  if (statfs(directory.c_str(), &info) != 0) return false;
  const auto type = static_cast<uint64_t>(info.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

DriveRoom RoomOn(const std::string& directory) {
  DriveRoom room;
  const std::string existing = ExistingAbove(directory);
  struct stat info{};
  if (stat(existing.c_str(), &info) == 0) room.device = info.st_dev;
  struct statvfs system{};
  if (statvfs(existing.c_str(), &system) == 0) {
    room.total_bytes = uint64_t{system.f_blocks} * system.f_frsize;
    room.free_bytes = uint64_t{system.f_bavail} * system.f_frsize;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (!entry.path().filename().string().starts_with(kSegmentPrefix)) continue;
    struct stat file{};
    if (lstat(entry.path().c_str(), &file) == 0) {
      room.ours_bytes += static_cast<uint64_t>(file.st_blocks) * 512;
    }
  }
  return room;
}

// Empty: there is no place, and `plan` says so.
std::vector<std::string> ChooseDirectories(const NodeHost& host, NodePlan* plan) {
  std::vector<std::string> tried;
  const std::string system = host.state_directory + "/nvme";
  tried.push_back(system);
  if (MakeWritable(host.state_directory, S_IRWXU | S_IRGRP | S_IXGRP | S_IROTH | S_IXOTH) &&
      !InMemory(host.state_directory) && MakeWritable(system, S_IRWXU)) {
    return {system};
  }
  if (!host.state_home.empty()) {
    const std::string own = host.state_home + "/aquifer/nvme";
    tried.push_back(own);
    std::error_code error;
    fs::create_directories(host.state_home + "/aquifer", error);
    if (!InMemory(host.state_home) && MakeWritable(own, S_IRWXU)) return {own};
  }
  plan->warnings.push_back(
      fmt::format("there is no NVMe tier: none of {} is a directory on a disk that this user can "
                  "write to; name one with --nvme",
                  fmt::join(tried, ", ")));
  return {};
}

// The same for every drive: what the one with the least room can give. A power of two, so that the
// next start comes to the same although the free space has changed.
uint64_t AutoDriveBytes(const std::vector<DriveRoom>& rooms) {
  std::map<uint64_t, DriveRoom> by_device;
  std::map<uint64_t, uint64_t> sharing;
  for (const DriveRoom& room : rooms) {
    const uint64_t ours = by_device[room.device].ours_bytes + room.ours_bytes;
    by_device[room.device] = room;
    by_device[room.device].ours_bytes = ours;
    ++sharing[room.device];
  }
  uint64_t least = kAutoMostDriveBytes;
  for (const auto& [device, room] : by_device) {
    const uint64_t usable = (room.free_bytes + room.ours_bytes) / 2;
    least = std::min(least, std::bit_floor(usable / sharing[device]));
  }
  return least < kAutoLeastDriveBytes ? 0 : least;
}

// Whether the drives can hold a size that was asked for: never is an error, not now a warning.
Status CheckRoom(const std::vector<std::string>& directories, const std::vector<DriveRoom>& rooms,
                 uint64_t drive_bytes, NodePlan* plan) {
  std::map<uint64_t, uint64_t> needed;  // By file system.
  std::map<uint64_t, uint64_t> ours;
  for (const DriveRoom& room : rooms) {
    needed[room.device] += drive_bytes;
    ours[room.device] += room.ours_bytes;
  }
  for (size_t i = 0; i < rooms.size(); ++i) {
    const DriveRoom& room = rooms[i];
    if (room.total_bytes != 0 && needed[room.device] > room.total_bytes) {
      return Status(
          Code::kInvalid,
          fmt::format("nvme.size: the file system of {} would hold {}, and has only {}; give less",
                      directories[i], SizeText(needed[room.device]), SizeText(room.total_bytes)));
    }
    const uint64_t free = room.free_bytes + ours[room.device];
    if (needed[room.device] > free) {
      plan->warnings.push_back(fmt::format(
          "the file system of {} has room for {} and may have to hold {}: it can become "
          "full",
          directories[i], SizeText(free), SizeText(needed[room.device])));
    }
  }
  return Status();
}

Status PlanNvme(const NodeHost& host, NodePlan* plan) {
  const NodeConfig& config = plan->config;
  std::vector<std::string> directories = config.nvme_directories.has_value()
                                             ? *config.nvme_directories
                                             : ChooseDirectories(host, plan);
  if (directories.empty()) return Status();
  std::vector<DriveRoom> rooms;
  for (const std::string& directory : directories) {
    rooms.push_back(host.room_on != nullptr ? host.room_on(directory) : RoomOn(directory));
    std::error_code error;
    if (fs::exists(directory, error) && !fs::is_directory(directory, error)) {
      return Status(
          Code::kInvalid,
          fmt::format("nvme.directories: {} is no directory; name one, or a path that is free",
                      directory));
    }
    if (InMemory(ExistingAbove(directory))) {
      plan->warnings.push_back(fmt::format(
          "{} is in memory, not on a disk: what is there is lost at the next boot", directory));
    }
  }
  uint64_t drive_bytes = config.nvme.value / directories.size();
  if (config.nvme.kind == SizeChoice::Kind::kAuto) {
    drive_bytes = AutoDriveBytes(rooms);
    if (drive_bytes == 0) {
      plan->warnings.push_back(
          fmt::format("there is no NVMe tier: there is too little room for {} in {}; free some, or "
                      "give nvme.size",
                      SizeText(kAutoLeastDriveBytes), fmt::join(directories, " and ")));
      return Status();
    }
    plan->nvme_reason = "at most half of what is free";
  } else {
    AQ_RETURN_IF_ERROR(CheckRoom(directories, rooms, drive_bytes, plan));
  }
  if (config.nvme_segment_bytes > drive_bytes / kLeastSegments) {
    return Status(Code::kInvalid,
                  fmt::format("nvme.segment: {} fits fewer than {} times into the {} of a drive; "
                              "give at most {}, or auto",
                              SizeText(config.nvme_segment_bytes), kLeastSegments,
                              SizeText(drive_bytes), SizeText(drive_bytes / kLeastSegments)));
  }
  plan->cache.nvme_bytes = config.nvme.kind == SizeChoice::Kind::kAuto
                               ? drive_bytes * directories.size()
                               : config.nvme.value;
  plan->cache.nvme_directories = std::move(directories);
  return Status();
}

// ---- Text ----

std::string InParentheses(const std::string& text) {
  return text.empty() ? "" : fmt::format(" ({})", text);
}

std::string NvmeText(const NodePlan& plan) {
  const CacheOptions& cache = plan.cache;
  if (cache.nvme_directories.empty()) return "off";
  std::string text =
      fmt::format("{}{} in {}", SizeText(cache.nvme_bytes), InParentheses(plan.nvme_reason),
                  fmt::join(cache.nvme_directories, ", "));
  if (cache.nvme_engine == NvmeEngine::kUring) text += ", by io_uring";
  if (cache.nvme_engine == NvmeEngine::kThreads) text += ", by threads";
  if (cache.nvme_sync) text += ", synced";
  if (cache.write_bytes_per_second != 0) {
    text += fmt::format(", written at most {}/s", SizeText(cache.write_bytes_per_second));
  }
  if (cache.nvme_written_part < 1) {
    text += fmt::format(", {:.0f} % of blocks written", 100 * cache.nvme_written_part);
  }
  return text;
}

std::string EncryptionText(const NodePlan& plan) {
  if (plan.config.encryption == Encryption::kOff) return "off";
  if (!plan.encrypted) return "off, because there is no master key (master_key_file)";
  return plan.config.master_key_file.empty()
             ? "on, with the master key in the environment"
             : "on, with the master key in " + plan.config.master_key_file;
}

std::string EnvironmentText(const char* name) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): once, at start.
  return text == nullptr ? "" : text;
}

// What XDG says of relative paths: ignore them.
std::string AbsoluteOrNone(const std::string& path) { return path.starts_with('/') ? path : ""; }

Status CheckWrittenPart(const NodeConfig& config) {
  if (config.nvme_written_part == 1 || config.policy == EvictionPolicy::kLearned) return Status();
  return Status(
      Code::kInvalid,
      "nvme.written_part: policy \"lru\" does not know which blocks are likely to return; "
      "write 1, or policy = \"learned\"");
}

// What this host cannot do is refused like what is wrong in itself. Messages begin with the key.
Status PlanPlaces(const NodeHost& host, NodePlan* plan) {
  AQ_RETURN_IF_ERROR(CheckWrittenPart(plan->config));
  AQ_RETURN_IF_ERROR(PlanDram(host, plan));
  AQ_RETURN_IF_ERROR(PlanNvme(host, plan));
  AQ_ASSIGN_OR_RETURN(plan->socket, ChooseSocket(plan->config, host));
  return Status();
}

}  // namespace

NodeHost ThisHost() {
  NodeHost host;
  host.uid = geteuid();
  host.runtime_directory = AbsoluteOrNone(EnvironmentText("XDG_RUNTIME_DIR"));
  const std::string state = AbsoluteOrNone(EnvironmentText("STATE_DIRECTORY"));
  if (!state.empty()) host.state_directory = state.substr(0, state.find(':'));
  host.state_home = AbsoluteOrNone(EnvironmentText("XDG_STATE_HOME"));
  const std::string home = AbsoluteOrNone(EnvironmentText("HOME"));
  if (host.state_home.empty() && !home.empty()) host.state_home = home + "/.local/state";
  return host;
}

std::string StateDirectoryOf(const NodeHost& host, bool may_make) {
  for (const std::string& state :
       {host.state_directory,
        host.state_home.empty() ? std::string() : host.state_home + "/aquifer"}) {
    if (state.empty()) continue;
    std::error_code error;
    if (may_make) fs::create_directories(state, error);
    if (access(state.c_str(), (may_make ? W_OK : R_OK) | X_OK) == 0) return state;
  }
  return "";
}

Result<NodePlan> PlanNode(const NodeConfig& config, const NodeHost& host) {
  NodePlan plan;
  plan.config = config;
  plan.uid = host.uid;
  plan.http = config.http;
  if (plan.http.has_value() && !plan.http->loopback()) {
    plan.warnings.push_back(fmt::format(
        "HTTP at {} can be reached from other hosts, and is not encrypted{}", plan.http->Text(),
        config.admin_token_sha256.has_value() ? "" : "; metrics are open to all of them"));
  }
  plan.cache.keep_available_bytes = config.keep_available_bytes;
  plan.cache.nvme_engine = config.nvme_engine;
  plan.cache.eviction = config.policy;
  plan.cache.nvme_sync = config.nvme_sync;
  plan.cache.nvme_segment_bytes = config.nvme_segment_bytes;
  plan.cache.write_bytes_per_second = config.nvme_write_bytes_per_second;
  plan.cache.nvme_written_part = config.nvme_written_part;
  plan.cache.worker_threads = config.worker_threads;
  plan.cache.overdue_nanos = config.overdue_seconds * kNanosPerSecond;
  AQ_RETURN_IF_ERROR(WithPlace(config.places, PlanPlaces(host, &plan)));
  return plan;
}

LogTable DescribePlan(const NodePlan& plan, const std::string& file) {
  const NodeConfig& config = plan.config;
  const std::string admin = AdminSocketBeside(plan.socket);
  LogTable rows;
  const auto add = [&rows](const char* name, std::string text) {
    rows.emplace_back(name, std::move(text));
  };
  add("config", file.empty() ? "defaults" : file);
  add("socket", plan.socket);
  add("http", plan.http.has_value() ? plan.http->Text() : "off");
  add("dram",
      fmt::format("{}{}, {} of memory always left to others", SizeText(plan.cache.dram_bytes),
                  InParentheses(plan.dram_reason), SizeText(plan.cache.keep_available_bytes)));
  add("nvme", NvmeText(plan));
  add("policy", config.policy == EvictionPolicy::kLru ? "lru" : "learned");
  add("tenants", config.tenants_file.empty() ? fmt::format("one, local, for user {} only", plan.uid)
                                             : config.tenants_file);
  add("admin", config.admin_token_sha256.has_value()
                   ? "by token, or by the node's own user on " + admin
                   : "by the node's own user, on " + admin);
  for (const TierConfig& tier : config.tiers) add("tier", DescribeTier(tier));
  add("encryption", EncryptionText(plan));
  add("workers", fmt::format("{}", plan.cache.worker_threads));
  add("overdue", fmt::format("after {}", SecondsText(config.overdue_seconds)));
  add("drain", fmt::format("within {}", SecondsText(config.drain_seconds)));
  add("record", config.record_file.empty() ? "off" : config.record_file);
  for (const std::string& warning : plan.warnings) add("warning", warning);
  return rows;
}

}  // namespace aquifer
