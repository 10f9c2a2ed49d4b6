// A Bucket is a bucket of an S3 server, and sends requests to it. It signs them, spreads them over
// the server's endpoints, tries them again, and slows down when the server asks for it. Other files
// give the requests a meaning: object_store.h makes a BlobStore of a bucket,
// tenant/keys/key_bucket.h a KeyStore.
//
// One thread does all the work, and runs every on_done. Any thread may submit. The caller owns a
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
  // for the loopback only, unless allow_plain_http says that nobody else can read the network.
  std::vector<std::string> endpoints;
  bool allow_plain_http = false;
  std::string bucket;
  std::string prefix;  // Begins every key: "kv/". Empty, or with a "/" at its end.
  std::string region = "us-east-1";
  bool virtual_host = false;  // true: "https://bucket.host/key"; false: "https://host/bucket/key".
  std::string ca_file;        // Empty: the system's authorities.
  S3CredentialSettings credentials;

  size_t max_connections = 64;  // Requests in flight.
  size_t max_queued = 8192;     // Requests in flight and waiting; further ones are kBusy.
  int64_t connect_nanos = 3'000'000'000;
  int64_t stall_nanos = 10'000'000'000;  // A connection that moves no byte for so long is given up.
  int64_t patience_nanos = 60'000'000'000;  // Time limit for requests without a deadline.
  int most_attempts = 5;
};

// Both return kInvalid, with the correction to make.
Status CheckBucketName(std::string_view name);
Status CheckBucketOptions(const BucketOptions& options);

// An S3 server's error.
struct S3Error {
  std::string code{};     // "NoSuchKey"
  std::string message{};  // The server's message.
  std::string region{};   // The bucket's region as the server names it; mostly empty.
};

struct S3Request {
  std::string method{};  // "GET"
  std::string key{};     // With the prefix; empty: the bucket itself.
  std::vector<std::pair<std::string, std::string>> query{};
  // In addition to the headers of every request.
  std::vector<std::pair<std::string, std::string>> headers{};
  // A PUT's body: two parts, one after the other.
  std::array<std::span<const std::byte>, 2> send{};
  // The memory for a GET's bytes: two parts, one after the other. If both are empty, the bytes are
  // in `text`.
  std::array<std::span<std::byte>, 2> receive{};
  bool background = false;  // Waits for other requests, and leaves them some connections.
  int64_t deadline_nanos = kNoDeadline;

  // Set before on_done. Ok for every 2xx. Otherwise its code is as in blob_store.h, and its message
  // is for people.
  Status status{};
  int http_status = 0;  // 0: there was no answer.
  S3Error error{};
  std::map<std::string, std::string> answer_headers{};  // Names in lower case.
  std::string text{};                                   // The first 4 MiB of the answer.
  uint64_t received_bytes = 0;                          // How many bytes `receive` got.
  std::function<void(S3Request&)> on_done{};
};

struct BucketCounters {
  uint64_t requests = 0;  // Sent; each attempt counts.
  uint64_t retries = 0;
  uint64_t slow_downs = 0;         // How often the server asked for it.
  uint64_t failovers = 0;          // How often an endpoint was left for another one.
  uint64_t clock_corrections = 0;  // How often the server's time was adopted.
  uint64_t connections = 0;        // Connections made.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

class Bucket {
 public:
  virtual ~Bucket() = default;  // Completes every request under way: each on_done has run.

  virtual void Submit(S3Request* request) = 0;
  // The request completes soon, as kLate unless it was already done. The caller makes sure that its
  // on_done has not run yet.
  virtual void Cancel(S3Request* request) = 0;

  virtual uint64_t queued() const = 0;
  virtual BucketCounters counters() const = 0;
  // How far the server's clock is ahead of ours, by the date of its last answer. 0: no answer had a
  // date.
  virtual int64_t clock_ahead_seconds() const = 0;
  // "s3://kv-cache at https://10.0.0.7:9000", followed by warnings for the administrator.
  virtual std::string Describe() const = 0;
};

// Does not contact the server yet: a server that is not there shows in the requests. Returns
// kUnavailable in a build without libcurl. Clock and random outlive the bucket.
Result<std::unique_ptr<Bucket>> NewBucket(const BucketOptions& options, Clock* clock,
                                          Random* random);

}  // namespace aquifer
