#include "block/seal.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;
using Nonce = std::array<std::byte, 24>;

std::atomic<uint64_t> openssl_allocations{0};

void* Take(size_t bytes, const char* /*file*/, int /*line*/) {
  ++openssl_allocations;
  return std::malloc(bytes);
}
void* Resize(void* old, size_t bytes, const char* /*file*/, int /*line*/) {
  ++openssl_allocations;
  return std::realloc(old, bytes);
}
void Give(void* old, const char* /*file*/, int /*line*/) { std::free(old); }

// OpenSSL takes these only before it has allocated anything.
const bool counting = CRYPTO_set_mem_functions(Take, Resize, Give) == 1;

DataKey KeyOf(uint64_t seed) {
  DataKey key;
  SeededRandom random(seed);
  random.Fill(key.id);
  random.Fill(key.secret.writable());
  return key;
}

BlockMeta MetaOf(uint64_t seed, size_t stored_bytes) {
  BlockMeta meta;
  SeededRandom random(seed);
  random.Fill(meta.id.tenant.bytes);
  random.Fill(meta.id.key.bytes);
  random.Fill(meta.parent.bytes);
  random.Fill(meta.layout_fingerprint);
  meta.id.group = 3;
  meta.id.part = 1;
  meta.position = 17;
  meta.raw_bytes = 8192;
  meta.stored_bytes = stored_bytes;
  meta.checksum = {.low = random.Next(), .high = random.Next()};
  meta.expiry_unix_seconds = 1'800'000'000;
  meta.engine_hash = random.Next();
  return meta;
}

Bytes PlainOf(size_t bytes) {
  Bytes plain(bytes);
  SeededRandom(99).Fill(plain);
  return plain;
}

struct Sealed {
  BlockMeta meta;
  Bytes payload;
};

Sealed SealedOf(const DataKey& key, uint64_t meta_seed, const Bytes& plain) {
  SeededRandom random(meta_seed);
  Sealer sealer(&random);
  Sealed sealed{MetaOf(meta_seed, plain.size()), Bytes(plain.size())};
  SealOp op{.meta = &sealed.meta, .plain = plain, .sealed = sealed.payload};
  sealer.Seal(key, {&op, 1});
  return sealed;
}

Status OpenedAs(const DataKey& key, const Sealed& sealed, Bytes* plain) {
  static SeededRandom random(1);
  static Sealer opener(&random);
  plain->assign(sealed.payload.size(), std::byte{0x77});
  OpenOp op{.meta = &sealed.meta, .sealed = sealed.payload, .plain = *plain, .status = {}};
  opener.Open(key, {&op, 1});
  return op.status;
}

void ExpectRefused(const DataKey& key, const Sealed& sealed) {
  Bytes plain;
  EXPECT_EQ(OpenedAs(key, sealed, &plain).code(), Code::kCorrupt);
  EXPECT_TRUE(plain == Bytes(plain.size()));  // Nothing that was not proven is left to be used.
}

TEST(SealTest, ASealedBlockOpensAgainAndLooksLikeNothing) {
  const Bytes plain = PlainOf(5000);
  const Sealed sealed = SealedOf(KeyOf(1), 2, plain);
  EXPECT_FALSE(sealed.payload == plain);
  EXPECT_EQ(sealed.meta.data_key_id, KeyOf(1).id);
  Bytes opened;
  EXPECT_TRUE(OpenedAs(KeyOf(1), sealed, &opened).ok());
  EXPECT_TRUE(opened == plain);
}

TEST(SealTest, EveryBitOfThePayloadCounts) {
  const Sealed sound = SealedOf(KeyOf(1), 2, PlainOf(200));
  for (size_t bit = 0; bit < sound.payload.size() * 8; ++bit) {
    Sealed changed = sound;
    changed.payload[bit / 8] ^= std::byte{1} << (bit % 8);
    ExpectRefused(KeyOf(1), changed);
  }
}

// Every field of the header, bit by bit.
TEST(SealTest, EveryBitOfTheHeaderCounts) {
  const Sealed sound = SealedOf(KeyOf(1), 2, PlainOf(200));
  const auto flip_each = [&](auto member) {
    Sealed changed = sound;
    auto& field = member(changed.meta);
    const size_t bytes = sizeof(field);
    for (size_t bit = 0; bit < bytes * 8; ++bit) {
      changed = sound;
      auto* const at = reinterpret_cast<unsigned char*>(&member(changed.meta));
      at[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      ExpectRefused(KeyOf(1), changed);
    }
  };
  flip_each([](BlockMeta& meta) -> auto& { return meta.id.tenant.bytes; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.id.key.bytes; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.id.group; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.id.part; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.parent.bytes; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.position; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.layout_fingerprint; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.raw_bytes; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.stored_bytes; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.codec; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.data_key_id; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.nonce; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.tag; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.checksum.low; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.checksum.high; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.expiry_unix_seconds; });
  flip_each([](BlockMeta& meta) -> auto& { return meta.engine_hash; });
}

TEST(SealTest, AnotherKeyOpensNothingEvenUnderTheSameId) {
  const Sealed sealed = SealedOf(KeyOf(1), 2, PlainOf(200));
  ExpectRefused(KeyOf(3), sealed);
  DataKey same_id = KeyOf(3);
  same_id.id = KeyOf(1).id;
  ExpectRefused(same_id, sealed);
  Bytes opened;
  EXPECT_TRUE(OpenedAs(KeyOf(1), sealed, &opened).ok());  // And the key is still known after it.
}

TEST(SealTest, SwappedPayloadsAndCutOnesAreRefused) {
  Sealed one = SealedOf(KeyOf(1), 2, PlainOf(200));
  Sealed other = SealedOf(KeyOf(1), 3, PlainOf(200));
  std::swap(one.payload, other.payload);
  ExpectRefused(KeyOf(1), one);
  ExpectRefused(KeyOf(1), other);
  Sealed cut = SealedOf(KeyOf(1), 2, PlainOf(200));
  cut.payload.pop_back();
  ExpectRefused(KeyOf(1), cut);
  cut.meta.stored_bytes = cut.payload.size();
  ExpectRefused(KeyOf(1), cut);
}

TEST(SealTest, WorksInPlaceAndManyAtOnceAndOneFailureIsItsOwn) {
  SeededRandom random(5);
  Sealer sealer(&random);
  const Bytes plain = PlainOf(3000);
  std::vector<BlockMeta> metas;
  std::vector<Bytes> payloads(8, plain);
  for (uint64_t i = 0; i < 8; ++i) metas.push_back(MetaOf(i, plain.size()));
  std::vector<SealOp> seals;
  for (size_t i = 0; i < 8; ++i) seals.push_back({&metas[i], payloads[i], payloads[i]});
  sealer.Seal(KeyOf(1), seals);
  payloads[5][17] ^= std::byte{4};
  std::vector<OpenOp> opens;
  for (size_t i = 0; i < 8; ++i) opens.push_back({&metas[i], payloads[i], payloads[i], {}});
  sealer.Open(KeyOf(1), opens);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(opens[i].status.ok(), i != 5);
    EXPECT_EQ(payloads[i] == plain, i != 5);
  }
}

std::vector<Nonce> NoncesOf(Sealer* sealer, const DataKey& key, size_t count) {
  std::vector<Nonce> nonces;
  BlockMeta meta = MetaOf(1, 1);
  std::byte byte{};
  SealOp op{.meta = &meta, .plain = {&byte, 1}, .sealed = {&byte, 1}};
  for (size_t i = 0; i < count; ++i) {
    sealer->Seal(key, {&op, 1});
    nonces.push_back(meta.nonce);
  }
  return nonces;
}

// Also past the end of a salt, and with keys in turn.
TEST(SealTest, NoNonceComesTwiceFromOneSealer) {
  SeededRandom random(6);
  Sealer sealer(&random);
  std::set<Nonce> seen;
  for (const Nonce& nonce : NoncesOf(&sealer, KeyOf(1), kSealsPerSalt / 2)) seen.insert(nonce);
  for (const Nonce& nonce : NoncesOf(&sealer, KeyOf(2), kSealsPerSalt)) seen.insert(nonce);
  EXPECT_EQ(seen.size(), kSealsPerSalt / 2 + kSealsPerSalt);
}

// A restarted process, another worker and another node begin anew with the same data key.
TEST(SealTest, NoNonceComesTwiceFromSealersThatKnowNothingOfEachOther) {
  std::set<Nonce> seen;
  for (int i = 0; i < 100; ++i) {
    Sealer sealer(SystemRandom());
    for (const Nonce& nonce : NoncesOf(&sealer, KeyOf(1), 3)) seen.insert(nonce);
  }
  EXPECT_EQ(seen.size(), 300u);
}

TEST(SealTest, AForkedChildBeginsAnew) {
  Sealer sealer(SystemRandom());
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Nonce nonce = NoncesOf(&sealer, KeyOf(1), 1).front();
    _exit(write(pipe_ends[1], nonce.data(), nonce.size()) == ssize_t{24} ? 0 : 1);
  }
  const Nonce ours = NoncesOf(&sealer, KeyOf(1), 1).front();
  Nonce theirs;
  ASSERT_EQ(read(pipe_ends[0], theirs.data(), theirs.size()), 24);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(ours, theirs);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

// The salt makes another key of the data key: two sealers at the same count share no key stream.
TEST(SealTest, TheSameCountWithAnotherSaltEncryptsDifferently) {
  const Bytes plain(64);
  const Sealed one = SealedOf(KeyOf(1), 2, plain);
  const Sealed other = SealedOf(KeyOf(1), 3, plain);
  EXPECT_TRUE(
      std::equal(one.meta.nonce.begin() + 16, one.meta.nonce.end(), other.meta.nonce.begin() + 16));
  EXPECT_FALSE(one.payload == other.payload);
}

TEST(SealTest, AllocatesNothingForABlock) {
  ASSERT_TRUE(counting);
  SeededRandom random(7);
  Sealer sealer(&random);
  Sealer other(&random);
  const DataKey keys[] = {KeyOf(1), KeyOf(2)};
  Bytes payload = PlainOf(4096);
  BlockMeta meta = MetaOf(1, payload.size());
  const auto both = [&](Sealer* by, const DataKey& key) {
    SealOp seal{.meta = &meta, .plain = payload, .sealed = payload};
    by->Seal(key, {&seal, 1});
    OpenOp open{.meta = &meta, .sealed = payload, .plain = payload, .status = {}};
    sealer.Open(key, {&open, 1});
    EXPECT_TRUE(open.status.ok());
  };
  both(&sealer, keys[0]);
  const uint64_t before = openssl_allocations;
  for (int i = 0; i < 8; ++i) both(i % 3 == 0 ? &other : &sealer, keys[i % 2]);
  EXPECT_EQ(openssl_allocations - before, 0u);
}

// docs/formats/seal.md: the same bytes from another implementation of AES-GCM and HMAC.
TEST(SealTest, MatchesTheExampleOfTheFormat) {
  class Counting final : public Random {
   public:
    void Fill(std::span<std::byte> bytes) override {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(next_++);
    }

   private:
    uint8_t next_ = 0;
  } random;
  Sealer sealer(&random);
  DataKey key;
  key.id.fill(std::byte{0x11});
  std::fill(key.secret.writable().begin(), key.secret.writable().end(), std::byte{0x22});
  BlockMeta meta;
  meta.id.tenant.bytes.fill(std::byte{0x33});
  meta.id.key.bytes.fill(std::byte{0x44});
  meta.id.group = 1;
  meta.id.part = 2;
  meta.parent.bytes.fill(std::byte{0x55});
  meta.position = 3;
  meta.layout_fingerprint.fill(std::byte{0x66});
  meta.raw_bytes = 32;
  meta.stored_bytes = 16;
  meta.checksum = {.low = 4, .high = 5};
  meta.expiry_unix_seconds = 6;
  meta.engine_hash = 7;
  Bytes payload(16, std::byte{0x77});
  SealOp op{.meta = &meta, .plain = payload, .sealed = payload};
  sealer.Seal(key, {&op, 1});
  const auto hex = [](std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) {
      text += "0123456789abcdef"[static_cast<int>(byte) >> 4];
      text += "0123456789abcdef"[static_cast<int>(byte) & 15];
    }
    return text;
  };
  EXPECT_EQ(hex(payload), "d7686797a3fb4dbeae75ee1e4839f1bc");
  EXPECT_EQ(hex(meta.tag), "b083850c563c1dd046d34332bab3faf8");
}

}  // namespace
}  // namespace aquifer
