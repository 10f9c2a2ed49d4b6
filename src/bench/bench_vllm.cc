#include "bench/bench_vllm.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "cli/commands.h"
#include "cli/run_program.h"

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
  const std::string python = PythonPath();
  words.insert(words.begin(), {python, "-m", "aquifer.vllm.bench"});
  const Result<int> ended = RunProgram(std::move(words), /*quiet=*/false);
  if (!ended.ok()) {
    fmt::print(
        stderr,
        "aquifer bench: the rows of vllm need Python with the packages aquifer and vllm, and {} "
        "cannot be started: {}; next step: set AQUIFER_PYTHON\n",
        python, ended.status().message());
    return kExitFailed;
  }
  return WIFEXITED(*ended) ? WEXITSTATUS(*ended) : kExitFailed;
}

}  // namespace aquifer
