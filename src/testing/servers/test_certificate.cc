#include "testing/servers/test_certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr long kDaySeconds = 24L * 3600;  // NOLINT: OpenSSL's type.

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(std::FILE* file) const { std::fclose(file); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

void AddExtension(X509* certificate, int kind, const char* value) {
  const Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value));
  AQ_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

}  // namespace

void WriteTestCertificate(const std::string& certificate_file, const std::string& key_file) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<X509> certificate(X509_new());
  AQ_CHECK(key != nullptr && certificate != nullptr);
  X509* const made = certificate.get();
  AQ_CHECK(X509_set_version(made, X509_VERSION_3) == 1);
  ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
  X509_gmtime_adj(X509_getm_notBefore(made), -kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(made), kDaySeconds);
  X509_NAME* const name = X509_get_subject_name(made);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("aquifer tests"), -1, -1, 0);
  X509_set_issuer_name(made, name);
  X509_set_pubkey(made, key.get());
  AddExtension(made, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(made, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  AQ_CHECK(X509_sign(made, key.get(), EVP_sha256()) > 0);
  const Owned<std::FILE> certificate_out(std::fopen(certificate_file.c_str(), "w"));
  const Owned<std::FILE> key_out(std::fopen(key_file.c_str(), "w"));
  AQ_CHECK(certificate_out != nullptr && PEM_write_X509(certificate_out.get(), made) == 1);
  AQ_CHECK(key_out != nullptr && PEM_write_PrivateKey(key_out.get(), key.get(), nullptr, nullptr, 0,
                                                      nullptr, nullptr) == 1);
}

}  // namespace aquifer
