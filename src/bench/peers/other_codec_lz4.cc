#include <lz4.h>

#include "bench/peers/other_codec.h"

namespace aquifer {
namespace {

class Lz4Codec final : public OtherCodec {
 public:
  std::string name() const override { return "LZ4"; }

  size_t MaxBytes(size_t raw_bytes) const override {
    return static_cast<size_t>(LZ4_compressBound(static_cast<int>(raw_bytes)));
  }

  size_t Encode(std::span<const std::byte> raw, std::span<std::byte> stored) override {
    const int bytes = LZ4_compress_default(
        reinterpret_cast<const char*>(raw.data()), reinterpret_cast<char*>(stored.data()),
        static_cast<int>(raw.size()), static_cast<int>(stored.size()));
    return bytes < 0 ? 0 : static_cast<size_t>(bytes);
  }

  bool Decode(std::span<const std::byte> stored, std::span<std::byte> raw) override {
    const int bytes = LZ4_decompress_safe(
        reinterpret_cast<const char*>(stored.data()), reinterpret_cast<char*>(raw.data()),
        static_cast<int>(stored.size()), static_cast<int>(raw.size()));
    return bytes == static_cast<int>(raw.size());
  }
};

}  // namespace

void AddLz4Codec(OtherCodecs* codecs) { codecs->push_back(std::make_unique<Lz4Codec>()); }

}  // namespace aquifer
