// What a node will use on this host: the configuration with everything chosen that it leaves open.
// Making a plan makes the directories that were chosen by it, and nothing else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "io/memory/available_memory.h"
#include "node/config/node_config.h"

namespace aquifer {

// What the file system of a directory has.
struct DriveRoom {
  uint64_t device = 0;  // Directories on one file system share its room.
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t ours_bytes = 0;  // In segments from before: they count as free.
};

// The host as far as a plan depends on it; tests give their own.
struct NodeHost {
  MemoryRoots memory{};
  std::string run_directory = "/run/aquifer";
  std::string runtime_directory{};  // $XDG_RUNTIME_DIR; may be empty.
  std::string temporary_directory = "/tmp";
  std::string state_directory = "/var/lib/aquifer";  // Or the first of systemd's $STATE_DIRECTORY.
  std::string state_home{};  // $XDG_STATE_HOME, else ~/.local/state; may be empty.
  uid_t uid = 0;
  std::function<DriveRoom(const std::string& directory)> room_on{};  // None: the kernel is asked.
};

NodeHost ThisHost();

// Where a node keeps what it has to know at its next start; made, if need be and if it may. Empty:
// nowhere, since none can be written to.
std::string StateDirectoryOf(const NodeHost& host, bool may_make = true);

struct NodePlan {
  NodeConfig config;
  std::string socket;               // Absolute; its directory is there.
  std::optional<HttpAddress> http;  // None: no HTTP.
  CacheOptions cache;               // All but the tenants, which come from their file.
  uid_t uid = 0;                    // The node's own user.
  std::string dram_reason;          // "of 22.1GiB available"
  std::string nvme_reason;
  bool encrypted = false;             // There is a master key; known once it was looked for.
  std::vector<std::string> warnings;  // What works, but not as one might expect.
};

// kInvalid or kNoSpace: which key or option to change, and how.
Result<NodePlan> PlanNode(const NodeConfig& config, const NodeHost& host);

// For the log at start: names, and what the node uses of each. `file` is the configuration file, or
// empty.
LogTable DescribePlan(const NodePlan& plan, const std::string& file);

}  // namespace aquifer
