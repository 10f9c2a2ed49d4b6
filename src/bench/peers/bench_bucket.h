// A bucket for the benchmark: versitygw, an S3 server over a directory, started on a free port of
// the loopback and ended again.
#pragma once

#include <memory>
#include <string>

#include "aquifer/status.h"
#include "bench/peers/server_process.h"
#include "store/s3/bucket.h"

namespace aquifer {

class BenchBucket {
 public:
  // In PATH, or where tools/install-peers puts it: build/tools, next to build/release. Empty: it is
  // not there.
  static std::string ServerProgram();

  // Its objects are in a folder of that directory.
  static Result<std::unique_ptr<BenchBucket>> New(const std::string& directory);

  const std::string& url() const { return options_.endpoints.front(); }
  const BucketOptions& options() const { return options_; }

 private:
  BenchBucket(std::unique_ptr<ServerProcess> server, BucketOptions options)
      : server_(std::move(server)), options_(std::move(options)) {}

  const std::unique_ptr<ServerProcess> server_;
  const BucketOptions options_;
};

}  // namespace aquifer
