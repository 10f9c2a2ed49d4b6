#include "bench/peers/server_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "cli/find_program.h"

namespace aquifer {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr auto kPause = std::chrono::milliseconds(5);

std::string LogPath(const std::string& directory) { return directory + "/log"; }

// In the child, between fork and exec: only what a signal handler may call. Tells the parent why
// it could not become the program.
[[noreturn]] void BecomeProgram(char* const* argv, int log, int failures, pid_t parent) {
  // Our own signals are taken by a thread that the program does not have.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // It went before we had asked.
  if (dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0) execvp(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(failures, &error, sizeof(error));
  _exit(1);
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    const std::function<std::vector<std::string>(const std::string& directory)>& command) {
  // Not where blocks are written: a socket's path must be short.
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<TemporaryDirectory> directory,
                      TemporaryDirectory::New("", "aquifer-bench-"));
  std::vector<std::string> words = command(directory->path());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const Descriptor log(open(LogPath(directory->path()).c_str(),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR));
  int ends[2] = {-1, -1};
  if (!log.valid() || pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  }
  const Descriptor failures(ends[0]);
  Descriptor failing(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(argv.data(), log.get(), failing.get(), parent);
  if (pid < 0) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  }
  std::unique_ptr<ServerProcess> process(new ServerProcess(std::move(directory), pid));
  failing = Descriptor();  // The child's end closes when it is the program.
  int error = 0;
  if (read(failures.get(), &error, sizeof(error)) == sizeof(error)) {
    return Status(error == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  fmt::format("cannot start {}: {}", words[0], std::strerror(error)));
  }
  return process;
}

ServerProcess::~ServerProcess() { End(SIGKILL); }

void ServerProcess::End(int signal) {
  if (pid_ == 0) return;
  kill(pid_, signal);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
}

bool ServerProcess::HasEnded() {
  if (pid_ != 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = 0;
  return pid_ == 0;
}

std::string ServerProcess::LastWords() const {
  std::ifstream log(LogPath(directory()));
  std::string last;
  for (std::string line; std::getline(log, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

Status ServerProcess::Await(const std::function<Status()>& ready) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const bool ended = HasEnded();
    Status status = ready();
    if (status.ok()) return status;
    if (ended) return Status(Code::kUnavailable, fmt::format("it ended: {}", LastWords()));
    if (std::chrono::steady_clock::now() > end) return status;
    std::this_thread::sleep_for(kPause);
  }
}

std::string InstalledPeer(const std::string& path) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path program = self.parent_path().parent_path() / "tools" / path;
  return ::access(program.c_str(), X_OK) == 0 ? program.string() : std::string();
}

std::vector<std::string> NodeCommand(const std::string& directory, uint64_t dram_mib) {
  const std::string found = FindProgram("aquifer");
  const std::string program = found.empty() ? "aquifer" : found;  // Its name is in the error then.
  return {program,    "serve",
          "--socket", directory + "/node.sock",
          "--dram",   fmt::format("{}MiB", dram_mib),
          "--nvme",   "off",
          "--http",   "off"};
}

Result<uint16_t> FreeLoopbackPort() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket.get(), any, length) != 0 || getsockname(socket.get(), any, &length) != 0) {
    return Status(Code::kUnavailable, "no port of the loopback is free");
  }
  return ntohs(address.sin_port);
}

}  // namespace aquifer
