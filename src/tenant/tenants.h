// Who may use a node, and how much of it: the tenants of one file, or the one local tenant where
// there is no file. It never changes: a reload reads a new one, and what was given out by the old
// one stays good for as long as that is kept.
//
// A token is never stored, only its SHA-256, and is compared in constant time. Whoever is refused
// hears the same whether the tenant, the token or the user was wrong; the reason is for the audit
// log alone. Any thread may ask.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/crypto/sha256.h"

namespace aquifer {

struct Tenant {
  // Name, floors, ceilings, time to live, priority: as the cache takes them.
  TenantOptions options{};
  std::optional<Sha256Digest> token_sha256{};  // None: it needs no token.
  std::vector<uid_t> uids{};                   // Empty: every user who has the token.
};

// Why somebody was refused. For the audit log; never for the one who was refused.
enum class Denial : uint8_t { kNone, kUnknownTenant, kWrongToken, kWrongUser };

std::string_view DenialName(Denial denial);  // "unknown tenant", ...

// What all tenants share; their floors must fit.
struct TierCapacities {
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;
};

class Tenants {
 public:
  // One tenant, "local", without a token, for this user only; durable where there is a tier for
  // that.
  static std::shared_ptr<const Tenants> Local(uid_t uid);

  // kInvalid with file, line, reason and what to do. `self` is the node's own user: the file must
  // belong to it and be closed to all others, or belong to root and be writable by nobody else.
  static Result<std::shared_ptr<const Tenants>> Read(const std::string& path,
                                                     const TierCapacities& capacities, uid_t self);
  // The same of a text; `file` is for messages.
  static Result<std::shared_ptr<const Tenants>> Parse(std::string_view text,
                                                      const std::string& file,
                                                      const TierCapacities& capacities);

  // The tenant, which lives as long as this object; else kInvalid with kAccessDenied, and why in
  // `*denial`, which may be null.
  Result<const Tenant*> Authenticate(std::string_view name, std::string_view token, uid_t uid,
                                     Denial* denial) const;

  // Whether somebody who showed a token of this digest would still be let in.
  bool Admits(std::string_view name, const Sha256Digest& token_digest, uid_t uid) const;

  std::span<const Tenant> all() const { return tenants_; }
  bool from_file() const { return from_file_; }

  // For CacheOptions::tenants.
  std::vector<TenantOptions> Options() const;

 private:
  Tenants(std::vector<Tenant> tenants, bool from_file);

  Result<const Tenant*> Find(std::string_view name, const Sha256Digest& token_digest, uid_t uid,
                             Denial* denial) const;

  const std::vector<Tenant> tenants_;
  const bool from_file_;
  std::vector<Sha256Digest> names_;  // Of each tenant, so that names compare in constant time too.
};

inline constexpr std::string_view kAccessDenied =
    "access denied: the tenant, its token or this user is not the right one";

// Whether a file with this owner and these permissions may say who is allowed.
Status CheckTenantsFileMode(const std::string& path, uid_t owner, mode_t mode, uid_t self);

// The keys that a [[tenant]] may have, in the order of the documentation.
std::vector<std::string> TenantKeys();

}  // namespace aquifer
