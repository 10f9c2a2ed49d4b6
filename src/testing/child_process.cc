#include "testing/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/check.h"

extern char** environ;  // NOLINT: POSIX gives it this name and no header.

namespace aquifer {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string OwnPath() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  AQ_CHECK(length > 0);
  path.resize(static_cast<size_t>(length));
  return path;
}

void WriteLine(int pipe, std::string_view line) {
  std::string text(line);
  text.push_back('\n');
  // A pipe takes it whole, once there is room.
  AQ_CHECK(write(pipe, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

struct Spawned {
  pid_t pid = -1;
  int input = -1;
  int output = -1;
};

Spawned Spawn(std::vector<std::string> words, bool with_errors) {
  int input[2];
  int output[2];
  AQ_CHECK(pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  AQ_CHECK(posix_spawn_file_actions_init(&actions) == 0);
  AQ_CHECK(posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO) == 0);
  AQ_CHECK(posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO) == 0);
  if (with_errors) {
    AQ_CHECK(posix_spawn_file_actions_adddup2(&actions, output[1], STDERR_FILENO) == 0);
  }
  pid_t pid = -1;
  AQ_CHECK(posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  return {.pid = pid, .input = input[1], .output = output[0]};
}

}  // namespace

std::unique_ptr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments,
                                                  const std::vector<std::string>& wrapper) {
  std::vector<std::string> words = wrapper;
  words.push_back(OwnPath());
  words.insert(words.end(), arguments.begin(), arguments.end());
  const Spawned spawned = Spawn(std::move(words), /*with_errors=*/false);
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(spawned.pid, spawned.input, spawned.output));
}

std::unique_ptr<ChildProcess> ChildProcess::StartCommand(std::vector<std::string> words) {
  const Spawned spawned = Spawn(std::move(words), /*with_errors=*/true);
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(spawned.pid, spawned.input, spawned.output));
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    Kill();
    Wait();
  }
  EndInput();
  close(output_);
}

std::optional<std::string> ChildProcess::ReadLine(milliseconds timeout) {
  const auto end = steady_clock::now() + timeout;
  while (true) {
    if (const size_t newline = buffer_.find('\n'); newline != std::string::npos) {
      std::string line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return line;
    }
    if (at_end_) return std::nullopt;
    const auto left = duration_cast<milliseconds>(end - steady_clock::now());
    pollfd waiting{.fd = output_, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, left.count() > 0 ? static_cast<int>(left.count()) : 0);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    char chunk[4096];
    const ssize_t length = read(output_, chunk, sizeof(chunk));
    if (length <= 0) {
      at_end_ = true;
    } else {
      buffer_.append(chunk, static_cast<size_t>(length));
    }
  }
}

void ChildProcess::Tell(std::string_view line) { WriteLine(input_, line); }

void ChildProcess::EndInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

std::optional<std::string> ChildProcess::ReadUntil(std::string_view text, milliseconds timeout) {
  const auto end = steady_clock::now() + timeout;
  while (true) {
    const auto left = duration_cast<milliseconds>(end - steady_clock::now());
    std::optional<std::string> line = ReadLine(std::max(left, milliseconds(0)));
    if (!line.has_value() || line->find(text) != std::string::npos) return line;
  }
}

void ChildProcess::Stop() {
  Signal(SIGSTOP);
  siginfo_t stopped{};
  AQ_CHECK(::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED) == 0);
}

void ChildProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

void ChildProcess::Kill() { Signal(SIGKILL); }

int ChildProcess::Wait() {
  AQ_CHECK(pid_ > 0);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0) AQ_CHECK(errno == EINTR);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void TellParent(std::string_view line) { WriteLine(STDOUT_FILENO, line); }

std::optional<std::string> HearParent() {
  std::string line;
  char next = 0;
  while (read(STDIN_FILENO, &next, 1) == 1) {
    if (next == '\n') return line;
    line.push_back(next);
  }
  return std::nullopt;
}

void WaitForParent() {
  char ignored = 0;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
}

void DieWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace aquifer
