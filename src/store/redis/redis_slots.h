// Where keys live in a Redis Cluster: its 16384 slots, which server has each, and what servers say
// when one of them has moved. Plain values; whoever owns the map decides when to read it again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "store/redis/resp.h"

namespace aquifer {

struct RedisAddress {
  std::string host;
  uint16_t port = 0;

  std::string ToString() const;  // "host:port", "[::1]:6379"
  friend auto operator<=>(const RedisAddress&, const RedisAddress&) = default;
};

// "host:port", "[::1]:6379"; a host alone has port 6379.
Result<RedisAddress> ParseRedisAddress(std::string_view text);

inline constexpr uint16_t kRedisSlots = 16384;

// By what is in the first pair of braces, if anything; otherwise by the whole key.
uint16_t RedisSlotOf(std::string_view key);

// "MOVED 3999 127.0.0.1:6381" and "ASK ..."; without a host it is the one that said so.
struct RedisRedirect {
  bool once = false;  // ASK: only this command, and the next time ask here again.
  uint16_t slot = 0;
  RedisAddress to;
};
std::optional<RedisRedirect> ParseRedirect(std::string_view error, const RedisAddress& from);

class RedisSlotMap {
 public:
  // Of what CLUSTER SLOTS answers. kUnavailable: it is not that.
  static Result<RedisSlotMap> Parse(const RespReply& reply, const RedisAddress& from);

  // None: nobody has the slot, as far as known.
  std::optional<RedisAddress> Find(uint16_t slot) const;
  void Move(uint16_t slot, const RedisAddress& to);

  const std::vector<RedisAddress>& masters() const { return masters_; }

 private:
  uint16_t Number(const RedisAddress& address);

  static constexpr uint16_t kNobody = UINT16_MAX;

  std::vector<RedisAddress> masters_;
  std::vector<uint16_t> owners_ = std::vector<uint16_t>(kRedisSlots, kNobody);  // In masters_.
};

}  // namespace aquifer
