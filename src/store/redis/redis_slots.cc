#include "store/redis/redis_slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "net/stream/host_port.h"

namespace aquifer {
namespace {

constexpr uint16_t kDefaultPort = 6379;
constexpr size_t kMostServers = 4096;  // Redis advises against more than 1000.

// CRC-16/XMODEM, as the cluster's specification demands.
constexpr std::array<uint16_t, 256> kCrcTable = [] {
  std::array<uint16_t, 256> table{};
  for (unsigned i = 0; i < table.size(); ++i) {
    unsigned value = i << 8;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 0x8000) != 0 ? (value << 1) ^ 0x1021 : value << 1;
    }
    table[i] = static_cast<uint16_t>(value);
  }
  return table;
}();

uint16_t Crc16(std::string_view bytes) {
  unsigned crc = 0;
  for (const char c : bytes) {
    crc = ((crc << 8) ^ kCrcTable[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xff]) & 0xffff;
  }
  return static_cast<uint16_t>(crc);
}

std::optional<uint16_t> SmallNumber(std::string_view text) {
  uint16_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// One range of the answer: its first slot, its last, and its servers, the master first.
struct SlotRange {
  uint16_t first = 0;
  uint16_t last = 0;
  RedisAddress master;
};

std::optional<SlotRange> ParseRange(const RespReply& reply, const RedisAddress& from) {
  if (reply.items.size() < 3 || reply.items[2].items.size() < 2) return std::nullopt;
  const int64_t first = reply.items[0].integer;
  const int64_t last = reply.items[1].integer;
  const RespReply& host = reply.items[2].items[0];
  const int64_t port = reply.items[2].items[1].integer;
  if (first < 0 || last < first || last >= kRedisSlots || port <= 0 || port > UINT16_MAX) {
    return std::nullopt;
  }
  // A server that does not know its own name leaves it out.
  const bool same = host.text.empty() || host.text == "?";
  return SlotRange{.first = static_cast<uint16_t>(first),
                   .last = static_cast<uint16_t>(last),
                   .master = {same ? from.host : host.text, static_cast<uint16_t>(port)}};
}

}  // namespace

std::string RedisAddress::ToString() const {
  return HostPort{.host = host, .port = port}.ToString();
}

Result<RedisAddress> ParseRedisAddress(std::string_view text) {
  std::optional<HostPort> server = ParseHostPort(text);
  if (!server.has_value()) {
    return Status(Code::kInvalid, fmt::format("'{}' is not host:port", text));
  }
  return RedisAddress{std::move(server->host), server->port == 0 ? kDefaultPort : server->port};
}

uint16_t RedisSlotOf(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return Crc16(key) % kRedisSlots;
}

std::optional<RedisRedirect> ParseRedirect(std::string_view error, const RedisAddress& from) {
  RedisRedirect redirect;
  if (error.starts_with("MOVED ")) {
    error.remove_prefix(6);
  } else if (error.starts_with("ASK ")) {
    error.remove_prefix(4);
    redirect.once = true;
  } else {
    return std::nullopt;
  }
  const size_t space = error.find(' ');
  const size_t colon = error.rfind(':');  // An IPv6 address has no brackets here.
  if (space == std::string_view::npos || colon == std::string_view::npos || colon < space) {
    return std::nullopt;
  }
  const std::optional<uint16_t> slot = SmallNumber(error.substr(0, space));
  const std::optional<uint16_t> port = SmallNumber(error.substr(colon + 1));
  if (!slot.has_value() || *slot >= kRedisSlots || !port.has_value() || *port == 0) {
    return std::nullopt;
  }
  const std::string_view host = error.substr(space + 1, colon - space - 1);
  redirect.slot = *slot;
  redirect.to = {host.empty() || host == "?" ? from.host : std::string(host), *port};
  return redirect;
}

Result<RedisSlotMap> RedisSlotMap::Parse(const RespReply& reply, const RedisAddress& from) {
  RedisSlotMap map;
  for (const RespReply& item : reply.items) {
    const std::optional<SlotRange> range = ParseRange(item, from);
    if (!range.has_value() || map.masters_.size() >= kMostServers) {
      return Status(Code::kUnavailable, "the cluster's map of slots cannot be parsed");
    }
    std::fill(map.owners_.begin() + range->first, map.owners_.begin() + range->last + 1,
              map.Number(range->master));
  }
  if (map.masters_.empty())
    return Status(Code::kUnavailable,
                  "no server has the cluster's slots yet; next step: redis-cli --cluster check");
  return map;
}

std::optional<RedisAddress> RedisSlotMap::Find(uint16_t slot) const {
  const uint16_t owner = owners_[slot];
  if (owner == kNobody) return std::nullopt;
  return masters_[owner];
}

void RedisSlotMap::Move(uint16_t slot, const RedisAddress& to) {
  if (masters_.size() < kMostServers) owners_[slot] = Number(to);
}

uint16_t RedisSlotMap::Number(const RedisAddress& address) {
  const auto found = std::find(masters_.begin(), masters_.end(), address);
  const auto number = static_cast<uint16_t>(found - masters_.begin());
  if (found == masters_.end()) masters_.push_back(address);
  return number;
}

}  // namespace aquifer
