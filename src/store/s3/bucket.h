// A bucket of an S3 server, and requests to it: signed, spread over its endpoints, tried again, and
// slowed down when the server asks for it. What a request means is for those above:
// object_store.h makes a BlobStore of it, tenant/keys/key_bucket.h a KeyStore.
//
// One thread does everything, and runs every on_done. Any thread may submit. The caller owns a
// request and its memory and leaves both untouched until on_done, which runs exactly once and may
// destroy the request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/s3/s3_credentials.h"

namespace aquifer {

struct BucketOptions {
  // "https://s3.eu-west-1.amazonaws.com", "https://10.0.0.7:9000"; all of one store. "http://" is
  // for the loopback alone, unless allow_plain_http says that others cannot read along.
  std::vector<std::string> endpoints;
  bool allow_plain_http = false;
  std::string bucket;
  std::string prefix;  // Stands before every name: "kv/"; empty, or "/" at its end.
  std::string region = "us-east-1";
  bool virtual_host = false;  // "https://bucket.host/key"; false: "https://host/bucket/key".
  std::string ca_file;        // Empty: the system's authorities.
  S3CredentialSettings credentials;

  size_t max_connections = 64;  // Requests in flight.
  size_t max_queued = 8192;     // Those and what waits; more is kBusy.
  int64_t connect_nanos = 3'000'000'000;
  int64_t stall_nanos = 10'000'000'000;  // A connection that moves nothing for so long is given up.
  int64_t patience_nanos = 60'000'000'000;  // For requests without a deadline.
  int most_attempts = 5;
};

// Both: kInvalid, with what to correct.
Status CheckBucketName(std::string_view name);
Status CheckBucketOptions(const BucketOptions& options);

// What an S3 server says of a failure.
struct S3Error {
  std::string code{};     // "NoSuchKey"
  std::string message{};  // The server's words.
  std::string region{};   // Where it says that the bucket is; mostly empty.
};

struct S3Request {
  std::string method{};  // "GET"
  std::string key{};     // With the prefix; empty: the bucket itself.
  std::vector<std::pair<std::string, std::string>> query{};
  std::vector<std::pair<std::string, std::string>> headers{};  // Besides those of every request.
  std::array<std::span<const std::byte>, 2> send{};            // A PUT's body, one after the other.
  // Where a GET's bytes go, one after the other. Without room for any they are in `text`.
  std::array<std::span<std::byte>, 2> receive{};
  bool background = false;  // Waits for those that are not, and leaves them some connections.
  int64_t deadline_nanos = kNoDeadline;

  // Set before on_done. Ok for every 2xx; else for people, as blob_store.h says for its codes.
  Status status{};
  int http_status = 0;  // 0: there was no answer.
  S3Error error{};
  std::map<std::string, std::string> answer_headers{};  // Names in lower case.
  std::string text{};                                   // Its first 4 MiB.
  uint64_t received_bytes = 0;                          // Into `receive`.
  std::function<void(S3Request&)> on_done{};
};

struct BucketCounters {
  uint64_t requests = 0;  // Sent, each attempt.
  uint64_t retries = 0;
  uint64_t slow_downs = 0;         // The server asked for it.
  uint64_t failovers = 0;          // An endpoint was left for another one.
  uint64_t clock_corrections = 0;  // By the server's time.
  uint64_t connections = 0;        // Made.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

class Bucket {
 public:
  virtual ~Bucket() = default;  // Ends what is under way: every on_done has run.

  virtual void Submit(S3Request* request) = 0;
  // The request completes soon, as kLate unless it was already done. The caller makes sure that
  // its on_done has not run yet.
  virtual void Cancel(S3Request* request) = 0;

  virtual uint64_t queued() const = 0;
  virtual BucketCounters counters() const = 0;
  // The server's clock, by the date of its last answer, against ours; 0: none was dated.
  virtual int64_t clock_ahead_seconds() const = 0;
  // "s3://kv-cache at https://10.0.0.7:9000", and what somebody should see to.
  virtual std::string Describe() const = 0;
};

// Reaches for nothing yet: a server that is not there shows in the requests. kUnavailable in a
// build without libcurl. Clock and random outlive it.
Result<std::unique_ptr<Bucket>> NewBucket(const BucketOptions& options, Clock* clock,
                                          Random* random);

}  // namespace aquifer
