#include "cache/catalog.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr size_t kMaxNumbers = UINT16_MAX;

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

Result<uint16_t> Catalog::LayoutNumber(const Digest& fingerprint) {
  if (const auto found = layout_numbers_.find(fingerprint); found != layout_numbers_.end()) {
    return found->second;
  }
  if (layouts_.size() == kMaxNumbers) return Status(Code::kNoSpace, "too many layouts");
  const auto number = static_cast<uint16_t>(layouts_.size());
  layouts_.push_back({.fingerprint = fingerprint, .tokens_per_block = 0, .groups = {}});
  layout_numbers_.emplace(fingerprint, number);
  return number;
}

Result<uint16_t> Catalog::Register(const Layout& layout) {
  AQ_RETURN_IF_ERROR(ValidateLayout(layout));
  AQ_ASSIGN_OR_RETURN(const uint16_t number, LayoutNumber(LayoutFingerprint(layout)));
  LayoutRecord& record = layouts_[number];
  record.tokens_per_block = layout.tokens_per_block;
  record.groups.resize(layout.groups.size());
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    record.groups[group] = {.block_bytes = BlockBytes(layout, group),
                            .heads = std::max<uint32_t>(1, layout.groups[group].kv_heads)};
  }
  return number;
}

Result<uint16_t> Catalog::Learn(const Digest& fingerprint, uint16_t group, uint64_t block_bytes) {
  AQ_ASSIGN_OR_RETURN(const uint16_t number, LayoutNumber(fingerprint));
  LayoutRecord& record = layouts_[number];
  if (record.groups.size() <= group) record.groups.resize(size_t{group} + 1);
  GroupRecord& known = record.groups[group];
  if (known.block_bytes == 0) known.block_bytes = block_bytes;
  if (known.block_bytes != block_bytes) {
    return Status(Code::kCorrupt, "two block sizes under one layout");
  }
  return number;
}

Result<uint16_t> Catalog::Pool(uint16_t tenant, uint64_t slot_bytes) {
  const std::pair name(tenant, slot_bytes);
  if (const auto found = pool_numbers_.find(name); found != pool_numbers_.end()) {
    return found->second;
  }
  if (pools_.size() == kMaxNumbers) return Status(Code::kNoSpace, "too many slot sizes");
  const auto number = static_cast<uint16_t>(pools_.size());
  pools_.push_back({.tenant = tenant, .slot_bytes = slot_bytes});
  pool_numbers_.emplace(name, number);
  return number;
}

}  // namespace aquifer
