#include "node/encryption.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "base/random.h"
#include "node/node_stores.h"
#include "tenant/key_bucket.h"
#include "tenant/master_keys.h"
#include "tenant/mounted_keys.h"

namespace aquifer {
namespace {

// A folder of a posix tier, and what is there whenever that tier's file system is.
constexpr std::string_view kKeyFolder = "/keys";
constexpr std::string_view kStoreMarker = "/aquifer-store";

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

Status NoMasterKey(const NodeConfig& config) {
  return Invalid(fmt::format(
      "{}, what leaves DRAM must be encrypted, and there is no master key; make one with `(umask "
      "077; openssl rand -hex 32 > FILE)` and name it with master_key_file, or put it into {}; or "
      "write encryption = \"off\" to accept that nothing is encrypted",
      config.encryption == Encryption::kOn ? "with encryption = \"on\"" : "with tenants",
      kMasterKeyVariable));
}

bool MakeOwnDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return ::access(path.c_str(), W_OK | X_OK) == 0;
}

// Keys are as durable as what they seal on this host.
Result<KeyPlace> PlaceInState(const NodeHost& host) {
  for (const std::string& state :
       {host.state_directory,
        host.state_home.empty() ? std::string() : host.state_home + "/aquifer"}) {
    if (!state.empty() && MakeOwnDirectory(state)) {
      return KeyPlace{.directory = state + std::string(kKeyFolder)};
    }
  }
  return Invalid(
      fmt::format("there is no place for data keys: {} cannot be written; name a "
                  "directory with key_store",
                  host.state_directory));
}

}  // namespace

Result<std::vector<SecretKey>> MasterKeysFor(const NodeConfig& config,
                                             const SecretEnvironment& environment, uid_t self) {
  if (config.encryption == Encryption::kOff) return std::vector<SecretKey>{};
  if (!config.master_key_file.empty()) return ReadMasterKeyFile(config.master_key_file, self);
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
  if (config.key_store.starts_with('/')) return KeyPlace{.directory = config.key_store};
  for (const TierConfig& tier : config.tiers) {
    const bool meant = config.key_store.empty() || tier.name == config.key_store;
    if (meant && tier.kind != StoreKind::kRedis) return KeyPlace{.directory = {}, .tier = &tier};
  }
  return PlaceInState(host);
}

Result<std::unique_ptr<KeyStore>> OpenKeys(const KeyPlace& place,
                                           const SecretEnvironment& environment) {
  if (place.tier == nullptr) return OpenKeyDirectory(place.directory);
  if (place.tier->kind == StoreKind::kPosix) {
    return NewMountedKeys(place.tier->directory + std::string(kKeyFolder),
                          place.tier->directory + std::string(kStoreMarker));
  }
  AQ_ASSIGN_OR_RETURN(const BucketOptions bucket, BucketOf(*place.tier, environment));
  return OpenKeyBucket(bucket, SystemClock(), SystemRandom());
}

}  // namespace aquifer
