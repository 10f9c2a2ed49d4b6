#include "bench/syscall_count.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "bench/peers/server_process.h"

namespace aquifer {
namespace {

// A call that nobody else makes, before and after the work.
constexpr std::string_view kMarkCall = "getpgid(";
void Mark() { syscall(SYS_getpgid, 0); }

// Every thread has a tracer.
bool AllTraced() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream status(task.path() / "status");
    bool traced = false;
    for (std::string line; !traced && std::getline(status, line);) {
      traced = line.starts_with("TracerPid:") && line != "TracerPid:\t0";
    }
    if (!traced) return false;
  }
  return !error;
}

// A line is "PID call(...) = ..."; a call that another thread's interrupts has a second line.
Result<uint64_t> CountBetweenMarks(const std::string& path) {
  std::ifstream lines(path);
  int marks = 0;
  uint64_t calls = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(kMarkCall) != std::string::npos) {
      ++marks;
    } else if (marks == 1 && line.find(" resumed>") == std::string::npos &&
               line.find(" --- ") == std::string::npos && line.find(" +++ ") == std::string::npos) {
      ++calls;
    }
  }
  if (marks != 2) return Status(Code::kUnavailable, "strace has not seen what it should count");
  return calls;
}

}  // namespace

Result<uint64_t> CountSyscalls(const std::function<Status()>& work) {
  // Where a process may otherwise be traced by its ancestors only.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const std::string own_pid = std::to_string(getpid());
  Result<std::unique_ptr<ServerProcess>> strace =
      ServerProcess::Start([&](const std::string& directory) {
        return std::vector<std::string>{"strace", "-f", "-o", directory + "/calls", "-p", own_pid};
      });
  if (strace.status().code() == Code::kNotFound) {
    return Status(Code::kNotFound, "strace is missing: apt-get install strace");
  }
  AQ_RETURN_IF_ERROR(strace.status());
  AQ_RETURN_IF_ERROR((*strace)->Await([] {
    return AllTraced() ? Status() : Status(Code::kLate, "strace does not attach to this process");
  }));
  Mark();
  const Status status = work();
  Mark();
  (*strace)->End(SIGINT);  // It lets go of us and writes the rest.
  AQ_RETURN_IF_ERROR(status);
  return CountBetweenMarks((*strace)->directory() + "/calls");
}

}  // namespace aquifer
