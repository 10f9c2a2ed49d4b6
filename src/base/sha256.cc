#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace aquifer {
namespace {

// Looking an algorithm up by name costs more than a short digest, so it is done once.
const EVP_MD* Algorithm() {
  static EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  AQ_CHECK(algorithm != nullptr);
  return algorithm;
}

EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

void Sha256::ContextDeleter::operator()(void* context) const { EVP_MD_CTX_free(Context(context)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  AQ_CHECK(context_ != nullptr);
  Begin();
}

void Sha256::Begin() {
  AQ_CHECK(EVP_DigestInit_ex2(Context(context_.get()), Algorithm(), nullptr) == 1);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  AQ_CHECK(EVP_DigestUpdate(Context(context_.get()), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  AQ_CHECK(EVP_DigestFinal_ex(Context(context_.get()),
                              reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  Begin();
  return digest;
}

Sha256Digest Sha256Of(std::span<const std::byte> bytes) {
  thread_local Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

}  // namespace aquifer
