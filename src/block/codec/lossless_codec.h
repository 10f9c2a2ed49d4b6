// Makes bf16 and fp16 blocks smaller without losing a bit. The exponents of KV are few and come
// with very unequal frequencies; sign and mantissa look random. So the two are split, exponents go
// through an entropy coder (interleaved rANS, 128 lanes wide), and the rest is stored as it is.
// Rows that do not become smaller are stored as they are too. docs/formats/codec.md has every byte.
//
// Encoding distrusts nothing, decoding everything: whatever the bytes are, it reads and writes
// inside of its spans only. It does not promise to notice damage, for the block's own checksum
// does: verify that over the decoded bytes.
//
// An encoder is for one thread at a time and takes its memory when it is made; Encode() and
// DecodeLossless() allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "aquifer/layout.h"
#include "aquifer/status.h"

namespace aquifer {

// The most that Encode() makes of so many bytes.
size_t MaxLosslessBytes(size_t raw_bytes);

class LosslessEncoder {
 public:
  LosslessEncoder();
  ~LosslessEncoder();
  LosslessEncoder(const LosslessEncoder&) = delete;
  LosslessEncoder& operator=(const LosslessEncoder&) = delete;

  // Returns how much of `stored`, which has room for MaxLosslessBytes(), is used. `raw` is a block:
  // kMaxBlockBytes at most. Types other than kBFloat16 and kFloat16 come out 16 bytes longer and
  // otherwise as they are.
  size_t Encode(DType dtype, std::span<const std::byte> raw, std::span<std::byte> stored);

 private:
  struct Scratch;
  const std::unique_ptr<Scratch> scratch_;
};

// `stored` is exactly what Encode() made and `raw` exactly as long as what it was made of. Any
// other `stored`, or one that contradicts itself, is kCorrupt; `raw` then holds anything.
Status DecodeLossless(std::span<const std::byte> stored, std::span<std::byte> raw);

}  // namespace aquifer
