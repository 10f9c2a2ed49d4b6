// The addresses of an S3 server, and which of them to ask next. All take turns; one that failed is
// asked less and less often until it answers again. Pure: the caller gives the time. One thread.
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
  std::string host;       // "10.0.0.7:9000"; a default port is left out.
  bool loopback = false;  // Judged by its name.

  std::string Url() const { return (tls ? "https://" : "http://") + host; }
};

// Returns kInvalid, with the correction to make.
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
    int failures = 0;  // In a row.
    int64_t avoided_until_nanos = INT64_MIN;
  };

  std::vector<Entry> entries_;
  size_t next_ = 0;
};

}  // namespace aquifer
