// Runs every parser of S3 servers' answers on the same text. No parser may crash, and every result
// keeps to its bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "store/s3/s3_answer.h"
#include "store/s3/s3_credentials.h"
#include "store/s3/s3_endpoints.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aquifer;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const S3Error error = ParseS3Error(text);
  for (const char c : error.message) AQ_CHECK(c >= ' ' && c <= '~');
  const Result<S3Listing> listing = ParseS3Listing(text);
  if (listing.ok()) {
    for (const auto& object : listing->objects) AQ_CHECK(!object.key.empty());
  }
  const Result<StsAnswer> answer = ParseStsAnswer(text);
  AQ_CHECK(!answer.ok() || !answer->credentials.access_key.empty());
  SaysVersioned(text);
  ParseHttpDate(text);
  ParseIsoDate(text);
  const Result<AwsCredentials> credentials = ParseCredentialsFile(text, "default");
  AQ_CHECK(credentials.ok() || credentials.status().code() == Code::kInvalid);
  const Result<S3Endpoint> endpoint = ParseS3Endpoint(text);
  AQ_CHECK(!endpoint.ok() || ParseS3Endpoint(endpoint->Url()).ok());
  return 0;
}
