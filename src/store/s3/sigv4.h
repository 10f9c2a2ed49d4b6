// Signs HTTP requests the way that S3 and its likes want it: AWS Signature Version 4, in headers.
// It signs what it is given and sends nothing; the caller adds its answer to the request as it is.
//
// Pure functions of their arguments: the time is the caller's. Any thread. The secret key and the
// session token are in no message; wiping what holds them is for their owner.
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
  // resolve
  // "." and ".." and do without the header.
  bool normalise_path = false;
  bool payload_header = true;
};

struct SignedRequest {
  std::string_view method;  // "GET"
  // Not escaped: "/bucket/a b". EscapePath() makes of it what goes on the wire.
  std::string_view path;
  // Name and value, not escaped, in any order.
  std::span<const std::pair<std::string, std::string>> query;
  // All that are to be signed besides those which are added: host at the least, and every x-amz-*.
  std::span<const std::pair<std::string, std::string>> headers;
  // The payload's SHA-256 in hexadecimal, or kUnsignedPayload, for which TLS must answer.
  std::string_view payload_sha256;
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";
// SHA-256 of nothing, for requests without a body.
inline constexpr std::string_view kEmptyPayload =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// The headers to add: x-amz-date, x-amz-content-sha256, x-amz-security-token where there is a
// session, and authorization, the last.
std::vector<std::pair<std::string, std::string>> SignRequest(const SignedRequest& request,
                                                             const AwsCredentials& credentials,
                                                             const SigningScope& scope,
                                                             int64_t unix_seconds);

std::string PayloadSha256(std::span<const std::byte> payload);

// As they go on the wire, so that what is sent is what was signed.
std::string EscapePath(std::string_view path);
std::string EscapeQuery(std::span<const std::pair<std::string, std::string>> query);

}  // namespace aquifer
