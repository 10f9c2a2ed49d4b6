#include "node/encryption.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/clock.h"
#include "base/random.h"
#include "node/node_stores.h"
#include "store/posix_paths.h"
#include "tenant/key_bucket.h"
#include "tenant/master_keys.h"
#include "tenant/mounted_keys.h"

namespace aquifer {
namespace {

// Of a posix tier, or of the node's state.
constexpr std::string_view kKeyFolder = "/keys";
// What OpenKeyDirectory() leaves in every directory of keys.
constexpr std::string_view kKeyMarker = "/.lock";
constexpr std::string_view kMemory = "/key-store";

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

Status NoMasterKey(const NodeConfig& config) {
  const bool on = config.encryption == Encryption::kOn;
  return AtKey(
      config.places, on ? "encryption" : "tenants",
      Invalid(fmt::format(
          "{}, what leaves DRAM must be encrypted, and there is no master key; make one with "
          "`(umask 077; openssl rand -hex 32 > FILE)` and name it with master_key_file, or put it "
          "into {}; or write encryption = \"off\" to accept that nothing is encrypted",
          on ? "with encryption = \"on\"" : "with tenants", kMasterKeyVariable)));
}

bool MakeOwnDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return ::access(path.c_str(), W_OK | X_OK) == 0;
}

// Empty: none can be written to.
std::string StateOf(const NodeHost& host) {
  for (const std::string& state :
       {host.state_directory,
        host.state_home.empty() ? std::string() : host.state_home + "/aquifer"}) {
    if (!state.empty() && MakeOwnDirectory(state)) return state;
  }
  return "";
}

// Keys are as durable as what they seal on this host.
Result<KeyPlace> PlaceInState(const NodeHost& host) {
  const std::string state = StateOf(host);
  if (!state.empty()) return KeyPlace{.directory = state + std::string(kKeyFolder)};
  return Invalid(
      fmt::format("there is no place for data keys: {} cannot be written; name a "
                  "directory with key_store",
                  host.state_directory));
}

KeyPlace PlaceAsNamed(const std::string& directory, const NodeHost& host) {
  const std::string state = StateOf(host);
  return {.directory = directory,
          .memory = state.empty() ? std::string() : state + std::string(kMemory)};
}

// A line for each directory: nodes of one host may have several.
bool Remembers(const KeyPlace& place) {
  std::ifstream file(place.memory);
  for (std::string directory; std::getline(file, directory);) {
    if (directory == place.directory) return true;
  }
  return false;
}

// The first time, the directory may be empty. From then on an empty one is a mount point.
Result<std::unique_ptr<KeyStore>> OpenNamedKeys(const KeyPlace& place) {
  if (!Remembers(place)) {
    AQ_RETURN_IF_ERROR(OpenKeyDirectory(place.directory).status());
    std::ofstream(place.memory, std::ios::app) << place.directory << "\n";
  }
  return NewMountedKeys(place.directory, place.directory + std::string(kKeyMarker));
}

}  // namespace

Result<std::vector<SecretKey>> MasterKeysFor(const NodeConfig& config,
                                             const SecretEnvironment& environment, uid_t self) {
  if (config.encryption == Encryption::kOff) return std::vector<SecretKey>{};
  if (!config.master_key_file.empty()) {
    Result<std::vector<SecretKey>> masters = ReadMasterKeyFile(config.master_key_file, self);
    if (!masters.ok()) return AtKey(config.places, "master_key_file", masters.status());
    return masters;
  }
  const char* const text = environment.Get(kMasterKeyVariable);
  if (text != nullptr && *text != '\0') return ParseMasterKeys(text, kMasterKeyVariable);
  if (config.encryption == Encryption::kOn || !config.tenants_file.empty()) {
    return NoMasterKey(config);
  }
  return std::vector<SecretKey>{};
}

std::string KeyPlace::Describe() const {
  return tier != nullptr ? fmt::format("in tier {}", tier->name) : fmt::format("in {}", directory);
}

Result<KeyPlace> PlaceOfKeys(const NodeConfig& config, const NodeHost& host) {
  if (config.key_store.starts_with('/')) return PlaceAsNamed(config.key_store, host);
  for (const TierConfig& tier : config.tiers) {
    const bool meant = config.key_store.empty() || tier.name == config.key_store;
    if (meant && tier.kind != StoreKind::kRedis) return KeyPlace{.directory = {}, .tier = &tier};
  }
  return PlaceInState(host);
}

Result<std::unique_ptr<KeyStore>> OpenKeys(const KeyPlace& place,
                                           const SecretEnvironment& environment) {
  if (place.tier == nullptr && !place.memory.empty()) return OpenNamedKeys(place);
  if (place.tier == nullptr) return OpenKeyDirectory(place.directory);
  if (place.tier->kind == StoreKind::kPosix) {
    return NewMountedKeys(place.tier->directory + std::string(kKeyFolder),
                          PosixPaths(place.tier->directory).Marker());
  }
  AQ_ASSIGN_OR_RETURN(const BucketOptions bucket, BucketOf(*place.tier, environment));
  return OpenKeyBucket(bucket, SystemClock(), SystemRandom());
}

}  // namespace aquifer
