// What this process trusts, and how it shows itself, when it connects to servers by TLS (1.2 or
// later). Made once and shared by all connections; any thread may use it.
#pragma once

#include <memory>
#include <string>

#include "aquifer/status.h"

using SSL_CTX = struct ssl_ctx_st;

namespace aquifer {

struct TlsOptions {
  std::string ca_file;           // PEM; empty: the authorities that the system trusts.
  std::string certificate_file;  // PEM; ours, where a server wants one.
  std::string key_file;
};

class TlsContext {
 public:
  // kInvalid: a file cannot be read or is not what it should be; the message names it.
  static Result<std::shared_ptr<const TlsContext>> New(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const { return context_; }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context) {}

  SSL_CTX* const context_;
};

// What OpenSSL complains about on this thread, and forgets.
std::string TakeTlsError();

}  // namespace aquifer
