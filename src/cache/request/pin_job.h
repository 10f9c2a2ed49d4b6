// Answers a pin: keeps the blocks of a chain in the cache for so long, or lets them go again.
#pragma once

#include <cstddef>

#include "cache/request/cache_job.h"

namespace aquifer {

class PinJob final : public RequestJob<PinRequest, 5> {
 public:
  explicit PinJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void Cancel() override;

 private:
  size_t cursor_ = 0;
};

}  // namespace aquifer
