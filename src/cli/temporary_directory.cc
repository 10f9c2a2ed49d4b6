#include "cli/temporary_directory.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

namespace aquifer {
namespace {

// Every temporary directory that exists now, for the thread that takes signals.
struct Registry {
  std::mutex mutex;
  std::set<std::string> paths;
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;  // Outlives the thread, which is never joined.
  return *registry;
}

std::atomic<std::atomic<bool>*> end_asked = nullptr;  // What the next SIGINT sets.

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
    const std::lock_guard lock(registry.mutex);
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

}  // namespace

Result<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::New(const std::string& parent,
                                                                    const std::string& prefix) {
  const std::string where = parent.empty() ? DefaultParent() : parent;
  std::string path = (std::filesystem::path(where) / (prefix + "XXXXXX")).string();
  // Made and noted in one step: a signal in between would leave a directory that nobody knows of.
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  if (mkdtemp(path.data()) == nullptr) {
    return Status(
        Code::kUnavailable,
        fmt::format("cannot make a directory in {}: {}; name another one with --directory", where,
                    std::strerror(errno)));
  }
  registry.paths.insert(path);
  return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(std::move(path)));
}

TemporaryDirectory::TemporaryDirectory(std::string path) : path_(std::move(path)) {}

TemporaryDirectory::~TemporaryDirectory() {
  RemoveTree(path_);
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
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
