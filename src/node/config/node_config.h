// What a node is told: one TOML file, then the command line. etc/aquifer.toml documents every key.
// Nothing here looks at the host; what becomes of "auto" and of percentages is in node_plan.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/crypto/sha256.h"
#include "net/http/http_address.h"
#include "node/config/node_log.h"
#include "node/config/tier_config.h"

namespace aquifer {

// "auto", "8GiB" or "40%".
struct SizeChoice {
  enum class Kind : uint8_t { kAuto, kBytes, kPercent };
  Kind kind = Kind::kAuto;
  uint64_t value = 0;  // Bytes, or percent from 1 to 100.

  friend bool operator==(const SizeChoice&, const SizeChoice&) = default;
};

// What is done to bytes that leave DRAM. kAuto: encrypted whenever there is a master key, and a
// node with a tenants file does not start without one; kOn: no node does.
enum class Encryption : uint8_t { kAuto, kOn, kOff };

// Where each key that is set was written: "aquifer.toml:7", or "--dram". For messages of whoever
// finds later that this host cannot do it; what is configured is the same wherever it is written.
struct KeyPlaces {
  std::map<std::string, std::string, std::less<>> by_key{};

  friend bool operator==(const KeyPlaces&, const KeyPlaces&) { return true; }
};

// What is wrong with a key's value, with the key and its place: "aquifer.toml:7: tenants: ...".
Status AtKey(const KeyPlaces& places, std::string_view key, const Status& status);
// The same of a message that begins with its key.
Status WithPlace(const KeyPlaces& places, const Status& status);

struct NodeConfig {
  std::string socket{};                            // Empty: chosen at start.
  std::optional<HttpAddress> http{std::in_place};  // None: no HTTP.
  bool http_asked = false;  // Else a port that is taken is a warning and no HTTP.

  SizeChoice dram{};  // Percent of the memory that the cgroup, or the host, has.
  uint64_t keep_available_bytes = CacheOptions{}.keep_available_bytes;

  std::optional<std::vector<std::string>>
      nvme_directories{};  // None: chosen at start. Empty: no NVMe.
  SizeChoice nvme{};       // Over all directories; never in percent.
  NvmeEngine nvme_engine = NvmeEngine::kAuto;
  bool nvme_sync = false;
  uint64_t nvme_segment_bytes = 0;           // 0: chosen from the size.
  uint64_t nvme_write_bytes_per_second = 0;  // 0: no limit.
  double nvme_written_part = 1;

  EvictionPolicy policy = EvictionPolicy::kLearned;

  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;

  int64_t drain_seconds = 20;  // Kubernetes gives 30 by default, systemd 90.
  int64_t overdue_seconds = 60;
  uint32_t worker_threads = CacheOptions{}.worker_threads;

  std::string record_file{};   // Empty: nothing is recorded.
  std::string tenants_file{};  // Empty: one local tenant.
  std::optional<Sha256Digest> admin_token_sha256{};
  Encryption encryption = Encryption::kAuto;
  std::string master_key_file{};  // Empty: the environment.
  std::string key_store{};        // A directory, the name of a tier, or empty: chosen at start.

  std::vector<TierConfig> tiers{};

  KeyPlaces places{};

  friend bool operator==(const NodeConfig&, const NodeConfig&) = default;
};

// kInvalid: file, line, reason, and the nearest known key where one is unknown.
Result<NodeConfig> ReadNodeConfig(const std::string& path);
// The same of a text; `file` is for messages.
Result<NodeConfig> ParseNodeConfig(std::string_view text, const std::string& file);

// What the command line says instead of the file.
struct NodeOverrides {
  std::optional<std::string> config{};  // The file.
  std::optional<std::string> socket{};
  std::optional<std::string> http{};
  std::optional<std::string> dram{};
  std::vector<std::string> nvme{};  // "DIR" or "DIR:SIZE", one a drive; or "off" alone.
  std::optional<std::string> record{};
  std::optional<std::string> log_level{};
  std::optional<std::string> log_format{};
};

// An option of `aquifer serve`: where its value goes, and its line of help.
struct NodeOption {
  std::string_view name;   // "--nvme"
  std::string_view value;  // "DIR[:SIZE]"
  std::string_view help;
  std::optional<std::string> NodeOverrides::* once = nullptr;
  std::vector<std::string> NodeOverrides::* repeated = nullptr;  // The other one is set.
};

std::span<const NodeOption> NodeOptions();

// kInvalid names the option and says what to write. Relative paths are taken from the current
// directory.
Status ApplyOverrides(const NodeOverrides& overrides, NodeConfig* config);

// The file if there is one, then the command line: for the start, and again for each reload.
Result<NodeConfig> LoadNodeConfig(const NodeOverrides& overrides);

// What a reload can do about the keys that changed, by their names in the file. The tenants are
// read again in any case: their file may have changed under the same name.
struct ReloadChanges {
  std::vector<std::string> applied;
  std::vector<std::string> need_restart;
};
ReloadChanges CompareForReload(const NodeConfig& running, const NodeConfig& next);

// Takes over from `next` what a reload can change.
void CopyReloadable(const NodeConfig& next, NodeConfig* running);

// Every key that the file may have ("dram.size", "tier.name"), in the order of the documentation.
std::vector<std::string> NodeConfigKeys();

}  // namespace aquifer
