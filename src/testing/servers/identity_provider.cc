#include "testing/servers/identity_provider.h"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include <span>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace aquifer {
namespace {

constexpr unsigned kKeyBits = 2048;

// As in tokens: for URLs, without padding.
std::string Base64(std::span<const unsigned char> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  while (text.ends_with('=')) text.pop_back();
  for (char& letter : text) letter = letter == '+' ? '-' : letter == '/' ? '_' : letter;
  return text;
}

std::string Base64(const std::string& text) {
  return Base64(std::span(reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

}  // namespace

struct IdentityProvider::Key {
  Key() : key(EVP_RSA_gen(kKeyBits)) { AQ_CHECK(key != nullptr); }
  ~Key() { EVP_PKEY_free(key); }

  std::string Number(const char* name) const {
    BIGNUM* number = nullptr;
    AQ_CHECK(EVP_PKEY_get_bn_param(key, name, &number) == 1);
    std::vector<unsigned char> bytes(static_cast<size_t>(BN_num_bytes(number)));
    BN_bn2bin(number, bytes.data());
    BN_free(number);
    return Base64(bytes);
  }

  std::string Sign(const std::string& text) const {
    EVP_MD_CTX* const context = EVP_MD_CTX_new();
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    size_t length = 0;
    AQ_CHECK(EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key) == 1);
    AQ_CHECK(EVP_DigestSign(context, nullptr, &length, bytes, text.size()) == 1);
    std::vector<unsigned char> signature(length);
    AQ_CHECK(EVP_DigestSign(context, signature.data(), &length, bytes, text.size()) == 1);
    EVP_MD_CTX_free(context);
    signature.resize(length);
    return Base64(signature);
  }

  EVP_PKEY* const key;
};

IdentityProvider::IdentityProvider()
    : key_(std::make_unique<Key>()),
      another_(std::make_unique<Key>()),
      server_([this](const HttpQuestion& question) -> HttpReply {
        const std::string url = "http://" + question.headers.at("host");
        std::string body =
            question.target == "/keys"
                ? fmt::format(
                      R"({{"keys":[{{"kty":"RSA","alg":"RS256","use":"sig","kid":"1","n":"{}","e":"{}"}}]}})",
                      key_->Number(OSSL_PKEY_PARAM_RSA_N), key_->Number(OSSL_PKEY_PARAM_RSA_E))
                : fmt::format(
                      R"({{"issuer":"{0}","jwks_uri":"{0}/keys","authorization_endpoint":"{0}/a",)"
                      R"("token_endpoint":"{0}/t","response_types_supported":["id_token"],)"
                      R"("subject_types_supported":["public"],)"
                      R"("id_token_signing_alg_values_supported":["RS256"]}})",
                      url);
        return {.headers = "Content-Type: application/json\r\n", .body = std::move(body)};
      }) {}

IdentityProvider::~IdentityProvider() = default;

std::string IdentityProvider::configuration_url() const {
  return server_.url() + "/.well-known/openid-configuration";
}

std::string IdentityProvider::Token(const Claims& claims) const { return TokenBy(*key_, claims); }

std::string IdentityProvider::ForgedToken(const Claims& claims) const {
  return TokenBy(*another_, claims);
}

std::string IdentityProvider::TokenBy(const Key& key, const Claims& claims) const {
  const std::string text =
      Base64(R"({"alg":"RS256","kid":"1","typ":"JWT"})") + "." +
      Base64(
          fmt::format(R"({{"iss":"{}","sub":"node","aud":"{}","policy":"{}","iat":{},"exp":{}}})",
                      server_.url(), claims.audience, claims.policy,
                      SystemClock()->UnixSeconds() - 7200, claims.expiry_unix_seconds));
  return text + "." + key.Sign(text);
}

}  // namespace aquifer
