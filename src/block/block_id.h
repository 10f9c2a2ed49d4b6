// A block's identity on wire, on disk and in every index: tenant, key, group, part. The tenant is
// set by whoever owns the connection, never taken from a client.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "aquifer/key.h"

namespace aquifer {

// A tenant's name, hashed to a fixed size: the first 16 bytes of
// SHA-256("aquifer.tenant.v1" || name).
struct TenantId {
  std::array<std::byte, 16> bytes{};

  friend bool operator==(const TenantId&, const TenantId&) = default;
  friend auto operator<=>(const TenantId&, const TenantId&) = default;
};

TenantId TenantIdOf(std::string_view name);

struct BlockId {
  TenantId tenant;
  Key key;
  uint16_t group = 0;  // The kv group of the layout.
  uint16_t part = 0;   // 0 unless ranks span hosts.

  friend bool operator==(const BlockId&, const BlockId&) = default;
  friend auto operator<=>(const BlockId&, const BlockId&) = default;

  // Keys are SHA-256 outputs, so this is as even as any hash, but a hostile client could choose
  // them: hash tables stay bounded because every tenant's block count is.
  uint64_t Hash() const {
    uint64_t tenant_bits = 0;
    std::memcpy(&tenant_bits, tenant.bytes.data(), sizeof(tenant_bits));
    const uint64_t rest = (uint64_t{group} << 16 | part) * 0x9E3779B97F4A7C15u;
    return key.Prefix64() ^ tenant_bits ^ rest;
  }
};

}  // namespace aquifer
