// A program that the benchmark starts for itself: a node, or a peer to compare with. It has a
// temporary directory of its own, for its socket and its log, and dies with this program, however
// that ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "cli/temporary_directory.h"

namespace aquifer {

class ServerProcess {
 public:
  // `command` gives the command line, when told the directory. The program is looked for in PATH
  // unless it is a path itself; kNotFound when there is none.
  static Result<std::unique_ptr<ServerProcess>> Start(
      const std::function<std::vector<std::string>(const std::string& directory)>& command);
  ~ServerProcess();  // Kills it.
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& directory() const { return directory_->path(); }

  // Tries again and again until it is ok; otherwise what the program said before it ended, or the
  // last failure.
  Status Await(const std::function<Status()>& ready);

  // Waits until it has ended by itself after the signal.
  void End(int signal);

 private:
  ServerProcess(std::unique_ptr<TemporaryDirectory> directory, pid_t pid)
      : directory_(std::move(directory)), pid_(pid) {}

  bool HasEnded();
  std::string LastWords() const;

  const std::unique_ptr<TemporaryDirectory> directory_;
  pid_t pid_;  // 0: it has ended.
};

// The command line of a node with its socket in `directory` and so much DRAM, without NVMe and
// HTTP.
std::vector<std::string> NodeCommand(const std::string& directory, uint64_t dram_mib);

// A program of tools/install-peers, by its path in build/tools; empty if it is not there.
std::string InstalledPeer(const std::string& path);

// Of the loopback, at this moment.
Result<uint16_t> FreeLoopbackPort();

}  // namespace aquifer
