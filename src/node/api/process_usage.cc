#include "node/api/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace aquifer {
namespace {

namespace fs = std::filesystem;

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// "77 (aq-worker) S 1 ..." : the name is in parentheses and may hold anything; the times are the
// 12th and 13th words behind it.
bool ReadThread(const fs::path& stat, std::string* name, double* seconds) {
  std::ifstream file(stat);
  std::string text;
  std::getline(file, text);
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  *name = text.substr(open + 1, close - open - 1);
  std::istringstream words(text.substr(close + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) words >> skipped;
  double user = 0;
  double system = 0;
  if (!(words >> user >> system)) return false;
  *seconds = (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return true;
}

}  // namespace

ProcessUsage OwnUsage() {
  ProcessUsage usage;
  rusage all{};
  if (getrusage(RUSAGE_SELF, &all) == 0) {
    usage.all_cpu_seconds = Seconds(all.ru_utime) + Seconds(all.ru_stime);
  }
  std::error_code error;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", error)) {
    std::string name;
    double seconds = 0;
    if (!ReadThread(thread.path() / "stat", &name, &seconds)) continue;
    usage.cpu_seconds[name.starts_with("aq-") ? name : "other"] += seconds;
  }
  for (const auto& file : fs::directory_iterator("/proc/self/fd", error)) {
    static_cast<void>(file);
    ++usage.open_files;
  }
  uint64_t pages = 0;
  uint64_t resident = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> resident) {
    usage.resident_bytes = resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  return usage;
}

}  // namespace aquifer
