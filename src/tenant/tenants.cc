#include "tenant/tenants.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "base/text/hex_text.h"
#include "base/text/size_text.h"
#include "base/text/toml_value.h"
#include "tenant/token.h"

namespace aquifer {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxTenants = 4096;

// Returns true if the name can go into metrics, logs and paths.
bool NameIsFine(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name.starts_with('.')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

// ---- Reading one tenant ----

Status ReadName(const TomlValue& value, Tenant* tenant) {
  AQ_ASSIGN_OR_RETURN(tenant->options.name, value.Text());
  if (NameIsFine(tenant->options.name)) return Status();
  return value.Wrong("a name has 1 to 64 letters, digits, '.', '_' and '-', and no '.' in front");
}

Status ReadToken(const TomlValue& value, Tenant* tenant) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  const Result<Sha256Digest> digest = ParseTokenDigest(text);
  if (!digest.ok()) return value.Wrong(digest.status().message());
  tenant->token_sha256 = *digest;
  return Status();
}

template <auto kMember>
Status ReadBytes(const TomlValue& value, Tenant* tenant) {
  AQ_ASSIGN_OR_RETURN(tenant->options.*kMember, value.Bytes());
  return Status();
}

template <auto kMember>
Status ReadCeiling(const TomlValue& value, Tenant* tenant) {
  AQ_RETURN_IF_ERROR(ReadBytes<kMember>(value, tenant));
  if (tenant->options.*kMember > 0) return Status();
  return value.Wrong("with 0 nothing could be stored; leave the key out where there is no ceiling");
}

Status ReadTtl(const TomlValue& value, Tenant* tenant) {
  AQ_ASSIGN_OR_RETURN(tenant->options.ttl_seconds, value.Seconds(0));
  return Status();
}

Status ReadPriority(const TomlValue& value, Tenant* tenant) {
  AQ_ASSIGN_OR_RETURN(const int64_t priority, value.Integer(kLeastPriority, kMostPriority));
  tenant->options.priority = static_cast<int8_t>(priority);
  return Status();
}

Status ReadDurability(const TomlValue& value, Tenant* tenant) {
  constexpr std::array<std::string_view, 3> kNames = {"none", "durable", "never"};
  AQ_ASSIGN_OR_RETURN(const size_t index, value.OneOf(kNames));
  tenant->options.durability = index == 1 ? Durability::kDurable : Durability::kNone;
  tenant->options.may_leave_host = index != 2;
  return Status();
}

Status ReadUids(const TomlValue& value, Tenant* tenant) {
  AQ_ASSIGN_OR_RETURN(const auto elements, value.Elements());
  if (elements.empty()) {
    return value.Wrong("nobody could connect; leave the key out to allow every user");
  }
  tenant->uids.clear();
  for (const TomlValue& element : elements) {
    // The largest uid means "no user".
    AQ_ASSIGN_OR_RETURN(const int64_t uid,
                        element.Integer(0, std::numeric_limits<uid_t>::max() - int64_t{1}));
    tenant->uids.push_back(static_cast<uid_t>(uid));
  }
  return Status();
}

using T = TenantOptions;
struct Setting {
  std::string_view name;
  Status (*read)(const TomlValue&, Tenant*);
};
constexpr Setting kKeys[] = {
    {"name", &ReadName},
    {"token_sha256", &ReadToken},
    {"uids", &ReadUids},
    {"dram_floor", &ReadBytes<&T::dram_floor_bytes>},
    {"dram_ceiling", &ReadCeiling<&T::dram_ceiling_bytes>},
    {"nvme_floor", &ReadBytes<&T::nvme_floor_bytes>},
    {"nvme_ceiling", &ReadCeiling<&T::nvme_ceiling_bytes>},
    {"ttl", &ReadTtl},
    {"priority", &ReadPriority},
    {"durability", &ReadDurability},
};

Status CheckBounds(const TomlValue& value, std::string_view tier, uint64_t floor,
                   uint64_t ceiling) {
  if (floor <= ceiling) return Status();
  return value.Wrong(fmt::format("{0}_floor, {1}, is above {0}_ceiling, {2}", tier, SizeText(floor),
                                 SizeText(ceiling)));
}

Result<Tenant> ReadTenant(const TomlValue& value) {
  Tenant tenant;
  std::vector<TomlKey> keys;
  for (const Setting& key : kKeys) {
    keys.push_back({std::string(key.name),
                    [&key, &tenant](const TomlValue& v) { return key.read(v, &tenant); }});
  }
  AQ_RETURN_IF_ERROR(ReadTable(value, keys));
  if (tenant.options.name.empty()) return value.Wrong("this tenant has no name; add one");
  if (!tenant.token_sha256.has_value()) {
    return value.Wrong(
        fmt::format("tenant '{}' has no token_sha256; add one", tenant.options.name));
  }
  AQ_RETURN_IF_ERROR(CheckBounds(value, "dram", tenant.options.dram_floor_bytes,
                                 tenant.options.dram_ceiling_bytes));
  AQ_RETURN_IF_ERROR(CheckBounds(value, "nvme", tenant.options.nvme_floor_bytes,
                                 tenant.options.nvme_ceiling_bytes));
  return tenant;
}

// ---- All of them together ----

// Refuses the tenant whose floor no longer fits.
Status AddFloor(const TomlValue& value, std::string_view tier, uint64_t floor, uint64_t capacity,
                uint64_t* sum) {
  if (floor <= capacity - std::min(capacity, *sum)) {
    *sum += floor;
    return Status();
  }
  return value.Wrong(
      fmt::format("with this one the tenants' {0} floors are more than the {1} of {0} that there "
                  "are ({2} before "
                  "it, {3} for it); lower some, or give the node more",
                  tier, SizeText(capacity), SizeText(*sum), SizeText(floor)));
}

}  // namespace

std::string_view DenialName(Denial denial) {
  switch (denial) {
    case Denial::kNone:
      return "none";
    case Denial::kUnknownTenant:
      return "unknown tenant";
    case Denial::kWrongToken:
      return "wrong token";
    case Denial::kWrongUser:
      return "wrong user";
  }
  return "unknown";
}

Status CheckTenantsFileMode(const std::string& path, uid_t owner, mode_t mode, uid_t self) {
  if (owner != 0 && owner != self) {
    return Status(
        Code::kInvalid,
        fmt::format("{} belongs to user {}, who could make anybody a tenant; run: chown {} "
                    "{}",
                    path, owner, self, path));
  }
  // Others may read a file of root's: it holds digests only, and packages install it readable.
  const mode_t forbidden = owner == 0 ? S_IWGRP | S_IWOTH : S_IRWXG | S_IRWXO;
  if ((mode & forbidden) == 0) return Status();
  return Status(Code::kInvalid,
                fmt::format("{} can be {} by others than its owner (mode {:o}); run: chmod {} {}",
                            path, owner == 0 ? "written" : "read or written", mode & 07777,
                            owner == 0 ? "go-w" : "600", path));
}

std::vector<std::string> TenantKeys() {
  std::vector<std::string> names;
  for (const Setting& key : kKeys) names.emplace_back(key.name);
  return names;
}

Tenants::Tenants(std::vector<Tenant> tenants, bool from_file)
    : tenants_(std::move(tenants)), from_file_(from_file) {
  for (const Tenant& tenant : tenants_) names_.push_back(DigestOfToken(tenant.options.name));
}

std::shared_ptr<const Tenants> Tenants::Local(uid_t uid) {
  Tenant tenant;
  tenant.options.name = "local";
  tenant.uids = {uid};
  // A tenant on a node with durable tiers uses them by default.
  tenant.options.durability = Durability::kDurable;
  return std::shared_ptr<const Tenants>(new Tenants({std::move(tenant)}, false));
}

Result<std::shared_ptr<const Tenants>> Tenants::Parse(std::string_view text,
                                                      const std::string& file,
                                                      const TierCapacities& capacities) {
  AQ_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  std::vector<Tenant> tenants;
  std::map<std::string, std::string> names;     // From each name to its place in the file.
  std::map<Sha256Digest, std::string> digests;  // From each digest to its tenant.
  uint64_t dram_floors = 0;
  uint64_t nvme_floors = 0;
  const auto read_tenant = [&](const TomlValue& value) -> Status {
    AQ_ASSIGN_OR_RETURN(Tenant tenant, ReadTenant(value));
    const std::string& name = tenant.options.name;
    if (const auto [it, added] = names.emplace(name, value.where()); !added) {
      return value.Wrong(
          fmt::format("tenant '{}' is there already, at {}; give each once", name, it->second));
    }
    if (const auto [it, added] = digests.emplace(*tenant.token_sha256, name); !added) {
      return value.Wrong(fmt::format("tenants '{}' and '{}' have the same token; give each its own",
                                     it->second, name));
    }
    AQ_RETURN_IF_ERROR(AddFloor(value, "dram", tenant.options.dram_floor_bytes,
                                capacities.dram_bytes, &dram_floors));
    AQ_RETURN_IF_ERROR(AddFloor(value, "nvme", tenant.options.nvme_floor_bytes,
                                capacities.nvme_bytes, &nvme_floors));
    tenants.push_back(std::move(tenant));
    return Status();
  };
  const TomlKey key = {"tenant", [&read_tenant](const TomlValue& value) -> Status {
                         if (!value.is_list()) {
                           return value.Wrong("write [[tenant]], in two pairs of brackets");
                         }
                         AQ_ASSIGN_OR_RETURN(const auto elements, value.Elements());
                         if (elements.size() > kMaxTenants) {
                           return value.Wrong(fmt::format("{} tenants; at most {} are possible",
                                                          elements.size(), kMaxTenants));
                         }
                         for (const TomlValue& element : elements) {
                           AQ_RETURN_IF_ERROR(read_tenant(element));
                         }
                         return Status();
                       }};
  AQ_RETURN_IF_ERROR(ReadTable(root, std::span(&key, 1)));
  if (tenants.empty()) {
    return Status(
        Code::kInvalid,
        fmt::format("{}: there is no [[tenant]] here, so nobody could connect; add one", file));
  }
  return std::shared_ptr<const Tenants>(new Tenants(std::move(tenants), true));
}

Result<std::shared_ptr<const Tenants>> Tenants::Read(const std::string& path,
                                                     const TierCapacities& capacities, uid_t self) {
  AQ_ASSIGN_OR_RETURN(const std::string text,
                      ReadSettingsFile(path, [&path, self](const struct stat& file) {
                        return CheckTenantsFileMode(path, file.st_uid, file.st_mode, self);
                      }));
  return Parse(text, path, capacities);
}

Result<const Tenant*> Tenants::Authenticate(std::string_view name, std::string_view token,
                                            uid_t uid, Denial* denial) const {
  return Find(name, DigestOfToken(token), uid, denial);
}

bool Tenants::Admits(std::string_view name, const Sha256Digest& token_digest, uid_t uid) const {
  return Find(name, token_digest, uid, nullptr).ok();
}

Result<const Tenant*> Tenants::Find(std::string_view name, const Sha256Digest& token_digest,
                                    uid_t uid, Denial* denial) const {
  // Every comparison runs in every case, so that the time of the answer says nothing either.
  const Sha256Digest name_digest = DigestOfToken(name);
  const Tenant* found = nullptr;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    if (SameDigest(names_[i], name_digest)) found = &tenants_[i];
  }
  const Tenant& compared = found != nullptr ? *found : tenants_.front();
  const bool token_fits = SameDigest(compared.token_sha256.value_or(token_digest), token_digest);
  const bool user_fits =
      compared.uids.empty() ||
      std::find(compared.uids.begin(), compared.uids.end(), uid) != compared.uids.end();
  Denial reason = Denial::kNone;
  if (found == nullptr) {
    reason = Denial::kUnknownTenant;
  } else if (!token_fits) {
    reason = Denial::kWrongToken;
  } else if (!user_fits) {
    reason = Denial::kWrongUser;
  }
  if (denial != nullptr) *denial = reason;
  if (reason != Denial::kNone) return Status(Code::kInvalid, std::string(kAccessDenied));
  return found;
}

std::vector<TenantOptions> Tenants::Options() const {
  std::vector<TenantOptions> options;
  for (const Tenant& tenant : tenants_) options.push_back(tenant.options);
  return options;
}

}  // namespace aquifer
