// Parses the answers of S3 servers: the parts of their XML that we need, and messages for people
// about failures. No answer is trusted: lengths and depths are bounded.
//
// Pure functions. Any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "store/s3/bucket.h"
#include "store/s3/sigv4.h"

namespace aquifer {

// Returns an empty error if the text is something else.
S3Error ParseS3Error(std::string_view xml);

struct S3Listing {
  struct Object {
    std::string key;
    uint64_t bytes = 0;
  };
  std::vector<Object> objects;
  bool truncated = false;  // More names follow after the last one.
};
// Returns kCorrupt for another text.
Result<S3Listing> ParseS3Listing(std::string_view xml);

struct StsAnswer {
  AwsCredentials credentials;
  int64_t expiry_unix_seconds = 0;
};
// Parses the answer to AssumeRoleWithWebIdentity. Returns kCorrupt for another text.
Result<StsAnswer> ParseStsAnswer(std::string_view xml);

// Returns true if the bucket keeps old versions, or has kept some: the answer to GET ?versioning.
bool SaysVersioned(std::string_view xml);

// "Mon, 16 Nov 2026 03:01:04 GMT", as servers date their answers.
std::optional<int64_t> ParseHttpDate(std::string_view text);
// "2026-11-16T03:01:04Z", with or without a fraction.
std::optional<int64_t> ParseIsoDate(std::string_view text);

// Where and what was asked, for the message.
struct S3Context {
  std::string_view endpoint;
  std::string_view bucket;
  std::string_view region;
  std::string_view method;
};

// Explains an answer that is no success: a code as in blob_store.h, and what to do next. A plain
// miss has no message.
Status ExplainS3Failure(int http_status, const S3Error& error, const S3Context& context);

}  // namespace aquifer
