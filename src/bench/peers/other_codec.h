// Codecs of others, where their libraries were found. One thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace aquifer {

class OtherCodec {
 public:
  virtual ~OtherCodec() = default;

  virtual std::string name() const = 0;
  virtual size_t MaxBytes(size_t raw_bytes) const = 0;
  // How much of `stored`, which has MaxBytes(), is used; 0 when it failed.
  virtual size_t Encode(std::span<const std::byte> raw, std::span<std::byte> stored) = 0;
  virtual bool Decode(std::span<const std::byte> stored, std::span<std::byte> raw) = 0;
};

using OtherCodecs = std::vector<std::unique_ptr<OtherCodec>>;

void AddZstdCodecs(
    OtherCodecs* codecs);  // Planes with Huffman codes only, and level 1 of all bytes.
void AddLz4Codec(OtherCodecs* codecs);

}  // namespace aquifer
