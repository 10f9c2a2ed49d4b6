// A [[tier]] of the node's file: a store that outlives the node and that other nodes may share. As
// plain values; etc/aquifer.toml documents every key, and node_stores.h makes stores of them.
// Secrets are not in here: only the names of the files that hold them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "base/text/toml_value.h"

namespace aquifer {

enum class StoreKind : uint8_t { kPosix, kRedis, kObject };

std::string_view StoreKindName(StoreKind kind);  // "posix", "redis", "object"

// Whether blocks are made smaller on their way. kAuto: where it pays by the tier's measured speed.
enum class LosslessChoice : uint8_t { kAuto, kOn, kOff };

// Which blocks are written to a tier. kAll: it is a cache that nodes share. kNothing: it serves
// what others wrote.
enum class TierWrites : uint8_t { kDurable, kAll, kNothing };

struct TierConfig {
  std::string name{};
  StoreKind kind = StoreKind::kPosix;
  TierWrites writes = TierWrites::kDurable;  // Of redis: kAll.
  uint64_t write_bytes_per_second = 0;       // 0: no limit.
  LosslessChoice lossless = LosslessChoice::kAuto;

  // posix
  std::string directory{};
  uint64_t size_bytes = 0;  // Of all nodes that share the directory.
  bool sync = false;

  // redis: "host:port"; object: "https://host:port", and none: Amazon's of the region.
  std::vector<std::string> endpoints{};
  std::string ca_file{};  // Empty: those that the system trusts.

  std::string prefix{};  // Of names there. Empty: none, and of redis: "aquifer".

  // redis
  std::string user{};
  std::string password_file{};  // Empty: no password.
  bool tls = true;

  // object
  std::string bucket{};
  std::string region = "us-east-1";
  bool virtual_host = false;
  std::string credentials = "env";  // Or "web-identity", or an absolute path.
  bool allow_plain_http = false;

  friend bool operator==(const TierConfig&, const TierConfig&) = default;
};

inline constexpr std::string_view kCredentialsFromEnvironment = "env";
inline constexpr std::string_view kCredentialsFromWebIdentity = "web-identity";

// All [[tier]] tables. kInvalid: file, line, reason, and what to write.
Result<std::vector<TierConfig>> ReadTiers(const TomlValue& list);

// "shared: posix, at most 10TiB in /mnt/shared"
std::string DescribeTier(const TierConfig& tier);

// Every key that a [[tier]] may have, in the order of the documentation.
std::vector<std::string> TierConfigKeys();

}  // namespace aquifer
