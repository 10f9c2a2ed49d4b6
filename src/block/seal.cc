#include "block/seal.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crypto/hmac_sha256.h"

namespace aquifer {
namespace {

constexpr std::string_view kDomain = "aquifer.seal.v1";
constexpr size_t kIvBytes = 12;
constexpr size_t kTagBytes = 16;
constexpr size_t kAssociatedBytes = 208;

using Iv = std::array<std::byte, kIvBytes>;
using AssociatedData = std::array<std::byte, kAssociatedBytes>;

// Everything that the header says of the block. Where a record lies, and how old it is in its log,
// is left out: records are moved without being sealed again.
AssociatedData AssociatedDataOf(const BlockMeta& meta) {
  AssociatedData bytes{};
  std::byte* to = PutBytes(bytes.data(), kDomain.data(), kDomain.size()) + 1;  // And a zero.
  to = PutU16(to, static_cast<uint16_t>(meta.codec));
  to = PutU16(to, meta.id.group);
  to = PutU16(to, meta.id.part);
  to = PutU16(to, 0);
  to = PutU64(to, meta.position);
  to = PutBytes(to, meta.id.tenant.bytes.data(), meta.id.tenant.bytes.size());
  to = PutBytes(to, meta.id.key.bytes.data(), meta.id.key.bytes.size());
  to = PutBytes(to, meta.parent.bytes.data(), meta.parent.bytes.size());
  to = PutBytes(to, meta.layout_fingerprint.data(), meta.layout_fingerprint.size());
  to = PutU64(to, meta.raw_bytes);
  to = PutU64(to, meta.stored_bytes);
  to = PutBytes(to, meta.data_key_id.data(), meta.data_key_id.size());
  to = PutU64(to, meta.checksum.low);
  to = PutU64(to, meta.checksum.high);
  to = PutU64(to, static_cast<uint64_t>(meta.expiry_unix_seconds));
  to = PutU64(to, meta.engine_hash);
  AQ_CHECK(to == bytes.data() + bytes.size());
  return bytes;
}

const unsigned char* In(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* Out(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace

// OpenSSL's context, keyed with what was derived last. Deriving costs a microsecond, so that also a
// batch whose blocks come from many writers is opened at full speed.
class Sealer::Cipher {
 public:
  explicit Cipher(bool encrypts) : context_(EVP_CIPHER_CTX_new()) {
    AQ_CHECK(context_ != nullptr);
    Must(EVP_CipherInit_ex(context_, EVP_aes_256_gcm(), nullptr, nullptr, nullptr,
                           encrypts ? 1 : 0));
  }
  ~Cipher() { EVP_CIPHER_CTX_free(context_); }  // Wipes it.
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  void UseKey(const DataKey& key, const Salt& salt) {
    if (keyed_ && salt == salt_ && key.secret == secret_) return;
    std::array<std::byte, kDomain.size() + kSaltBytes> message;
    PutBytes(PutBytes(message.data(), kDomain.data(), kDomain.size()), salt.data(), salt.size());
    Sha256Digest derived = HmacSha256(key.secret.bytes(), message);
    Must(EVP_CipherInit_ex(context_, nullptr, nullptr, In(derived), nullptr, -1));
    WipeSecret(derived);
    salt_ = salt;
    secret_ = key.secret;
    keyed_ = true;
  }

  void Begin(const Iv& iv, const AssociatedData& associated) {
    int count = 0;
    Must(EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, In(iv), -1));
    Must(EVP_CipherUpdate(context_, nullptr, &count, In(associated), kAssociatedBytes));
  }

  void Run(std::span<const std::byte> from, std::span<std::byte> to) {
    int count = 0;
    Must(EVP_CipherUpdate(context_, Out(to), &count, In(from), static_cast<int>(from.size())));
    AQ_CHECK(static_cast<size_t>(count) == from.size());
  }

  std::array<std::byte, kTagBytes> Tag() {
    std::array<std::byte, kTagBytes> tag;
    int count = 0;
    unsigned char none = 0;
    Must(EVP_CipherFinal_ex(context_, &none, &count));
    Must(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()));
    return tag;
  }

  // Whether what Run() decrypted was sealed with this tag.
  bool HasTag(std::array<std::byte, kTagBytes> tag) {
    int count = 0;
    unsigned char none = 0;
    Must(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()));
    return EVP_CipherFinal_ex(context_, &none, &count) == 1;
  }

 private:
  // No input makes these fail: what could is a broken OpenSSL, and going on would store plain text.
  static void Must(int result) { AQ_CHECK(result == 1); }

  EVP_CIPHER_CTX* const context_;
  bool keyed_ = false;
  Salt salt_{};
  SecretKey secret_;
};

Sealer::Sealer(Random* random)
    : random_(random),
      seal_(std::make_unique<Cipher>(true)),
      open_(std::make_unique<Cipher>(false)) {
  DrawSalt();
}

Sealer::~Sealer() = default;

void Sealer::DrawSalt() {
  random_->Fill(salt_);
  counter_ = 0;
  process_ = getpid();
}

void Sealer::Seal(const DataKey& key, std::span<SealOp> ops) {
  if (process_ != getpid()) DrawSalt();  // A fork: the parent goes on with the old one.
  for (SealOp& op : ops) {
    if (counter_ == kSealsPerSalt) DrawSalt();
    SealOne(key, &op);
  }
}

void Sealer::SealOne(const DataKey& key, SealOp* op) {
  BlockMeta& meta = *op->meta;
  AQ_CHECK(op->plain.size() == meta.stored_bytes && op->sealed.size() == meta.stored_bytes);
  AQ_CHECK(meta.stored_bytes <= (uint64_t{1} << 30));
  meta.data_key_id = key.id;
  PutU64(PutBytes(meta.nonce.data(), salt_.data(), salt_.size()), counter_);
  Iv iv{};
  PutU64(iv.data() + kIvBytes - 8, counter_);
  ++counter_;  // Before the key stream is used, and whatever becomes of it.
  seal_->UseKey(key, salt_);
  seal_->Begin(iv, AssociatedDataOf(meta));
  seal_->Run(op->plain, op->sealed);
  meta.tag = seal_->Tag();
}

void Sealer::Open(const DataKey& key, std::span<OpenOp> ops) {
  for (OpenOp& op : ops) {
    op.status = OpenOne(key, op);
    if (!op.status.ok()) std::fill(op.plain.begin(), op.plain.end(), std::byte{0});
  }
}

Status Sealer::OpenOne(const DataKey& key, const OpenOp& op) {
  const BlockMeta& meta = *op.meta;
  AQ_CHECK(op.sealed.size() == op.plain.size() && op.sealed.size() <= (uint64_t{1} << 30));
  if (meta.data_key_id != key.id || meta.stored_bytes != op.sealed.size()) {
    return Status(Code::kCorrupt);
  }
  Salt salt;
  std::memcpy(salt.data(), meta.nonce.data(), salt.size());
  Iv iv{};
  std::memcpy(iv.data() + kIvBytes - 8, meta.nonce.data() + kSaltBytes, 8);
  open_->UseKey(key, salt);
  open_->Begin(iv, AssociatedDataOf(meta));
  open_->Run(op.sealed, op.plain);
  return open_->HasTag(meta.tag) ? Status() : Status(Code::kCorrupt);
}

}  // namespace aquifer
