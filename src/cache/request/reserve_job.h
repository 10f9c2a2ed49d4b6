// Answers for each key of a chain whether the block is there, is being filled by another engine,
// gets a slot, or is refused. Ranks of one engine that reserve the same block get the same slot.
#pragma once

#include <cstddef>

#include "cache/request/cache_job.h"
#include "index/index.h"

namespace aquifer {

class ReserveJob final : public RequestJob<ReserveRequest, 2> {
 public:
  explicit ReserveJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void Cancel() override;

 private:
  ReserveOp ReserveOne(size_t i);
  NewBlock BlockToFill(size_t i) const;
  ReserveOp Refused(Refusal why);

  size_t cursor_ = 0;
};

}  // namespace aquifer
