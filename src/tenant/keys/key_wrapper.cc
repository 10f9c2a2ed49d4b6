#include "tenant/keys/key_wrapper.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/crypto/hmac_sha256.h"

namespace aquifer {
namespace {

constexpr size_t kIvBytes = 12;
constexpr size_t kTagBytes = 16;
constexpr size_t kWrappedBytes = kIvBytes + SecretKey::kBytes + kTagBytes;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

// The two keys that are derived from a master key. The master key itself encrypts nothing.
struct Master {
  MasterKeyId id{};
  SecretKey wrapping;
};

Master MasterOf(const SecretKey& key) {
  Master master;
  Sha256Digest wrapping = HmacSha256(key.bytes(), "aquifer.wrap.v1");
  master.wrapping = SecretKey(wrapping);
  WipeSecret(wrapping);
  const Sha256Digest id = HmacSha256(key.bytes(), "aquifer.master.v1");
  std::copy_n(id.begin(), master.id.size(), master.id.begin());
  return master;
}

const unsigned char* In(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* Out(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

void Must(int result) { AQ_CHECK(result == 1); }

// Returns a cipher that has read the associated data and takes the key next.
std::unique_ptr<EVP_CIPHER_CTX, FreeContext> Begin(bool encrypts, const SecretKey& key,
                                                   std::span<const std::byte> iv,
                                                   std::span<const std::byte> associated) {
  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context(EVP_CIPHER_CTX_new());
  AQ_CHECK(context != nullptr);
  int count = 0;
  Must(EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, In(key.bytes()), In(iv),
                         encrypts ? 1 : 0));
  Must(EVP_CipherUpdate(context.get(), nullptr, &count, In(associated),
                        static_cast<int>(associated.size())));
  return context;
}

class MasterKeyWrapper final : public KeyWrapper {
 public:
  MasterKeyWrapper(std::vector<Master> masters, Random* random)
      : masters_(std::move(masters)), random_(random) {}

  MasterKeyId current() const override { return masters_.front().id; }

  // The initialisation vector is random. A master key wraps one key for each tenant and rotation,
  // which is far below the 2^32 uses that 96 random bits are good for.
  Result<std::vector<std::byte>> Wrap(const SecretKey& key,
                                      std::span<const std::byte> associated) override {
    std::vector<std::byte> wrapped(kWrappedBytes);
    const std::span<std::byte> iv = std::span(wrapped).first(kIvBytes);
    random_->Fill(iv);
    const auto context = Begin(true, masters_.front().wrapping, iv, associated);
    int count = 0;
    unsigned char none = 0;
    Must(EVP_CipherUpdate(context.get(), Out(std::span(wrapped).subspan(kIvBytes)), &count,
                          In(key.bytes()), SecretKey::kBytes));
    Must(EVP_CipherFinal_ex(context.get(), &none, &count));
    Must(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                             wrapped.data() + kWrappedBytes - kTagBytes));
    return wrapped;
  }

  Result<SecretKey> Unwrap(const MasterKeyId& master, std::span<const std::byte> wrapped,
                           std::span<const std::byte> associated) override {
    const auto found = std::find_if(masters_.begin(), masters_.end(),
                                    [&](const Master& one) { return one.id == master; });
    if (found == masters_.end()) {
      return Status(Code::kInvalid,
                    "a data key is wrapped by a master key that is not among the configured ones; "
                    "configure that one besides the current one");
    }
    if (wrapped.size() != kWrappedBytes) return Refused();
    const auto context = Begin(false, found->wrapping, wrapped.first(kIvBytes), associated);
    SecretKey key;
    int count = 0;
    unsigned char none = 0;
    std::array<std::byte, kTagBytes> tag;
    std::copy_n(wrapped.end() - kTagBytes, kTagBytes, tag.begin());
    Must(EVP_CipherUpdate(context.get(), Out(key.writable()), &count, In(wrapped.subspan(kIvBytes)),
                          SecretKey::kBytes));
    Must(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()));
    if (EVP_CipherFinal_ex(context.get(), &none, &count) != 1) return Refused();
    return key;
  }

 private:
  static Status Refused() {
    return Status(Code::kCorrupt, "a wrapped data key was changed, or is another tenant's");
  }

  const std::vector<Master> masters_;
  Random* const random_;
};

}  // namespace

Result<std::unique_ptr<KeyWrapper>> NewMasterKeyWrapper(std::span<const SecretKey> masters,
                                                        Random* random) {
  if (masters.empty()) return Status(Code::kInvalid, "there is no master key");
  std::vector<Master> derived;
  for (const SecretKey& master : masters) {
    if (master == SecretKey()) return Status(Code::kInvalid, "a master key is all zeros");
    derived.push_back(MasterOf(master));
  }
  return std::unique_ptr<KeyWrapper>(
      std::make_unique<MasterKeyWrapper>(std::move(derived), random));
}

}  // namespace aquifer
