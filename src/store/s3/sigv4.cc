#include "store/s3/sigv4.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <map>

#include "base/crypto/hmac_sha256.h"
#include "base/crypto/secret_key.h"
#include "base/crypto/sha256.h"

namespace aquifer {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned>(byte));
  }
  return text;
}

// By the standard's list, not the locale's.
bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '~';
}

std::string Escape(std::string_view text, bool keep_slash) {
  std::string escaped;
  for (const char c : text) {
    if (IsUnreserved(c) || (keep_slash && c == '/')) {
      escaped += c;
    } else {
      fmt::format_to(std::back_inserter(escaped), "%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

std::string NormalisedPath(std::string_view path) {
  std::vector<std::string_view> parts;
  const bool directory = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    if (part == ".." && !parts.empty()) parts.pop_back();
    if (!part.empty() && part != "." && part != "..") parts.push_back(part);
  }
  std::string normalised = fmt::format("/{}", fmt::join(parts, "/"));
  if (directory && !parts.empty()) normalised += '/';
  return normalised;
}

char LowerCase(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Without spaces at the ends; several spaces become one.
std::string TrimmedValue(std::string_view value) {
  std::string trimmed;
  for (const char c : value) {
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (space && (trimmed.empty() || trimmed.back() == ' ')) continue;
    trimmed += space ? ' ' : c;
  }
  if (trimmed.ends_with(' ')) trimmed.pop_back();
  return trimmed;
}

// Names in lower case and sorted. Values of one name are joined, in their order.
Pairs CanonicalHeaders(std::span<const std::pair<std::string, std::string>> headers) {
  std::map<std::string, std::string> canonical;
  for (const auto& [name, value] : headers) {
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(), LowerCase);
    const auto [at, is_new] = canonical.try_emplace(lower, TrimmedValue(value));
    if (!is_new) at->second += "," + TrimmedValue(value);
  }
  return {canonical.begin(), canonical.end()};
}

std::string SignedHeaderNames(const Pairs& canonical) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : canonical) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ";"));
}

std::string CanonicalRequest(const SignedRequest& request, const SigningScope& scope,
                             const Pairs& headers) {
  const std::string path =
      EscapePath(scope.normalise_path ? NormalisedPath(request.path) : std::string(request.path));
  std::string text = fmt::format("{}\n{}\n{}\n", request.method, path, EscapeQuery(request.query));
  for (const auto& [name, value] : headers) text += fmt::format("{}:{}\n", name, value);
  return fmt::format("{}\n{}\n{}", text, SignedHeaderNames(headers), request.payload_sha256);
}

struct Timestamp {
  std::string date;  // "20150830"
  std::string time;  // "20150830T123600Z"
};

Timestamp TimestampOf(int64_t unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  const std::string date =
      fmt::format("{:04}{:02}{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
  return {date, fmt::format("{}T{:02}{:02}{:02}Z", date, utc.tm_hour, utc.tm_min, utc.tm_sec)};
}

std::string Signature(const AwsCredentials& credentials, const SigningScope& scope,
                      const std::string& date, std::string_view to_sign) {
  std::string secret = "AWS4" + credentials.secret_key;
  Sha256Digest key = HmacSha256(BytesOf(secret), date);
  WipeSecret(std::as_writable_bytes(std::span(secret)));
  key = HmacSha256(key, scope.region);
  key = HmacSha256(key, scope.service);
  key = HmacSha256(key, "aws4_request");
  const std::string signature = Hex(HmacSha256(key, to_sign));
  WipeSecret(key);
  return signature;
}

}  // namespace

std::string EscapePath(std::string_view path) { return path.empty() ? "/" : Escape(path, true); }

std::string EscapeQuery(std::span<const std::pair<std::string, std::string>> query) {
  Pairs escaped;
  for (const auto& [name, value] : query) {
    escaped.emplace_back(Escape(name, false), Escape(value, false));
  }
  std::sort(escaped.begin(), escaped.end());
  std::string text;
  for (const auto& [name, value] : escaped) {
    if (!text.empty()) text += '&';
    text += fmt::format("{}={}", name, value);
  }
  return text;
}

std::string PayloadSha256(std::span<const std::byte> payload) { return Hex(Sha256Of(payload)); }

std::vector<std::pair<std::string, std::string>> SignRequest(const SignedRequest& request,
                                                             const AwsCredentials& credentials,
                                                             const SigningScope& scope,
                                                             int64_t unix_seconds) {
  const Timestamp now = TimestampOf(unix_seconds);
  Pairs added = {{"x-amz-date", now.time}};
  if (scope.payload_header) added.emplace_back("x-amz-content-sha256", request.payload_sha256);
  if (!credentials.session_token.empty()) {
    added.emplace_back("x-amz-security-token", credentials.session_token);
  }
  Pairs headers(request.headers.begin(), request.headers.end());
  headers.insert(headers.end(), added.begin(), added.end());
  headers = CanonicalHeaders(headers);

  const std::string canonical = CanonicalRequest(request, scope, headers);
  const std::string credential_scope =
      fmt::format("{}/{}/{}/aws4_request", now.date, scope.region, scope.service);
  const std::string to_sign = fmt::format("{}\n{}\n{}\n{}", kAlgorithm, now.time, credential_scope,
                                          Hex(Sha256Of(BytesOf(canonical))));
  added.emplace_back(
      "authorization",
      fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm,
                  credentials.access_key, credential_scope, SignedHeaderNames(headers),
                  Signature(credentials, scope, now.date, to_sign)));
  return added;
}

}  // namespace aquifer
