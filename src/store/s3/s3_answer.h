// What S3 servers answer: their XML, the little of it that we need, and what a failure means for a
// person. Nothing of it is trusted: lengths and depths are bounded.
//
// Pure functions. Any thread.
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

// Empty where the text is something else.
S3Error ParseS3Error(std::string_view xml);

struct S3Listing {
  struct Object {
    std::string key;
    uint64_t bytes = 0;
  };
  std::vector<Object> objects;
  bool truncated = false;  // There are more, after the last one.
};
// kCorrupt.
Result<S3Listing> ParseS3Listing(std::string_view xml);

struct StsAnswer {
  AwsCredentials credentials;
  int64_t expiry_unix_seconds = 0;
};
// Of AssumeRoleWithWebIdentity. kCorrupt.
Result<StsAnswer> ParseStsAnswer(std::string_view xml);

// Whether the bucket keeps old versions, or has kept some: the answer to GET ?versioning.
bool SaysVersioned(std::string_view xml);

// "Mon, 16 Nov 2026 03:01:04 GMT", as servers date their answers.
std::optional<int64_t> ParseHttpDate(std::string_view text);
// "2026-11-16T03:01:04Z", with or without a fraction.
std::optional<int64_t> ParseIsoDate(std::string_view text);

// Where and what was asked, for the words about it.
struct S3Context {
  std::string_view endpoint;
  std::string_view bucket;
  std::string_view region;
  std::string_view method;
};

// For an answer that is no success: a code as blob_store.h means it, and what to do next. A plain
// miss has no words.
Status ExplainS3Failure(int http_status, const S3Error& error, const S3Context& context);

}  // namespace aquifer
