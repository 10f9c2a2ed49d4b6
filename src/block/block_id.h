// A block's identity on wire, on disk and in every index: tenant, key, group, part. The tenant is
// set by whoever owns the connection, never taken from a client.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "aquifer/key.h"
#include "base/hash_mix.h"

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
};

// For tables of blocks. Keys are hashes already, but a client may send any bytes as a key: all of
// them go in, with seeds that it does not know.
class BlockHash {
 public:
  explicit BlockHash(uint64_t seed) {
    for (uint64_t& one : seeds_) one = SplitMix(&seed);
  }

  uint64_t operator()(const BlockId& id) const {
    std::array<uint64_t, 4> key;
    std::array<uint64_t, 2> tenant;
    std::memcpy(key.data(), id.key.bytes.data(), sizeof(key));
    std::memcpy(tenant.data(), id.tenant.bytes.data(), sizeof(tenant));
    const uint64_t rest = uint64_t{id.group} << 16 | id.part;
    return Mix(Mix(key[0] ^ seeds_[0], key[1] ^ seeds_[1]) ^ tenant[0] ^ seeds_[4],
               Mix(key[2] ^ seeds_[2], key[3] ^ seeds_[3]) ^
                   Mix(tenant[1] ^ seeds_[5], rest ^ seeds_[6]) ^ seeds_[7]);
  }

 private:
  std::array<uint64_t, 8> seeds_;
};

}  // namespace aquifer
