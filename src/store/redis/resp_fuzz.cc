// Whatever a server answers, the reader stays within its target and its bounds, and ends. The first
// byte chooses how the rest is cut and which answers have a target.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "store/redis/resp.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using aquifer::RespReader;
  if (size == 0) return 0;
  const size_t step = 1 + data[0] % 61;
  std::span<const uint8_t> left(data + 1, size - 1);
  std::array<std::byte, 48> memory{};
  constexpr size_t kGuard = 16;  // No byte may be written beyond the target.
  const std::span<std::byte> target = std::span(memory).first(memory.size() - kGuard);
  RespReader reader;
  aquifer::RespReply reply;
  if (data[0] % 2 == 1) reader.Aim({target.first(7), target.subspan(7)});
  while (true) {
    const auto whole = reader.Next(&reply);
    if (!whole.ok()) break;
    if (*whole) {
      if (data[0] % 2 == 1) reader.Aim({target.first(7), target.subspan(7)});
      continue;
    }
    if (left.empty()) break;
    std::array<iovec, RespReader::kMostTargets + 1> room;
    const size_t count = reader.Room(room);
    size_t given = 0;
    for (size_t i = 0; i < count && given < step; ++i) {
      const size_t bytes = std::min({room[i].iov_len, step - given, left.size()});
      if (bytes > 0) std::memcpy(room[i].iov_base, left.data(), bytes);
      left = left.subspan(bytes);
      given += bytes;
    }
    reader.Arrived(given);
  }
  for (const std::byte guard : std::span(memory).last(kGuard)) AQ_CHECK(guard == std::byte{0});
  return 0;
}
