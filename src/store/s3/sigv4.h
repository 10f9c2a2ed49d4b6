// Signs HTTP requests with AWS Signature Version 4, in headers. It sends nothing; the caller adds
// the returned headers to the request as they are.
//
// Pure functions: the caller gives the time. Any thread may call. No message contains the secret
// key or the session token. The caller wipes the memory that holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aquifer {

struct AwsCredentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // Empty: none.
};

struct SigningScope {
  std::string region;  // "us-east-1"
  std::string service = "s3";
  // S3 signs a path as it is, escaped once, and demands x-amz-content-sha256. Other services
  // resolve "." and ".." and do without the header.
  bool normalise_path = false;
  bool payload_header = true;
};

struct SignedRequest {
  std::string_view method;  // "GET"
  // Not escaped: "/bucket/a b". EscapePath() turns it into the path on the wire.
  std::string_view path;
  // Names and values, not escaped, in any order.
  std::span<const std::pair<std::string, std::string>> query;
  // All headers to sign besides those that SignRequest() adds: at least host, and every x-amz-*.
  std::span<const std::pair<std::string, std::string>> headers;
  // The payload's SHA-256 in hexadecimal, or kUnsignedPayload: then only TLS protects it.
  std::string_view payload_sha256;
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";
// SHA-256 of no bytes, for requests without a body.
inline constexpr std::string_view kEmptyPayload =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// The headers to add: x-amz-date, x-amz-content-sha256, x-amz-security-token if there is a session,
// and last authorization.
std::vector<std::pair<std::string, std::string>> SignRequest(const SignedRequest& request,
                                                             const AwsCredentials& credentials,
                                                             const SigningScope& scope,
                                                             int64_t unix_seconds);

std::string PayloadSha256(std::span<const std::byte> payload);

// The path as it goes on the wire, so that the path that is sent is the one that was signed.
std::string EscapePath(std::string_view path);
std::string EscapeQuery(std::span<const std::pair<std::string, std::string>> query);

}  // namespace aquifer
