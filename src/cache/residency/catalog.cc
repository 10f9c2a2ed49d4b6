#include "cache/residency/catalog.h"

#include <algorithm>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kMaxNumbers = UINT16_MAX;
constexpr uint32_t kMaxPoolsPerTenant = 1024;

}  // namespace

Result<uint16_t> Catalog::Tenant(const TenantId& id) {
  if (const auto found = tenant_numbers_.find(id); found != tenant_numbers_.end()) {
    return found->second;
  }
  if (tenants_.size() == kMaxNumbers) return Status(Code::kNoSpace, "too many tenants");
  const auto number = static_cast<uint16_t>(tenants_.size());
  tenants_.push_back({.id = id, .options = {}});
  tenant_numbers_.emplace(id, number);
  return number;
}

Result<uint16_t> Catalog::Tenant(std::string_view name, const TenantOptions& options) {
  AQ_ASSIGN_OR_RETURN(const uint16_t number, Tenant(TenantIdOf(name)));
  tenants_[number].options = options;
  tenants_[number].options.name = name;
  return number;
}

std::optional<uint16_t> Catalog::FindTenant(std::string_view name) const {
  const auto found = tenant_numbers_.find(TenantIdOf(name));
  if (found == tenant_numbers_.end()) return std::nullopt;
  return found->second;
}

Result<uint16_t> Catalog::LayoutNumber(const Digest& fingerprint) {
  if (const auto found = layout_numbers_.find(fingerprint); found != layout_numbers_.end()) {
    return found->second;
  }
  if (free_layouts_.empty()) {
    if (layouts_.size() == kMaxNumbers) {
      return Status(Code::kNoSpace,
                    "all layouts that there can be are in use; detach clients, or evict blocks");
    }
    free_layouts_.push_back(static_cast<uint16_t>(layouts_.size()));
    layouts_.emplace_back();
  }
  const uint16_t number = free_layouts_.back();
  free_layouts_.pop_back();
  layouts_[number].fingerprint = fingerprint;
  layout_numbers_.emplace(fingerprint, number);
  return number;
}

void Catalog::Hold(uint16_t tenant, uint16_t layout) {
  if (holds_[std::pair(tenant, layout)]++ > 0) return;
  ++tenants_[tenant].layouts;
  ++layouts_[layout].tenants;
}

void Catalog::Release(uint16_t tenant, uint16_t layout) {
  const auto held = holds_.find(std::pair(tenant, layout));
  AQ_CHECK(held != holds_.end());
  if (--held->second > 0) return;
  holds_.erase(held);
  --tenants_[tenant].layouts;
  if (--layouts_[layout].tenants > 0) return;
  if (on_forgotten) on_forgotten(layout);
  layout_numbers_.erase(layouts_[layout].fingerprint);
  layouts_[layout] = LayoutRecord{};
  free_layouts_.push_back(layout);
}

Result<uint16_t> Catalog::Register(uint16_t tenant, const Layout& layout) {
  AQ_RETURN_IF_ERROR(ValidateLayout(layout));
  const Digest fingerprint = LayoutFingerprint(layout);
  const auto known = layout_numbers_.find(fingerprint);
  const bool has = known != layout_numbers_.end() && holds_.contains({tenant, known->second});
  if (!has && tenants_[tenant].layouts >= max_layouts_per_tenant_) {
    return Status(Code::kNoSpace,
                  "the tenant has " + std::to_string(max_layouts_per_tenant_) +
                      " layouts already: one is free again when no client has registered it and "
                      "all of its blocks are evicted");
  }
  AQ_ASSIGN_OR_RETURN(const uint16_t number, LayoutNumber(fingerprint));
  Hold(tenant, number);
  LayoutRecord& record = layouts_[number];
  record.tokens_per_block = layout.tokens_per_block;
  record.groups.resize(layout.groups.size());
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    record.groups[group] = {.block_bytes = BlockBytes(layout, group),
                            .heads = std::max<uint32_t>(1, layout.groups[group].kv_heads),
                            .dtype = layout.groups[group].dtype};
  }
  return number;
}

Result<uint16_t> Catalog::Learn(uint16_t tenant, const Digest& fingerprint, uint16_t group,
                                uint64_t block_bytes) {
  AQ_ASSIGN_OR_RETURN(const uint16_t number, LayoutNumber(fingerprint));
  LayoutRecord& record = layouts_[number];
  if (record.groups.size() <= group) record.groups.resize(size_t{group} + 1);
  GroupRecord& known = record.groups[group];
  if (known.block_bytes == 0) known.block_bytes = block_bytes;
  if (known.block_bytes != block_bytes) {
    return Status(Code::kCorrupt, "two block sizes under one layout");
  }
  Hold(tenant, number);
  return number;
}

Result<uint16_t> Catalog::Pool(uint16_t tenant, uint64_t slot_bytes) {
  const std::pair name(tenant, slot_bytes);
  if (const auto found = pool_numbers_.find(name); found != pool_numbers_.end()) {
    return found->second;
  }
  if (pools_.size() == kMaxNumbers || tenants_[tenant].pools == kMaxPoolsPerTenant) {
    return Status(Code::kNoSpace, "too many slot sizes");
  }
  ++tenants_[tenant].pools;
  const auto number = static_cast<uint16_t>(pools_.size());
  pools_.push_back({.tenant = tenant, .slot_bytes = slot_bytes});
  pool_numbers_.emplace(name, number);
  return number;
}

}  // namespace aquifer
