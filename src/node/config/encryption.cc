#include "node/config/encryption.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "node/config/node_stores.h"
#include "store/posix/posix_paths.h"
#include "tenant/keys/data_keys.h"
#include "tenant/keys/key_bucket.h"
#include "tenant/keys/master_keys.h"
#include "tenant/keys/mounted_keys.h"

namespace aquifer {
namespace {

// Of a posix tier, or of the node's state.
constexpr std::string_view kKeyFolder = "/keys";
// What OpenKeyDirectory() leaves in every directory of keys.
constexpr std::string_view kKeyMarker = "/.lock";

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

// Keys are as durable as what they seal on this host.
Result<KeyPlace> PlaceInState(const NodeHost& host) {
  const std::string state = StateDirectoryOf(host);
  if (!state.empty()) return KeyPlace{.directory = state + std::string(kKeyFolder)};
  return Invalid(
      fmt::format("there is no place for data keys: {} cannot be written; name a "
                  "directory with key_store",
                  host.state_directory));
}

KeyAddress AddressIn(const TierConfig& tier) {
  if (tier.kind == StoreKind::kPosix)
    return {.directory = tier.directory + std::string(kKeyFolder)};
  return {.bucket = tier.bucket, .prefix = tier.prefix, .endpoints = EndpointsOf(tier)};
}

// Null: no tier of the configuration has them there.
const TierConfig* TierAt(const KeyAddress& address, const NodeConfig& config) {
  for (const TierConfig& tier : config.tiers) {
    if (tier.kind != StoreKind::kRedis && AddressIn(tier).IsSame(address)) return &tier;
  }
  return nullptr;
}

// What key_store has to be for keys to be there.
std::string SettingFor(const KeyAddress& address, const NodeConfig& config) {
  if (const TierConfig* const tier = TierAt(address, config)) {
    return fmt::format("key_store = \"{}\"", tier->name);
  }
  if (!address.directory.empty()) return fmt::format("key_store = \"{}\"", address.directory);
  return "key_store = the name of a [[tier]] with that bucket";
}

// Nobody has asked for it: it would follow from a tier that is new, gone, or in another place.
Status WouldMove(const KeyAddress& before, const KeyAddress& now, const NodeConfig& config) {
  return Invalid(fmt::format(
      "this node's data keys are {}, and with these tiers new ones would be made {}, while what is "
      "stored could not be read any more; write {} to go on with those there are, or {} once they "
      "have been copied there",
      before.Describe(), now.Describe(), SettingFor(before, config), SettingFor(now, config)));
}

std::unique_ptr<KeyStore> OpenKnownDirectory(const std::string& directory) {
  return NewMountedKeys(directory, directory + std::string(kKeyMarker));
}

Result<std::unique_ptr<KeyStore>> OpenBucketOf(const TierConfig& tier,
                                               const SecretEnvironment& environment) {
  AQ_ASSIGN_OR_RETURN(const BucketOptions bucket, BucketOf(tier, environment));
  return OpenKeyBucket(bucket, SystemClock(), SystemRandom());
}

// `known`: this node has had keys there.
Result<std::unique_ptr<KeyStore>> OpenPlace(const KeyPlace& place, bool known,
                                            const SecretEnvironment& environment) {
  if (place.tier != nullptr && place.tier->kind == StoreKind::kObject) {
    return OpenBucketOf(*place.tier, environment);
  }
  const std::string directory = place.Address().directory;
  if (known) return OpenKnownDirectory(directory);
  // The tier makes its own directory, when it can.
  if (place.tier != nullptr) {
    return NewMountedKeys(directory, PosixPaths(place.tier->directory).Marker());
  }
  AQ_RETURN_IF_ERROR(OpenKeyDirectory(directory).status());
  return OpenKnownDirectory(directory);
}

Result<std::unique_ptr<KeyStore>> OpenBucketAt(const KeyAddress& address, const NodeConfig& config,
                                               const SecretEnvironment& environment) {
  const TierConfig* const tier = TierAt(address, config);
  if (tier == nullptr) return Invalid("no [[tier]] here has that bucket");
  return OpenBucketOf(*tier, environment);
}

// Both as they are.
Result<size_t> CountLeftBehind(const KeyAddress& before, const KeyAddress& now,
                               const NodeConfig& config, const SecretEnvironment& environment) {
  std::unique_ptr<KeyStore> from;
  std::unique_ptr<KeyStore> to;  // Null: there is nothing.
  if (!before.directory.empty()) {
    from = OpenKnownDirectory(before.directory);
  } else {
    AQ_ASSIGN_OR_RETURN(from, OpenBucketAt(before, config, environment));
  }
  if (now.directory.empty()) {
    AQ_ASSIGN_OR_RETURN(to, OpenBucketAt(now, config, environment));
  } else if (std::error_code error; !std::filesystem::is_empty(now.directory, error) && !error) {
    // An empty one may be a mount point: opening it would leave a file there that proves otherwise.
    AQ_ASSIGN_OR_RETURN(to, OpenKeyDirectory(now.directory));
  }
  return CountMissingKeys(from.get(), to.get());
}

// Whoever names another place may mean it: then all keys have been copied there.
Status CheckCopied(const KeyAddress& before, const KeyAddress& now, const NodeConfig& config,
                   const SecretEnvironment& environment, const std::string& memory) {
  const Result<size_t> missing = CountLeftBehind(before, now, config, environment);
  if (missing.ok() && *missing == 0) return Status();
  const std::string what =
      missing.ok() ? fmt::format("those of {} tenants are not {}", *missing, now.Describe())
                   : fmt::format("whether they are {} cannot be told ({})", now.Describe(),
                                 missing.status().message());
  return Invalid(fmt::format(
      "this node's data keys are {}, and {}; write {} to go on with those; or end all nodes that "
      "use them and copy all that is there first; or remove {} to begin without them, after which "
      "nothing that they sealed can be read",
      before.Describe(), what, SettingFor(before, config), memory));
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

KeyAddress KeyPlace::Address() const {
  return tier != nullptr ? AddressIn(*tier) : KeyAddress{.directory = directory};
}

Result<KeyPlace> PlaceOfKeys(const NodeConfig& config, const NodeHost& host) {
  if (config.key_store.starts_with('/')) return KeyPlace{.directory = config.key_store};
  for (const TierConfig& tier : config.tiers) {
    const bool meant = config.key_store.empty() || tier.name == config.key_store;
    if (meant && tier.kind != StoreKind::kRedis) return KeyPlace{.directory = {}, .tier = &tier};
  }
  return PlaceInState(host);
}

KeyMemory MemoryOfKeys(const NodeHost& host, const std::string& socket) {
  return KeyMemory(StateDirectoryOf(host), socket);
}

Result<std::unique_ptr<KeyStore>> OpenKeys(const NodeConfig& config, const KeyPlace& place,
                                           const KeyMemory& memory,
                                           const SecretEnvironment& environment,
                                           const std::function<void(const std::string&)>& log) {
  AQ_ASSIGN_OR_RETURN(const std::optional<KeyAddress> before, memory.Recall());
  const KeyAddress now = place.Address();
  const bool known = before && before->IsSame(now);
  const bool named = !config.key_store.empty();
  if (before && !known) {
    if (!named) return WouldMove(*before, now, config);
    AQ_RETURN_IF_ERROR(CheckCopied(*before, now, config, environment, memory.file()));
    log(
        fmt::format("data keys were {} and are {} now; once every node has them there, destroy the "
                    "old ones, or a tenant that is deleted leaves its key behind",
                    before->Describe(), now.Describe()));
  }
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<KeyStore> store, OpenPlace(place, known, environment));
  return NewRememberedKeys(std::move(store), memory, now, [named, log](const Status& failure) {
    if (named) return;  // Then it stays there without that.
    log(
        fmt::format("warning: where data keys are cannot be remembered ({}); name the place with "
                    "key_store, or a tier that is added may take them elsewhere",
                    failure.message()));
  });
}

}  // namespace aquifer
