#include "cli/bench_vllm.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/commands.h"

extern char** environ;  // NOLINT: POSIX gives it this name and no header.

namespace aquifer {
namespace {

// The one that started us, the one that ./test keeps beside this program, or the system's.
std::string PythonPath() {
  const char* const given = std::getenv("AQUIFER_PYTHON");
  if (given != nullptr && *given != '\0') return given;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = self.parent_path().parent_path() / "python/bin/python";
  return access(beside.c_str(), X_OK) == 0 ? beside.string() : "python3";
}

}  // namespace

int BenchVllm(std::vector<std::string> words) {
  words.insert(words.begin(), {PythonPath(), "-m", "aquifer.vllm.bench"});
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) {
    fmt::print(
        stderr,
        "aquifer bench: the rows of vllm need Python with the packages aquifer and vllm, and "
        "{} cannot be started: {}; next step: set AQUIFER_PYTHON\n",
        words[0], std::strerror(error));
    return kExitFailed;
  }
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : kExitFailed;
}

}  // namespace aquifer
