#include "store/s3/s3_endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "net/stream/host_port.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kMostDoublings = 5;  // 32 seconds.

Status Wrong(std::string_view text, std::string_view why) {
  return {Code::kInvalid, fmt::format("'{}' is no endpoint: {}", text, why)};
}

// Returns true if the host's name is a loopback address; "127.example.com" is none.
bool IsLoopback(std::string_view host) {
  const bool numeric = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || host == "::1" || (numeric && host.starts_with("127."));
}

}  // namespace

Result<S3Endpoint> ParseS3Endpoint(std::string_view text) {
  S3Endpoint endpoint;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    endpoint.tls = false;
  } else {
    return Wrong(text, "it begins with https:// or http://");
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  std::optional<HostPort> server = ParseHostPort(rest);
  if (!server.has_value()) {
    return Wrong(text, "it has a host and perhaps a port, and nothing else");
  }
  // Default ports are left out: libcurl leaves them out, and the signature must match what it
  // sends.
  if (server->port == (endpoint.tls ? 443 : 80)) server->port = 0;
  endpoint.host = server->ToString();
  endpoint.loopback = IsLoopback(server->host);
  return endpoint;
}

S3Endpoints::S3Endpoints(std::vector<S3Endpoint> endpoints) {
  for (S3Endpoint& endpoint : endpoints) entries_.push_back({.endpoint = std::move(endpoint)});
}

size_t S3Endpoints::Next(int64_t now_nanos) {
  size_t best = next_;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const size_t candidate = (next_ + i) % entries_.size();
    if (entries_[candidate].avoided_until_nanos <= now_nanos) {
      best = candidate;
      break;
    }
    if (entries_[candidate].avoided_until_nanos < entries_[best].avoided_until_nanos) {
      best = candidate;
    }
  }
  next_ = (best + 1) % entries_.size();
  return best;
}

void S3Endpoints::Worked(size_t endpoint) {
  entries_[endpoint].failures = 0;
  entries_[endpoint].avoided_until_nanos = INT64_MIN;
}

void S3Endpoints::Failed(size_t endpoint, int64_t now_nanos) {
  Entry& entry = entries_[endpoint];
  // Many requests that were under way fail at once: that is one failure.
  if (entry.avoided_until_nanos > now_nanos) return;
  entry.avoided_until_nanos = now_nanos + (kSecond << std::min(entry.failures, kMostDoublings));
  ++entry.failures;
}

}  // namespace aquifer
