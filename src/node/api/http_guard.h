// Who may ask a node what, over HTTP. Pure: a request and the rules in, a refusal out.
//
//   anybody          /healthz, /readyz
//   reading          without a tenants file: whoever reaches the address; with one: the token
//   administration   the token; where none is configured, the Unix socket alone
//
// What comes on the administrator's socket has been let in already: its peer is the node's own user
// or root. No request that a browser makes for some other site is answered, anywhere: not one with
// an Origin, and not one for a Host that is not ours, which is what DNS rebinding looks like.
#pragma once

#include <cstdint>
#include <optional>

#include "base/crypto/sha256.h"
#include "node/api/http_message.h"
#include "node/config/node_config.h"

namespace aquifer {

enum class HttpNeed : uint8_t { kNothing, kReading, kAdministration };

struct HttpRules {
  std::optional<Sha256Digest> admin_token_sha256{};
  bool has_tenants_file = false;
  HttpAddress address{};  // Where TCP is served.
};

// It is a browser's, for another site, or for a host that we are not. None: it is not. What needs
// nothing needs no Host either: probes that speak HTTP/1.0 send none, and browsers always do.
std::optional<HttpResponse> RefuseCrossSite(const HttpRequest& request, HttpNeed need,
                                            const HttpRules& rules);

// It may not ask for this, or not in this form. None: it may.
std::optional<HttpResponse> RefuseAccess(const HttpRequest& request, HttpNeed need,
                                         const HttpRules& rules);

}  // namespace aquifer
