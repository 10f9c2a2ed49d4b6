// Encrypts what a tier stores and proves that it came back unchanged: AES-256-GCM, with all that a
// block's header says of it (BlockMeta) as associated data. docs/formats/seal.md has every byte.
//
// No nonce is used twice under a key: a Sealer draws 128 random bits when it is made (and again now
// and then, and in a forked child), counts from there, and seals with a key that is derived from
// the data key and those bits. So a crash, a second thread or another node that shares the data key
// can at worst begin with other random bits; nobody has to remember a counter.
//
// A Sealer is for one thread at a time: give each worker its own. It may be used with any number of
// keys and keeps a copy of the last one, wiped with it. Seal() and Open() allocate nothing.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "aquifer/status.h"
#include "base/crypto/random.h"
#include "base/crypto/secret_key.h"
#include "block/block_meta.h"

namespace aquifer {

using DataKeyId = std::array<std::byte, 16>;  // As in BlockMeta; never all zero.

struct DataKey {
  DataKeyId id{};
  SecretKey secret;
};

// Shared, because a worker may be sealing with a key while it is forgotten.
using SharedDataKey = std::shared_ptr<const DataKey>;

struct SealOp {
  // Read, but for data_key_id, nonce and tag, which are set. `stored_bytes` is the size of both
  // spans, and whatever else changes later makes Open() fail.
  BlockMeta* meta = nullptr;
  std::span<const std::byte> plain;
  std::span<std::byte> sealed;  // May be the same memory as `plain`.
};

struct OpenOp {
  const BlockMeta* meta = nullptr;
  std::span<const std::byte> sealed;
  std::span<std::byte> plain;  // May be the same memory.
  // kCorrupt when a bit of `meta` or of the payload is not what was sealed, when it was sealed with
  // another key, or not at all; `plain` is then all zero.
  Status status;
};

class Sealer {
 public:
  explicit Sealer(Random* random);  // Which outlives it.
  ~Sealer();
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;

  void Seal(const DataKey& key, std::span<SealOp> ops);

  // One block's failure is its own.
  void Open(const DataKey& key, std::span<OpenOp> ops);

 private:
  static constexpr size_t kSaltBytes = 16;
  using Salt = std::array<std::byte, kSaltBytes>;
  class Cipher;

  void DrawSalt();
  void SealOne(const DataKey& key, SealOp* op);
  Status OpenOne(const DataKey& key, const OpenOp& op);

  Random* const random_;
  const std::unique_ptr<Cipher> seal_;
  const std::unique_ptr<Cipher> open_;
  Salt salt_{};
  uint64_t counter_ = 0;  // Seals with this salt.
  pid_t process_ = 0;     // That drew the salt.
};

// How many seals one salt is for: 2^42 bytes at most, far below what GCM bears with one key.
inline constexpr uint64_t kSealsPerSalt = 65536;

}  // namespace aquifer
