// A block for tests: bytes from a seed, in aligned memory, with a meta that matches them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "aquifer/checksum.h"
#include "block/block_meta.h"
#include "testing/seeded_random.h"
#include "tier/tier.h"

namespace aquifer {

class TestBlock {
 public:
  TestBlock(uint64_t seed, uint64_t bytes, uint32_t position = 0)
      : size_((bytes + kPage - 1) / kPage * kPage),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, size_))) {
    SeededRandom random(seed * 2 + 1);
    for (size_t i = 0; i + 8 <= size_; i += 8) {
      const uint64_t word = random.Next();
      std::memcpy(memory_.get() + i, &word, 8);
    }
    SeededRandom names(seed);
    names.Fill(meta_.id.key.bytes);
    meta_.id.tenant.bytes[0] = static_cast<std::byte>(seed % 3);
    meta_.id.group = static_cast<uint16_t>(seed % 2);
    names.Fill(meta_.parent.bytes);
    meta_.position = position;
    meta_.layout_fingerprint[0] = std::byte{42};
    meta_.raw_bytes = meta_.stored_bytes = bytes;
    meta_.engine_hash = seed;
    meta_.checksum = ChecksumOf(raw());
  }

  // A block of bf16 values as KV has them: a few exponents, and random signs and mantissas.
  static TestBlock OfBFloat16(uint64_t seed, uint64_t bytes) {
    TestBlock block(seed, bytes);
    SeededRandom random(seed * 2 + 2);
    for (size_t i = 0; i + 2 <= block.size_; i += 2) {
      const uint64_t bits = random.Next();
      const auto exponent = static_cast<uint16_t>(127 - std::countr_zero(bits | 0x100));
      const auto value = static_cast<uint16_t>((bits >> 32 & 0x807f) | exponent << 7);
      std::memcpy(block.memory_.get() + i, &value, 2);
    }
    block.meta_.checksum = ChecksumOf(block.raw());
    return block;
  }

  const BlockMeta& meta() const { return meta_; }
  BlockMeta& meta() { return meta_; }
  const BlockId& id() const { return meta_.id; }
  std::span<std::byte> memory() { return {memory_.get(), size_}; }  // Rounded up to 4 KiB.
  std::span<const std::byte> raw() const { return {memory_.get(), meta_.raw_bytes}; }
  WriteOp ToWrite() const {
    return {.meta = meta_, .source = {memory_.get(), size_}, .status = {}};
  }

 private:
  static constexpr uint64_t kPage = 4096;

  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  BlockMeta meta_;
  size_t size_;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace aquifer
