// A frame is one message: 16 bytes of header and a body, little-endian, whole multiples of 8 bytes
// long (docs/formats/local.md). FrameWriter builds one, FrameReader takes one apart. The reader
// distrusts every byte: what is not there reads as zero and makes the frame bad, so a decoder reads
// all its fields and asks once, at the end.
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
  uint32_t bytes = 0;  // Of the whole frame.
  uint16_t kind = 0;
  uint64_t number = 0;  // Of the request; the sender's choice, and echoed in the answers.
};

FrameHeader DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

// Whether a frame of this length may exist at all.
constexpr bool IsFrameLength(uint64_t bytes) {
  return bytes >= kFrameHeaderBytes && bytes <= kMaxFrameBytes && bytes % kFrameAlignment == 0;
}

class FrameWriter {
 public:
  // Starts over; the memory is kept.
  void Begin(uint16_t kind, uint64_t number);
  // The frame, until the next Begin(). More than kMaxFrameBytes is the caller's mistake.
  std::span<const std::byte> Finish();

  void U8(uint8_t value) { Integer(value); }
  void U16(uint16_t value) { Integer(value); }
  void U32(uint32_t value) { Integer(value); }
  void U64(uint64_t value) { Integer(value); }
  void I64(int64_t value) { Integer(value); }
  void F64(double value);
  void Bytes(std::span<const std::byte> bytes);
  // A length in 16 bits, then the bytes.
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
  double F64();  // Neither a NaN nor an infinity is good.
  // Into the frame.
  std::span<const std::byte> Bytes(size_t count);
  std::string_view Text(size_t max_bytes);
  Key KeyBytes();
  // An array of `count` things of `bytes` each; bad when that is more than there is.
  std::span<const std::byte> Array(uint64_t count, size_t bytes);
  bool Flag();  // 0 or 1.
  // A value of an enumeration that ends with `last`.
  template <class Enum>
  Enum Choice(Enum last) {
    const uint8_t value = U8();
    if (value > static_cast<uint8_t>(last)) return Bad("a value that there is not"), Enum{};
    return static_cast<Enum>(value);
  }

  size_t left() const { return body_.size(); }
  // The first thing that was wrong counts.
  void Bad(const char* why) {
    if (bad_ == nullptr) bad_ = why;
  }
  // Ok when everything was there and nothing is left but zeros up to the alignment.
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
