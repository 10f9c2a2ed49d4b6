// Answers a commit: adds the heads that a rank has written to their blocks, and publishes each
// block of which every head is there.
#pragma once

#include <cstddef>

#include "cache/request/cache_job.h"

namespace aquifer {

class CommitJob final : public RequestJob<CommitRequest, 3> {
 public:
  explicit CommitJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void Cancel() override {}  // It never waits.

 private:
  void CommitOne(CommitOp* op);

  size_t cursor_ = 0;
};

}  // namespace aquifer
