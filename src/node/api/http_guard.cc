#include "node/api/http_guard.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

#include "tenant/token.h"

namespace aquifer {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// Nothing, or ":9470".
bool IsPort(std::string_view text) {
  return text.empty() ||
         (text.starts_with(':') &&
          std::all_of(text.begin() + 1, text.end(), [](char c) { return c >= '0' && c <= '9'; }));
}

// "localhost:9470", "[::1]" and "10.0.0.1:80" without port and brackets; empty: it is none.
std::string HostName(std::string_view host) {
  const bool brackets = host.starts_with('[');
  const size_t end = std::min(host.find(brackets ? ']' : ':'), host.size());
  if (brackets && end == host.size()) return "";
  if (!IsPort(host.substr(brackets ? end + 1 : end))) return "";
  return Lower(brackets ? host.substr(1, end - 1) : host.substr(0, end));
}

bool IsAddress(const std::string& name) {
  std::array<std::byte, sizeof(in6_addr)> binary{};
  return inet_pton(AF_INET, name.c_str(), binary.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), binary.data()) == 1;
}

bool IsOurs(std::string_view host, const HttpAddress& address) {
  const std::string name = HostName(host);
  if (name == "localhost") return true;
  // A name that somebody else's DNS answers for is never an address.
  if (!IsAddress(name)) return false;
  const bool loopback = name == "::1" || name.starts_with("127.");
  const bool everywhere = address.host == "0.0.0.0" || address.host == "::";
  return loopback || everywhere || name == address.host;
}

bool HasToken(const HttpRequest& request, const HttpRules& rules) {
  constexpr std::string_view kBearer = "bearer ";
  if (!rules.admin_token_sha256 || !request.authorization) return false;
  const std::string_view given = *request.authorization;
  if (Lower(given.substr(0, kBearer.size())) != kBearer) return false;
  return TokenFits(given.substr(kBearer.size()), *rules.admin_token_sha256);
}

// "application/json; charset=utf-8" is JSON too.
bool IsJson(const std::string& content_type) {
  std::string type = Lower(std::string_view(content_type).substr(0, content_type.find(';')));
  while (type.ends_with(' ')) type.pop_back();
  return type == "application/json";
}

HttpResponse NeedsToken(const HttpRequest& request, const HttpRules& rules) {
  if (!rules.admin_token_sha256) {
    return HttpError(
        403, "forbidden",
        "this node has no administrator's token, so this is answered on its Unix socket alone, to "
        "its own user; use aquifer ctl there, or set admin_token_sha256 in its configuration");
  }
  HttpResponse response =
      HttpError(401, "unauthorized",
                request.authorization
                    ? "this is not the administrator's token; look for the one whose SHA-256 is "
                      "admin_token_sha256 in the node's configuration"
                    : "the administrator's token is needed; send it as 'Authorization: Bearer "
                      "TOKEN', or give aquifer ctl --token-file");
  response.ask_for_token = true;
  return response;
}

}  // namespace

std::optional<HttpResponse> RefuseCrossSite(const HttpRequest& request, HttpNeed need,
                                            const HttpRules& rules) {
  if (request.repeated_header) {
    return HttpError(400, "invalid", "a header is there twice; send each once");
  }
  if (request.origin) {
    return HttpError(403, "cross_site",
                     "requests of web pages are not answered; leave the Origin header out");
  }
  if (request.fetch_site && *request.fetch_site != "none" && *request.fetch_site != "same-origin") {
    return HttpError(403, "cross_site",
                     "requests of web pages are not answered; type the address yourself");
  }
  const bool probe = need == HttpNeed::kNothing && request.host.empty();
  if (!request.on_socket && !probe && !IsOurs(request.host, rules.address)) {
    return HttpError(403, "wrong_host",
                     "the Host header names none of this node's addresses; ask for localhost or "
                     "the configured address by its number");
  }
  return std::nullopt;
}

std::optional<HttpResponse> RefuseAccess(const HttpRequest& request, HttpNeed need,
                                         const HttpRules& rules) {
  const bool needs_token =
      need == HttpNeed::kAdministration || (need == HttpNeed::kReading && rules.has_tenants_file);
  if (needs_token && !request.on_socket && !HasToken(request, rules)) {
    return NeedsToken(request, rules);
  }
  if (request.method == "POST" && (!request.content_type || !IsJson(*request.content_type))) {
    return HttpError(415, "not_json",
                     "the body must be JSON; send it with 'Content-Type: application/json'");
  }
  return std::nullopt;
}

}  // namespace aquifer
