// TlsContext says which certificates this process trusts, and which one it shows, when it connects
// to servers by TLS (1.2 or later). It is made once and shared by all connections; any thread may
// use it.
#pragma once

#include <memory>
#include <string>

#include "aquifer/status.h"

using SSL_CTX = struct ssl_ctx_st;

namespace aquifer {

struct TlsOptions {
  std::string ca_file;           // PEM; empty: the authorities that the system trusts.
  std::string certificate_file;  // PEM; our certificate, if a server wants one.
  std::string key_file;
};

class TlsContext {
 public:
  // Returns kInvalid if a file cannot be read or has the wrong content; the message names it.
  static Result<std::shared_ptr<const TlsContext>> New(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const { return context_; }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context) {}

  SSL_CTX* const context_;
};

// Returns the OpenSSL errors of this thread, and clears them.
std::string TakeTlsError();

}  // namespace aquifer
