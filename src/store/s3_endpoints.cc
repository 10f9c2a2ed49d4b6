#include "store/s3_endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kMostDoublings = 5;  // 32 seconds.

Status Wrong(std::string_view text, std::string_view why) {
  return {Code::kInvalid, fmt::format("'{}' is no endpoint: {}", text, why)};
}

bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

// "host", ":port" of "host:port"; the host may be in brackets.
std::pair<std::string_view, std::string_view> SplitPort(std::string_view host) {
  const size_t bracket = host.find(']');
  const size_t colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon == std::string_view::npos) return {host, {}};
  return {host.substr(0, colon), host.substr(colon)};
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
  const auto [host, port] = SplitPort(rest);
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.[]:";
  if (host.empty() || host.find_first_not_of(kAllowed) != std::string_view::npos) {
    return Wrong(text, "it has a host and perhaps a port, and nothing else");
  }
  const bool port_is_number =
      port.size() > 1 && port.find_first_not_of("0123456789", 1) == std::string_view::npos;
  if (!port.empty() && !port_is_number) return Wrong(text, "a port is a number");
  endpoint.host = host;
  // What is signed is what libcurl sends, which leaves these out.
  if (port != (endpoint.tls ? ":443" : ":80")) endpoint.host += port;
  endpoint.loopback = IsLoopback(host);
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
  // Many that were under way fail at once: that is one failure.
  if (entry.avoided_until_nanos > now_nanos) return;
  entry.avoided_until_nanos = now_nanos + (kSecond << std::min(entry.failures, kMostDoublings));
  ++entry.failures;
}

}  // namespace aquifer
