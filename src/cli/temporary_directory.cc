#include "cli/temporary_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace aquifer {
namespace {

// Every temporary directory that exists now, for the thread that takes signals.
struct Registry {
  Mutex mutex;
  std::set<std::string> paths AQ_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;  // Outlives the thread, which is never joined.
  return *registry;
}

std::atomic<std::atomic<bool>*> end_asked = nullptr;  // The next SIGINT sets it.

// Other threads may still be making files in it while it is removed, hence more than one try.
void RemoveTree(const std::string& path) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (!std::filesystem::exists(path, error)) return;
    usleep(10'000);
  }
}

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Ends the program as the signal would have, so that a shell sees how it died.
void RemoveThenDie() {
  const sigset_t set = EndingSignals();
  int signal = 0;
  for (;;) {
    if (sigwait(&set, &signal) != 0) return;
    std::atomic<bool>* const asked = signal == SIGINT ? end_asked.exchange(nullptr) : nullptr;
    if (asked == nullptr) break;
    *asked = true;
  }
  Registry& registry = TheRegistry();
  {
    const MutexLock lock(&registry.mutex);
    for (const std::string& path : registry.paths) RemoveTree(path);
  }
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
}

std::string DefaultParent() {
  std::error_code error;
  if (access("/var/tmp", W_OK | X_OK) == 0) return "/var/tmp";
  const std::filesystem::path path = std::filesystem::temp_directory_path(error);
  return error ? "." : path.string();
}

constexpr std::string_view kPattern = "XXXXXX";  // As mkdtemp() wants it.
// A directory is locked a moment after it is made: one that is younger may be somebody's.
constexpr std::chrono::minutes kLockedByThen{1};

// The directory, locked; -1: somebody else has the lock, or it is not a directory of this user.
int LockDirectory(const std::string& path) {
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return -1;
  struct stat info{};
  if (fstat(directory, &info) == 0 && info.st_uid == geteuid() &&
      flock(directory, LOCK_EX | LOCK_NB) == 0) {
    return directory;
  }
  close(directory);
  return -1;
}

bool IsOurName(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() != prefix.size() + kPattern.size()) return false;
  name.remove_prefix(prefix.size());
  return std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c); });
}

void RemoveThoseOfTheDead(const std::string& parent, const std::string& prefix) {
  const auto locked_by_now = std::filesystem::file_time_type::clock::now() - kLockedByThen;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!IsOurName(entry->path().filename().string(), prefix)) continue;
    std::error_code of_entry;
    if (entry->last_write_time(of_entry) > locked_by_now || of_entry) continue;
    const int directory = LockDirectory(entry->path().string());
    if (directory < 0) continue;
    std::filesystem::remove_all(entry->path(), of_entry);
    close(directory);
  }
}

}  // namespace

Result<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::New(const std::string& parent,
                                                                    const std::string& prefix) {
  const std::string where = parent.empty() ? DefaultParent() : parent;
  RemoveThoseOfTheDead(where, prefix);
  std::string path = (std::filesystem::path(where) / prefix).string() + std::string(kPattern);
  // Made and noted in one step: a signal in between would leave a directory that nobody knows of.
  Registry& registry = TheRegistry();
  const MutexLock lock(&registry.mutex);
  if (mkdtemp(path.data()) == nullptr) {
    return Status(
        Code::kUnavailable,
        fmt::format("cannot make a directory in {}: {}; name another one with --directory", where,
                    std::strerror(errno)));
  }
  registry.paths.insert(path);
  const int directory = LockDirectory(path);
  return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(std::move(path), directory));
}

TemporaryDirectory::TemporaryDirectory(std::string path, int lock)
    : path_(std::move(path)), lock_(lock) {}

TemporaryDirectory::~TemporaryDirectory() {
  RemoveTree(path_);
  if (lock_ >= 0) close(lock_);
  Registry& registry = TheRegistry();
  const MutexLock lock(&registry.mutex);
  registry.paths.erase(path_);
}

void SetOnNextInterrupt(std::atomic<bool>* asked) { end_asked = asked; }

void RemoveTemporariesOnSignals() {
  const sigset_t set = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(RemoveThenDie).detach();
}

uint64_t FreeDiskBytes(const std::string& directory) {
  struct statvfs info{};
  if (statvfs(directory.c_str(), &info) != 0) return 0;
  return uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace aquifer
