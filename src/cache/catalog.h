// Small numbers for the large names that every block carries: tenants, layouts, and the pools that
// DRAM slots come from. A number is never given out twice while the cache lives.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "block/block_id.h"

namespace aquifer {

struct TenantRecord {
  TenantId id;
  TenantOptions options;
};

struct GroupRecord {
  uint64_t block_bytes = 0;  // 0: not known yet.
  uint32_t heads = 1;        // What a commit must cover.
};

struct LayoutRecord {
  Digest fingerprint{};
  uint32_t tokens_per_block = 0;  // 0: only met on a disk, not registered yet.
  std::vector<GroupRecord> groups;
};

// Slots of one size that belong to one tenant: what evicting one block can give to another.
struct PoolRecord {
  uint16_t tenant = 0;
  uint64_t slot_bytes = 0;
};

class Catalog {
 public:
  // The number of a tenant, made on first sight. kNoSpace past 65 535.
  Result<uint16_t> Tenant(const TenantId& id);
  // The same by name, for which configured options are known.
  Result<uint16_t> Tenant(std::string_view name, const TenantOptions& options);

  // kInvalid when the layout cannot be stored.
  Result<uint16_t> Register(const Layout& layout);
  // For a block found on a disk, whose layout no engine has registered yet.
  Result<uint16_t> Learn(const Digest& fingerprint, uint16_t group, uint64_t block_bytes);

  Result<uint16_t> Pool(uint16_t tenant, uint64_t slot_bytes);

  const TenantRecord& tenant(uint16_t number) const { return tenants_[number]; }
  const LayoutRecord& layout(uint16_t number) const { return layouts_[number]; }
  const PoolRecord& pool(uint16_t number) const { return pools_[number]; }
  size_t tenants() const { return tenants_.size(); }
  size_t layouts() const { return layouts_.size(); }

 private:
  Result<uint16_t> LayoutNumber(const Digest& fingerprint);

  std::vector<TenantRecord> tenants_;
  std::map<TenantId, uint16_t> tenant_numbers_;
  std::vector<LayoutRecord> layouts_;
  std::map<Digest, uint16_t> layout_numbers_;
  std::vector<PoolRecord> pools_;
  std::map<std::pair<uint16_t, uint64_t>, uint16_t> pool_numbers_;
};

}  // namespace aquifer
