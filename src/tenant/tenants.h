// Tenants says which tenants may use a node, and how much of it. They come from one file; without a
// file there is one local tenant. The object never changes: a reload reads a new one. References
// into the old one stay valid for as long as the caller keeps it.
//
// A token is never stored, only its SHA-256, and is compared in constant time. A client that is
// refused gets the same answer whether the tenant, the token or the user was wrong. The reason goes
// only to the audit log. Any thread may call.
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
  // Name, floors, ceilings, time to live and priority, as the cache takes them.
  TenantOptions options{};
  std::optional<Sha256Digest> token_sha256{};  // None: the tenant needs no token.
  std::vector<uid_t> uids{};                   // Empty: every user that has the token.
};

// Why a client was refused. For the audit log; never sent to the client.
enum class Denial : uint8_t { kNone, kUnknownTenant, kWrongToken, kWrongUser };

std::string_view DenialName(Denial denial);  // "unknown tenant", ...

// The capacities that all tenants share; the tenants' floors must fit.
struct TierCapacities {
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;
};

class Tenants {
 public:
  // One tenant, "local", without a token, for this user only. It is durable if there is a durable
  // tier.
  static std::shared_ptr<const Tenants> Local(uid_t uid);

  // Returns kInvalid with file, line, reason and remedy. `self` is the node's own user. The file
  // must belong to it and be closed to all others, or belong to root and be writable by root only.
  static Result<std::shared_ptr<const Tenants>> Read(const std::string& path,
                                                     const TierCapacities& capacities, uid_t self);
  // Reads the same from a text; `file` is for messages.
  static Result<std::shared_ptr<const Tenants>> Parse(std::string_view text,
                                                      const std::string& file,
                                                      const TierCapacities& capacities);

  // Returns the tenant, which lives as long as this object. Returns kInvalid with kAccessDenied
  // otherwise, with the reason in `*denial`, which may be null.
  Result<const Tenant*> Authenticate(std::string_view name, std::string_view token, uid_t uid,
                                     Denial* denial) const;

  // Returns true if a client that showed a token of this digest would still be let in.
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
  // The digest of each tenant's name, so that names also compare in constant time.
  std::vector<Sha256Digest> names_;
};

inline constexpr std::string_view kAccessDenied =
    "access denied: the tenant, its token or this user is not the right one";

// Refuses a tenants file whose owner and permissions let others change or read it.
Status CheckTenantsFileMode(const std::string& path, uid_t owner, mode_t mode, uid_t self);

// The keys that a [[tenant]] may have, in the order of the documentation.
std::vector<std::string> TenantKeys();

}  // namespace aquifer
