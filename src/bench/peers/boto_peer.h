// The AWS SDK for Python with as many threads as we have requests in flight: what Python programs
// use. A program of its own, told over a socket what to measure; the time is taken around the
// calls.
#pragma once

#include <cstdint>
#include <memory>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "bench/peers/server_process.h"
#include "store/s3/bucket.h"

namespace aquifer {

class BotoPeer {
 public:
  // kNotFound where tools/install-peers has put no boto3.
  static Result<std::unique_ptr<BotoPeer>> New(const BucketOptions& options);

  // Of the objects "object/0" to "object/<objects - 1>", each once; GB/s.
  Result<double> Measure(bool write, uint64_t object_bytes, size_t objects);

 private:
  BotoPeer(std::unique_ptr<ServerProcess> server, Descriptor socket)
      : server_(std::move(server)), socket_(std::move(socket)) {}

  const std::unique_ptr<ServerProcess> server_;
  const Descriptor socket_;
};

}  // namespace aquifer
