// Small numbers for the large names that every block carries: tenants, layouts, and the pools that
// DRAM slots come from. There are 65 535 of each, and a tenant can have only so many of them.
//
// A layout is known while a client or a block of some tenant has it; then its number is free for
// another. Tenants and pools keep theirs.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
  uint32_t layouts = 0;  // That its clients or blocks have.
  uint32_t pools = 0;
};

struct GroupRecord {
  uint64_t block_bytes = 0;  // 0: not known yet.
  uint32_t heads = 1;        // What a commit must cover.
  DType dtype = DType::kUInt8;
};

struct LayoutRecord {
  Digest fingerprint{};
  uint32_t tokens_per_block = 0;  // 0: only met on a disk, not registered yet.
  std::vector<GroupRecord> groups;
  uint32_t tenants = 0;  // That have it; 0: the number is free.
};

// Slots of one size that belong to one tenant: what evicting one block can give to another.
struct PoolRecord {
  uint16_t tenant = 0;
  uint64_t slot_bytes = 0;
};

class Catalog {
 public:
  explicit Catalog(uint32_t max_layouts_per_tenant)
      : max_layouts_per_tenant_(max_layouts_per_tenant) {}

  // The number of a tenant, made on first sight. kNoSpace past 65 535.
  Result<uint16_t> Tenant(const TenantId& id);
  // The same by name, for which configured options are known.
  Result<uint16_t> Tenant(std::string_view name, const TenantOptions& options);

  // One that is known already.
  std::optional<uint16_t> FindTenant(std::string_view name) const;

  // These two hold the layout, until Release(). kInvalid when it cannot be stored, kNoSpace when
  // the tenant has too many.
  Result<uint16_t> Register(uint16_t tenant, const Layout& layout);
  // For a block found on a disk, whose layout no engine need have registered yet.
  Result<uint16_t> Learn(uint16_t tenant, const Digest& fingerprint, uint16_t group,
                         uint64_t block_bytes);
  // One more of the tenant's has the layout, or one less.
  void Hold(uint16_t tenant, uint16_t layout);
  void Release(uint16_t tenant, uint16_t layout);
  // Called when nothing has the layout any more.
  std::function<void(uint16_t layout)> on_forgotten;

  Result<uint16_t> Pool(uint16_t tenant, uint64_t slot_bytes);

  const TenantRecord& tenant(uint16_t number) const { return tenants_[number]; }
  const LayoutRecord& layout(uint16_t number) const { return layouts_[number]; }
  const PoolRecord& pool(uint16_t number) const { return pools_[number]; }
  size_t tenants() const { return tenants_.size(); }
  size_t layouts() const { return layout_numbers_.size(); }

 private:
  Result<uint16_t> LayoutNumber(const Digest& fingerprint);

  const uint32_t max_layouts_per_tenant_;
  std::vector<TenantRecord> tenants_;
  std::map<TenantId, uint16_t> tenant_numbers_;
  std::vector<LayoutRecord> layouts_;
  std::map<Digest, uint16_t> layout_numbers_;
  std::vector<uint16_t> free_layouts_;
  std::map<std::pair<uint16_t, uint16_t>, uint64_t> holds_;  // By tenant and layout.
  std::vector<PoolRecord> pools_;
  std::map<std::pair<uint16_t, uint64_t>, uint16_t> pool_numbers_;
};

}  // namespace aquifer
