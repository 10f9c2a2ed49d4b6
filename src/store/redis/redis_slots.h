// Where keys live in a Redis Cluster: its 16384 slots, the server of each, and the redirections
// that servers send when a slot has moved. Plain values; the map's owner decides when to read it
// again.
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

// The slot follows from the text in the first pair of braces, if there is any; otherwise from the
// whole key.
uint16_t RedisSlotOf(std::string_view key);

// An answer "MOVED 3999 127.0.0.1:6381" or "ASK ...". Without a host it means the server that sent
// it.
struct RedisRedirect {
  bool once = false;  // ASK: this command goes there, and the next one comes here again.
  uint16_t slot = 0;
  RedisAddress to;
};
std::optional<RedisRedirect> ParseRedirect(std::string_view error, const RedisAddress& from);

class RedisSlotMap {
 public:
  // Parses the answer to CLUSTER SLOTS. Returns kUnavailable for another answer.
  static Result<RedisSlotMap> Parse(const RespReply& reply, const RedisAddress& from);

  // Returns nothing if no known server has the slot.
  std::optional<RedisAddress> Find(uint16_t slot) const;
  void Move(uint16_t slot, const RedisAddress& to);

  const std::vector<RedisAddress>& masters() const { return masters_; }

 private:
  uint16_t Number(const RedisAddress& address);

  static constexpr uint16_t kNobody = UINT16_MAX;

  std::vector<RedisAddress> masters_;
  // Indexes into masters_.
  std::vector<uint16_t> owners_ = std::vector<uint16_t>(kRedisSlots, kNobody);
};

}  // namespace aquifer
