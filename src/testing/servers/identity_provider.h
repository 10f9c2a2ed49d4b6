// An OpenID provider on the loopback, for servers that take its tokens. It serves its description
// and its public key over HTTP. It signs tokens (RS256) with any claims that a test wants.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "testing/servers/scripted_http.h"

namespace aquifer {

class IdentityProvider {
 public:
  struct Claims {
    std::string audience;
    std::string policy;  // The bearer's rights, as MinIO reads them.
    int64_t expiry_unix_seconds = 0;
  };

  IdentityProvider();
  ~IdentityProvider();

  std::string configuration_url() const;
  std::string Token(const Claims& claims) const;
  // The same token, signed with another key.
  std::string ForgedToken(const Claims& claims) const;

 private:
  struct Key;

  std::string TokenBy(const Key& key, const Claims& claims) const;

  const std::unique_ptr<const Key> key_;
  const std::unique_ptr<const Key> another_;
  const ScriptedHttp server_;
};

}  // namespace aquifer
