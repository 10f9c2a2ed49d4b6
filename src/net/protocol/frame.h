// A frame is one message: 16 bytes of header and a body, little-endian, a whole multiple of 8 bytes
// long (docs/formats/local.md). FrameWriter builds one, FrameReader takes one apart. The reader
// distrusts every byte. A field that is not there reads as zero and makes the frame bad. A decoder
// therefore reads all its fields and asks once, at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/status.h"
#include "base/bytes.h"

namespace aquifer {

inline constexpr size_t kFrameHeaderBytes = 16;
inline constexpr size_t kFrameAlignment = 8;
inline constexpr size_t kMaxFrameBytes = size_t{64} << 10;

struct FrameHeader {
  uint32_t bytes = 0;  // Length of the whole frame.
  uint16_t kind = 0;
  uint64_t number = 0;  // The sender's number for the request; answers repeat it.
};

FrameHeader DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

// Returns true if a frame may have this length.
constexpr bool IsFrameLength(uint64_t bytes) {
  return bytes >= kFrameHeaderBytes && bytes <= kMaxFrameBytes && bytes % kFrameAlignment == 0;
}

class FrameWriter {
 public:
  // Starts a new frame; the memory is kept.
  void Begin(uint16_t kind, uint64_t number);
  // Returns the frame, valid until the next Begin(). A frame over kMaxFrameBytes is the caller's
  // mistake.
  std::span<const std::byte> Finish();

  void U8(uint8_t value) { Integer(value); }
  void U16(uint16_t value) { Integer(value); }
  void U32(uint32_t value) { Integer(value); }
  void U64(uint64_t value) { Integer(value); }
  void I64(int64_t value) { Integer(value); }
  void F64(double value);
  void Bytes(std::span<const std::byte> bytes);
  // Writes a length in 16 bits, then the bytes.
  void Text(std::string_view text);
  void KeyBytes(const Key& key) { Bytes(key.bytes); }

 private:
  template <class T>
  void Integer(T value) {
    const size_t at = buffer_.size();
    buffer_.resize(at + sizeof(value));
    PutLe(buffer_.data() + at, value);
  }

  std::vector<std::byte> buffer_;
};

class FrameReader {
 public:
  // `frame` is whole, and its length is right.
  explicit FrameReader(std::span<const std::byte> frame);

  const FrameHeader& header() const { return header_; }

  uint8_t U8() { return Integer<uint8_t>(); }
  uint16_t U16() { return Integer<uint16_t>(); }
  uint32_t U32() { return Integer<uint32_t>(); }
  uint64_t U64() { return Integer<uint64_t>(); }
  int64_t I64() { return Integer<int64_t>(); }
  double F64();  // A NaN or an infinity makes the frame bad.
  // Returns bytes inside the frame.
  std::span<const std::byte> Bytes(size_t count);
  std::string_view Text(size_t max_bytes);
  Key KeyBytes();
  // An array of `count` items of `bytes` each. It makes the frame bad if it is longer than the
  // rest.
  std::span<const std::byte> Array(uint64_t count, size_t bytes);
  bool Flag();  // A byte that is 0 or 1.
  // A value of an enumeration whose last one is `last`.
  template <class Enum>
  Enum Choice(Enum last) {
    const uint8_t value = U8();
    if (value > static_cast<uint8_t>(last)) return Bad("an unknown value"), Enum{};
    return static_cast<Enum>(value);
  }

  size_t left() const { return body_.size(); }
  // Keeps the first reason only.
  void Bad(const char* why) {
    if (bad_ == nullptr) bad_ = why;
  }
  // Returns ok if every field was there and only zeros are left, up to the alignment.
  Status End();

 private:
  template <class T>
  T Integer() {
    const std::span<const std::byte> bytes = Bytes(sizeof(T));
    return bytes.empty() ? T{} : GetLe<T>(bytes.data());
  }

  FrameHeader header_;
  std::span<const std::byte> body_;
  const char* bad_ = nullptr;
};

}  // namespace aquifer
