#include "node/config/tier_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/text/mistakes.h"
#include "base/text/setting_readers.h"
#include "base/text/size_text.h"
#include "cache/environment.h"
#include "net/protocol/local_protocol.h"
#include "store/redis/redis_slots.h"
#include "store/s3/bucket.h"
#include "store/s3/s3_endpoints.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLeastDirectoryBytes = 1024 * kMiB;  // Eight grants of 128 MiB.
constexpr size_t kMaxNameBytes = 32;
constexpr size_t kMaxEndpoints = 64;
constexpr size_t kMaxTextBytes = 255;
// A client is told of DRAM, of NVMe and of every durable tier.
static_assert(2 + kMaxDurableTiers <= kMaxStatsTiers);
constexpr std::array<std::string_view, 3> kKinds = {"posix", "redis", "object"};

// ---- Texts ----

bool IsMadeOf(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [others](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

// Over http:// and not to this host itself.
bool LeavesHostPlain(const std::string& url) {
  const Result<S3Endpoint> endpoint = ParseS3Endpoint(url);
  return endpoint.ok() && !endpoint->tls && !endpoint->loopback;
}

// ---- Reading one key ----

Status ReadName(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(tier->name, value.Text());
  if (tier->name.empty() || tier->name.size() > kMaxNameBytes || !IsMadeOf(tier->name, "-_")) {
    return value.Wrong("a name has 1 to 32 small letters, digits, '-' and '_'");
  }
  for (const std::string_view taken : {"dram", "nvme", "peer", "auto", "off"}) {
    if (tier->name == taken) {
      return value.Wrong(fmt::format("'{}' means something else already; choose another", taken));
    }
  }
  return Status();
}

Status ReadSize(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(tier->size_bytes, value.Bytes());
  if (tier->size_bytes >= kLeastDirectoryBytes) return Status();
  return value.Wrong(fmt::format("{} is too little; write at least {}", SizeText(tier->size_bytes),
                                 SizeText(kLeastDirectoryBytes)));
}

Status CheckEndpoint(const TomlValue& value, StoreKind kind, std::string_view text) {
  if (text.find('@') != std::string_view::npos) {
    return value.Wrong(kind == StoreKind::kRedis
                           ? "a server is a host and a port, like \"10.0.0.7:6379\"; name the user "
                             "with user, and a file with the password with password_file"
                           : "a server is like \"https://s3.example.com:9000\"; secrets belong "
                             "where credentials says");
  }
  if (kind == StoreKind::kRedis) {
    const Result<RedisAddress> address = ParseRedisAddress(text);
    if (address.ok() && address->ToString() == text) return Status();  // The port is not left out.
    return value.Wrong(fmt::format("'{}' is not a server; write it like \"10.0.0.7:6379\"", text));
  }
  if (ParseS3Endpoint(text).ok()) return Status();
  return value.Wrong(
      fmt::format("'{}' is not a server; write it like \"https://s3.example.com:9000\"", text));
}

Status ReadEndpoints(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(const auto elements, value.Elements());
  if (elements.size() > kMaxEndpoints) {
    return value.Wrong(
        fmt::format("{} servers are too many; name at most {}", elements.size(), kMaxEndpoints));
  }
  tier->endpoints.clear();
  for (const TomlValue& element : elements) {
    AQ_ASSIGN_OR_RETURN(std::string text, element.Text());
    AQ_RETURN_IF_ERROR(CheckEndpoint(element, tier->kind, text));
    if (text.ends_with('/')) text.pop_back();
    tier->endpoints.push_back(std::move(text));
  }
  return Status();
}

Status ReadUser(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(tier->user, value.Text());
  if (tier->user.size() <= kMaxTextBytes) return Status();
  return value.Wrong(fmt::format("a user's name has at most {} bytes", kMaxTextBytes));
}

Status ReadBucket(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(tier->bucket, value.Text());
  const Status named = CheckBucketName(tier->bucket);
  return named.ok() ? named : value.Wrong(named.message());
}

Status ReadPrefix(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(tier->prefix, value.Text());
  const std::string& prefix = tier->prefix;
  const bool fine = prefix.size() <= 128 && IsMadeOf(prefix, "-./") && !prefix.starts_with('/') &&
                    !prefix.ends_with('/') && prefix.find("//") == std::string::npos &&
                    prefix.find("..") == std::string::npos;
  if (fine) return Status();
  return value.Wrong(
      "a prefix has up to 128 small letters, digits, '-', '.' and '/', and no '/' at its ends");
}

Status ReadRegion(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(tier->region, value.Text());
  if (!tier->region.empty() && tier->region.size() <= 64 && IsMadeOf(tier->region, "-")) {
    return Status();
  }
  return value.Wrong(
      fmt::format("'{}' is not a region; write it like \"eu-central-1\"", tier->region));
}

Status ReadCredentials(const TomlValue& value, TierConfig* tier) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  if (text == kCredentialsFromEnvironment || text == kCredentialsFromWebIdentity) {
    tier->credentials = text;
    return Status();
  }
  if (text.starts_with('/')) return ReadPath<&TierConfig::credentials>(value, tier);
  // Not repeated: it may be a secret that was pasted here.
  return value.Wrong(
      "write \"env\", \"web-identity\" or the absolute path of a file; secrets do not belong here");
}

// ---- The keys ----

enum Kinds : unsigned { kPosix = 1, kRedis = 2, kObject = 4, kAll = 7 };

struct Setting {
  std::string_view name;
  unsigned kinds;     // That have it.
  unsigned required;  // That cannot be without it.
  Status (*read)(const TomlValue&, TierConfig*);
};
using T = TierConfig;
constexpr std::string_view kWrites[] = {"durable", "all", "nothing"};
constexpr std::string_view kLossless[] = {"auto", "on", "off"};
constexpr std::string_view kAddressing[] = {"path", "virtual-host"};
constexpr std::string_view kOff = "off";
constexpr std::string_view kSystem = "system";
constexpr Setting kKeys[] = {
    {"name", kAll, kAll, &ReadName},
    {"kind", kAll, kAll, &ReadChoice<&T::kind, kKinds>},
    {"writes", kAll, 0, &ReadChoice<&T::writes, kWrites>},
    {"write_budget", kAll, 0, &ReadWriteBudget<&T::write_bytes_per_second>},
    {"lossless", kAll, 0, &ReadChoice<&T::lossless, kLossless>},
    {"directory", kPosix, kPosix, &ReadPath<&T::directory>},
    {"size", kPosix, kPosix, &ReadSize},
    {"sync", kPosix, 0, &ReadFlag<&T::sync>},
    {"endpoints", kRedis | kObject, kRedis, &ReadEndpoints},
    {"prefix", kRedis | kObject, 0, &ReadPrefix},
    {"user", kRedis, 0, &ReadUser},
    {"password_file", kRedis, 0, &ReadPathOr<&T::password_file, kOff, true>},
    {"tls", kRedis, 0, &ReadFlag<&T::tls>},
    {"ca_file", kRedis | kObject, 0, &ReadPathOr<&T::ca_file, kSystem>},
    {"bucket", kObject, kObject, &ReadBucket},
    {"region", kObject, 0, &ReadRegion},
    {"addressing", kObject, 0, &ReadChoice<&T::virtual_host, kAddressing>},
    {"credentials", kObject, 0, &ReadCredentials},
    {"allow_plain_http", kObject, 0, &ReadFlag<&T::allow_plain_http>},
};

unsigned BitOf(StoreKind kind) { return 1u << static_cast<unsigned>(kind); }

const TomlValue* Find(const TomlValue& table, std::string_view name) {
  for (const auto& [key, value] : table.table()) {
    if (key == name) return &value;
  }
  return nullptr;
}

// A key that is known, but for tiers of another kind.
Status ExplainForeign(StoreKind kind, const std::string& name, const TomlValue& value) {
  for (const Setting& key : kKeys) {
    if (key.name != name) continue;
    std::vector<std::string_view> kinds;
    for (size_t i = 0; i < kKinds.size(); ++i) {
      if ((key.kinds & (1u << i)) != 0) kinds.push_back(kKinds[i]);
    }
    return value.Wrong(fmt::format("'{}' is for tiers of kind {}, and this one is {}", name,
                                   fmt::join(kinds, " and "), StoreKindName(kind)));
  }
  return Status();
}

Status CheckEncrypted(const TomlValue& table, const TierConfig& tier) {
  if (tier.kind == StoreKind::kRedis && !tier.user.empty() && tier.password_file.empty()) {
    return table.Wrong(
        fmt::format("user '{}' has no password_file; add one, or leave the user out", tier.user));
  }
  const bool plain = std::any_of(tier.endpoints.begin(), tier.endpoints.end(), &LeavesHostPlain);
  if (tier.kind != StoreKind::kObject || !plain || tier.allow_plain_http) return Status();
  return Find(table, "endpoints")
      ->Wrong(
          "what is sent over http:// can be read and changed on its way; write https://, or add "
          "allow_plain_http = true to accept that");
}

Result<TierConfig> ReadTier(const TomlValue& table) {
  if (!table.is_table()) return table.Wrong("write [[tier]], in two pairs of brackets");
  TierConfig tier;
  const TomlValue* const kind = Find(table, "kind");
  if (kind == nullptr) {
    return table.Wrong(
        fmt::format("this tier has no kind; add kind = \"{}\"", fmt::join(kKinds, "\" or \"")));
  }
  AQ_RETURN_IF_ERROR((ReadChoice<&T::kind, kKinds>(*kind, &tier)));
  if (tier.kind == StoreKind::kRedis) tier.writes = TierWrites::kAll;
  std::vector<TomlKey> keys;
  for (const Setting& key : kKeys) {
    if ((key.kinds & BitOf(tier.kind)) == 0) continue;
    keys.push_back({std::string(key.name),
                    [&key, &tier](const TomlValue& value) { return key.read(value, &tier); }});
  }
  Mistakes mistakes;
  mistakes.Add(ReadTable(table, keys, [&tier](const std::string& name, const TomlValue& value) {
    return ExplainForeign(tier.kind, name, value);
  }));
  for (const Setting& key : kKeys) {
    if ((key.required & BitOf(tier.kind)) == 0 || Find(table, key.name) != nullptr) continue;
    mistakes.Add(table.Wrong(
        fmt::format("a tier of kind {} needs '{}'; add it", StoreKindName(tier.kind), key.name)));
  }
  AQ_RETURN_IF_ERROR(mistakes.All());
  AQ_RETURN_IF_ERROR(CheckEncrypted(table, tier));
  if (tier.kind == StoreKind::kRedis && tier.endpoints.empty()) {
    return Find(table, "endpoints")->Wrong("name at least one server");
  }
  return tier;
}

// Where it keeps its blobs; two tiers in one place would each take the other's for its own.
std::string PlaceOf(const TierConfig& tier) {
  switch (tier.kind) {
    case StoreKind::kPosix:
      return tier.directory;
    case StoreKind::kRedis:
      return fmt::format("{} {}", fmt::join(tier.endpoints, ","), tier.prefix);
    case StoreKind::kObject:
      return fmt::format("{} {} {}", fmt::join(tier.endpoints, ","), tier.bucket, tier.prefix);
  }
  return "";
}

}  // namespace

std::string_view StoreKindName(StoreKind kind) { return kKinds[static_cast<size_t>(kind)]; }

Result<std::vector<TierConfig>> ReadTiers(const TomlValue& list) {
  if (!list.is_list()) return list.Wrong("write [[tier]], in two pairs of brackets");
  AQ_ASSIGN_OR_RETURN(const auto elements, list.Elements());
  if (elements.size() > kMaxDurableTiers) {
    return list.Wrong(fmt::format("{} tiers are too many; at most {} are possible", elements.size(),
                                  kMaxDurableTiers));
  }
  std::vector<TierConfig> tiers;
  Mistakes mistakes;
  std::map<std::string, std::string> seen;  // Names and places, to where they are.
  for (const TomlValue& element : elements) {
    Result<TierConfig> read = ReadTier(element);
    mistakes.Add(read.status());
    if (!read.ok()) continue;
    TierConfig& tier = *read;
    if (const auto [at, added] = seen.emplace("name " + tier.name, element.where()); !added) {
      mistakes.Add(element.Wrong(fmt::format(
          "tier '{}' is there already, at {}; give each its own name", tier.name, at->second)));
    }
    const std::string place = fmt::format("{} {}", StoreKindName(tier.kind), PlaceOf(tier));
    if (const auto [at, added] = seen.emplace(place, element.where()); !added) {
      mistakes.Add(element.Wrong(
          fmt::format("the tier at {} is in the same place; leave one of them out", at->second)));
    }
    tiers.push_back(std::move(tier));
  }
  AQ_RETURN_IF_ERROR(mistakes.All());
  return tiers;
}

std::string DescribeTier(const TierConfig& tier) {
  switch (tier.kind) {
    case StoreKind::kPosix:
      return fmt::format("{}: posix, at most {} in {}{}", tier.name, SizeText(tier.size_bytes),
                         tier.directory, tier.sync ? ", synced" : "");
    case StoreKind::kRedis:
      return fmt::format("{}: redis, at {}{}", tier.name, fmt::join(tier.endpoints, ", "),
                         tier.tls ? ", by TLS" : "");
    case StoreKind::kObject:
      return fmt::format("{}: object, in bucket {} of {}", tier.name, tier.bucket,
                         tier.endpoints.empty()
                             ? fmt::format("Amazon S3, {}", tier.region)
                             : fmt::format("{}", fmt::join(tier.endpoints, ", ")));
  }
  return tier.name;
}

std::vector<std::string> TierConfigKeys() {
  std::vector<std::string> names;
  for (const Setting& key : kKeys) names.emplace_back(key.name);
  return names;
}

}  // namespace aquifer
