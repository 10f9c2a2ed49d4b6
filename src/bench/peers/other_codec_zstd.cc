#define ZSTD_STATIC_LINKING_ONLY  // For ZSTD_c_literalCompressionMode, which 1.5 has.
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bench/peers/other_codec.h"

namespace aquifer {
namespace {

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

class ZstdLevel1 final : public OtherCodec {
 public:
  std::string name() const override { return "zstd -1"; }
  size_t MaxBytes(size_t raw_bytes) const override { return ZSTD_compressBound(raw_bytes); }

  size_t Encode(std::span<const std::byte> raw, std::span<std::byte> stored) override {
    const size_t bytes =
        ZSTD_compressCCtx(encoder_.get(), stored.data(), stored.size(), raw.data(), raw.size(), 1);
    return ZSTD_isError(bytes) != 0 ? 0 : bytes;
  }

  bool Decode(std::span<const std::byte> stored, std::span<std::byte> raw) override {
    return ZSTD_decompressDCtx(decoder_.get(), raw.data(), raw.size(), stored.data(),
                               stored.size()) == raw.size();
  }

 private:
  const std::unique_ptr<ZSTD_CCtx, FreeContext> encoder_{ZSTD_createCCtx()};
  const std::unique_ptr<ZSTD_DCtx, FreeContext> decoder_{ZSTD_createDCtx()};
};

void SplitPlanes(const uint16_t* values, size_t count, uint8_t* low, uint8_t* exponents) {
  for (size_t i = 0; i < count; ++i) {
    const uint16_t rotated = static_cast<uint16_t>(values[i] << 1 | values[i] >> 15);
    low[i] = static_cast<uint8_t>(rotated);
    exponents[i] = static_cast<uint8_t>(rotated >> 8);
  }
}

void JoinPlanes(const uint8_t* low, const uint8_t* exponents, size_t count, uint16_t* values) {
  for (size_t i = 0; i < count; ++i) {
    const uint16_t rotated = static_cast<uint16_t>(low[i] | exponents[i] << 8);
    values[i] = static_cast<uint16_t>(rotated >> 1 | rotated << 15);
  }
}

// Exponents through zstd's Huffman coder alone: no match is ever long enough for it. The rest as it
// is, in front of them. In pieces that stay in the second-level cache, like ours.
class SplitHuffman final : public OtherCodec {
 public:
  SplitHuffman() : exponents_(kPieceValues) {
    ZSTD_CCtx_setParameter(encoder_.get(), ZSTD_c_compressionLevel, -50);
    ZSTD_CCtx_setParameter(encoder_.get(), ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX);
    ZSTD_CCtx_setParameter(encoder_.get(), ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
  }

  std::string name() const override { return "split + zstd Huffman"; }
  size_t MaxBytes(size_t raw_bytes) const override {
    const size_t pieces = raw_bytes / 2 / kPieceValues + 1;
    return raw_bytes / 2 + pieces * (ZSTD_compressBound(kPieceValues) + sizeof(uint32_t));
  }

  size_t Encode(std::span<const std::byte> raw, std::span<std::byte> stored) override {
    const size_t values = raw.size() / 2;
    auto* const low = reinterpret_cast<uint8_t*>(stored.data());
    std::byte* to = stored.data() + values;
    for (size_t at = 0; at < values; at += kPieceValues) {
      const size_t count = std::min(kPieceValues, values - at);
      SplitPlanes(reinterpret_cast<const uint16_t*>(raw.data()) + at, count, low + at,
                  exponents_.data());
      const size_t room = static_cast<size_t>(stored.data() + stored.size() - to) - 4;
      const size_t bytes = ZSTD_compress2(encoder_.get(), to + 4, room, exponents_.data(), count);
      if (ZSTD_isError(bytes) != 0) return 0;
      const auto length = static_cast<uint32_t>(bytes);
      std::memcpy(to, &length, 4);
      to += 4 + bytes;
    }
    return static_cast<size_t>(to - stored.data());
  }

  bool Decode(std::span<const std::byte> stored, std::span<std::byte> raw) override {
    const size_t values = raw.size() / 2;
    const auto* const low = reinterpret_cast<const uint8_t*>(stored.data());
    const std::byte* from = stored.data() + values;
    for (size_t at = 0; at < values; at += kPieceValues) {
      const size_t count = std::min(kPieceValues, values - at);
      uint32_t length = 0;
      std::memcpy(&length, from, 4);
      if (ZSTD_decompressDCtx(decoder_.get(), exponents_.data(), count, from + 4, length) !=
          count) {
        return false;
      }
      from += 4 + length;
      JoinPlanes(low + at, exponents_.data(), count, reinterpret_cast<uint16_t*>(raw.data()) + at);
    }
    return true;
  }

 private:
  // Each piece has a table of its own. This is the best of 16 to 128 Ki, and as much as ours.
  static constexpr size_t kPieceValues = 64 << 10;

  const std::unique_ptr<ZSTD_CCtx, FreeContext> encoder_{ZSTD_createCCtx()};
  const std::unique_ptr<ZSTD_DCtx, FreeContext> decoder_{ZSTD_createDCtx()};
  std::vector<uint8_t> exponents_;
};

}  // namespace

void AddZstdCodecs(OtherCodecs* codecs) {
  codecs->push_back(std::make_unique<SplitHuffman>());
  codecs->push_back(std::make_unique<ZstdLevel1>());
}

}  // namespace aquifer
