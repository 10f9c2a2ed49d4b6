#include "net/stream/tls_context.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/check.h"

namespace aquifer {
namespace {

Status Unusable(const std::string& file, const char* what) {
  return Status(Code::kInvalid,
                fmt::format("'{}' cannot be used as {}: {}", file, what, TakeTlsError()));
}

Status Trust(SSL_CTX* context, const std::string& ca_file) {
  if (ca_file.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) == 1) return Status();
    return Status(Code::kInvalid, "the system's certificate authorities cannot be read");
  }
  if (SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) == 1) return Status();
  return Unusable(ca_file, "certificate authorities");
}

Status ShowCertificate(SSL_CTX* context, const TlsOptions& options) {
  if (options.certificate_file.empty()) return Status();
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) != 1) {
    return Unusable(options.certificate_file, "a certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return Unusable(options.key_file, "the certificate's key");
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::New(const TlsOptions& options) {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  AQ_CHECK(context != nullptr);
  std::shared_ptr<const TlsContext> made(new TlsContext(context));
  AQ_CHECK(SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  // The stream keeps unwritten bytes, at another place than where they came from.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  AQ_RETURN_IF_ERROR(Trust(context, options.ca_file));
  AQ_RETURN_IF_ERROR(ShowCertificate(context, options));
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::string TakeTlsError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (error == 0) return "no reason was given";
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("error {:x}", error);
}

}  // namespace aquifer
