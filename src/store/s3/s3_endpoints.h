// The addresses of an S3 server, and which of them to ask next: all in turn, and one that failed
// less and less often until it answers again. Pure: the time is the caller's. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

struct S3Endpoint {
  bool tls = true;
  std::string host;       // "10.0.0.7:9000", without a port that goes without saying.
  bool loopback = false;  // By its name.

  std::string Url() const { return (tls ? "https://" : "http://") + host; }
};

// kInvalid, with what to correct.
Result<S3Endpoint> ParseS3Endpoint(std::string_view text);

class S3Endpoints {
 public:
  explicit S3Endpoints(std::vector<S3Endpoint> endpoints);

  size_t size() const { return entries_.size(); }
  const S3Endpoint& operator[](size_t i) const { return entries_[i].endpoint; }

  size_t Next(int64_t now_nanos);
  void Worked(size_t endpoint);
  void Failed(size_t endpoint, int64_t now_nanos);

 private:
  struct Entry {
    S3Endpoint endpoint;
    int failures = 0;  // One after the other.
    int64_t avoided_until_nanos = INT64_MIN;
  };

  std::vector<Entry> entries_;
  size_t next_ = 0;
};

}  // namespace aquifer
