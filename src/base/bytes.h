// Little-endian integers in byte strings, for every format that we write to disk or to a wire. The
// caller has checked that the bytes are there.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace aquifer {

// Formats are little-endian and so is every machine we run on; helpers that move whole arrays rely
// on it.
static_assert(std::endian::native == std::endian::little);

template <class Integer>
Integer GetLe(const std::byte* from) {
  static_assert(std::is_integral_v<Integer>);
  Integer value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Returns the byte after the last one written.
template <class Integer>
std::byte* PutLe(std::byte* to, Integer value) {
  static_assert(std::is_integral_v<Integer>);
  std::memcpy(to, &value, sizeof(value));
  return to + sizeof(value);
}

inline uint16_t GetU16(const std::byte* from) { return GetLe<uint16_t>(from); }
inline uint32_t GetU32(const std::byte* from) { return GetLe<uint32_t>(from); }
inline uint64_t GetU64(const std::byte* from) { return GetLe<uint64_t>(from); }

inline std::byte* PutU16(std::byte* to, uint16_t value) { return PutLe(to, value); }
inline std::byte* PutU32(std::byte* to, uint32_t value) { return PutLe(to, value); }
inline std::byte* PutU64(std::byte* to, uint64_t value) { return PutLe(to, value); }

inline std::byte* PutBytes(std::byte* to, const void* from, size_t count) {
  if (count != 0) std::memcpy(to, from, count);
  return to + count;
}

}  // namespace aquifer
