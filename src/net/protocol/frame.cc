#include "net/protocol/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace aquifer {
namespace {

// The offsets of the header's fields.
constexpr size_t kKindAt = 4;
constexpr size_t kReservedAt = 6;
constexpr size_t kNumberAt = 8;

}  // namespace

FrameHeader DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  return {.bytes = GetU32(bytes.data()),
          .kind = GetU16(bytes.data() + kKindAt),
          .number = GetU64(bytes.data() + kNumberAt)};
}

void FrameWriter::Begin(uint16_t kind, uint64_t number) {
  buffer_.resize(kFrameHeaderBytes);
  PutU32(buffer_.data(), 0);
  PutU16(buffer_.data() + kKindAt, kind);
  PutU16(buffer_.data() + kReservedAt, 0);
  PutU64(buffer_.data() + kNumberAt, number);
}

std::span<const std::byte> FrameWriter::Finish() {
  const size_t bytes = (buffer_.size() + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  AQ_CHECK(bytes <= kMaxFrameBytes);
  buffer_.resize(bytes);
  PutU32(buffer_.data(), static_cast<uint32_t>(bytes));
  return buffer_;
}

void FrameWriter::F64(double value) { U64(std::bit_cast<uint64_t>(value)); }

void FrameWriter::Bytes(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void FrameWriter::Text(std::string_view text) {
  AQ_CHECK(text.size() <= UINT16_MAX);
  U16(static_cast<uint16_t>(text.size()));
  Bytes(std::as_bytes(std::span(text)));
}

FrameReader::FrameReader(std::span<const std::byte> frame) {
  AQ_CHECK(IsFrameLength(frame.size()));
  header_ = DecodeFrameHeader(frame.first<kFrameHeaderBytes>());
  if (header_.bytes != frame.size()) Bad("a length that is not the frame's");
  if (GetU16(frame.data() + kReservedAt) != 0) Bad("a reserved field that is not zero");
  body_ = frame.subspan(kFrameHeaderBytes);
}

std::span<const std::byte> FrameReader::Bytes(size_t count) {
  if (count > body_.size()) {
    Bad("fields missing at its end");
    body_ = {};
    return {};
  }
  const std::span<const std::byte> bytes = body_.first(count);
  body_ = body_.subspan(count);
  return bytes;
}

double FrameReader::F64() {
  const auto value = std::bit_cast<double>(U64());
  if (std::isfinite(value)) return value;
  Bad("a number that is not finite");
  return 0;
}

std::string_view FrameReader::Text(size_t max_bytes) {
  const size_t bytes = U16();
  if (bytes > max_bytes) Bad("a text that is too long");
  const std::span<const std::byte> text = Bytes(bytes);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

Key FrameReader::KeyBytes() {
  Key key;
  const std::span<const std::byte> bytes = Bytes(key.bytes.size());
  std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  return key;
}

std::span<const std::byte> FrameReader::Array(uint64_t count, size_t bytes) {
  if (count > body_.size() / bytes) {
    Bad("an array that is longer than the frame");
    return {};
  }
  return Bytes(count * bytes);
}

bool FrameReader::Flag() {
  const uint8_t value = U8();
  if (value > 1) Bad("a flag that is neither 0 nor 1");
  return value == 1;
}

Status FrameReader::End() {
  const bool zeros =
      std::all_of(body_.begin(), body_.end(), [](std::byte byte) { return byte == std::byte{0}; });
  if (body_.size() >= kFrameAlignment || !zeros) Bad("extra bytes at its end");
  if (bad_ == nullptr) return Status();
  return Status(Code::kInvalid, fmt::format("a frame of kind {} and {} bytes has {}", header_.kind,
                                            header_.bytes, bad_));
}

}  // namespace aquifer
