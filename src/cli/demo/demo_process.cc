#include "cli/demo/demo_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace aquifer {
namespace {

// In the child, between fork and exec: only what a signal handler may call.
[[noreturn]] void BecomeProgram(const char* program, char* const* argv, int output, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // It went before we had asked.
  setpgid(0, 0);  // A terminal's Ctrl-C is for us; we end our children in order.
  if (dup2(output, STDOUT_FILENO) >= 0 && dup2(output, STDERR_FILENO) >= 0) {
    execv(program, argv);
  }
  _exit(1);
}

}  // namespace

Result<std::unique_ptr<DemoProcess>> DemoProcess::Start(const std::string& program,
                                                        const std::vector<std::string>& words,
                                                        bool shown) {
  const char* const path = program.empty() ? "/proc/self/exe" : program.c_str();
  std::vector<std::string> all = {"aquifer"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return Status(Code::kUnavailable, std::strerror(errno));
  Descriptor output(ends[0]);
  const Descriptor input(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(path, argv.data(), input.get(), parent);
  if (pid < 0) return Status(Code::kUnavailable, std::strerror(errno));
  return std::unique_ptr<DemoProcess>(new DemoProcess(pid, std::move(output), shown));
}

DemoProcess::DemoProcess(pid_t pid, Descriptor output, bool shown)
    : pid_(pid), output_(std::move(output)), reader_([this, shown] { Read(shown); }) {}

DemoProcess::~DemoProcess() {
  End(SIGKILL);
  reader_.join();
}

void DemoProcess::Read(bool shown) {
  std::string partial;
  char buffer[4096];
  while (true) {
    const ssize_t got = ::read(output_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    partial.append(buffer, static_cast<size_t>(got));
    for (size_t end = 0; (end = partial.find('\n')) != std::string::npos;) {
      const std::string line = partial.substr(0, end);
      partial.erase(0, end + 1);
      if (shown) fmt::print(stderr, "{}\n", line);
      const MutexLock lock(&mutex_);
      lines_.push_back(line);
      changed_.NotifyAll();
    }
  }
  const MutexLock lock(&mutex_);
  over_ = true;
  changed_.NotifyAll();
}

std::optional<std::string> DemoProcess::AwaitLine(std::string_view text,
                                                  std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const MutexLock lock(&mutex_);
  size_t seen = 0;
  while (true) {
    for (; seen < lines_.size(); ++seen) {
      if (lines_[seen].find(text) != std::string::npos) return lines_[seen];
    }
    const auto left = end - std::chrono::steady_clock::now();
    if (over_ || left.count() <= 0) return std::nullopt;
    changed_.WaitFor(&mutex_, std::chrono::nanoseconds(left).count());
  }
}

std::string DemoProcess::LastLine() const {
  const MutexLock lock(&mutex_);
  return lines_.empty() ? std::string() : lines_.back();
}

int DemoProcess::End(int signal) {
  if (pid_ == 0) return status_;
  if (signal != 0) kill(pid_, signal);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return status_;
}

}  // namespace aquifer
