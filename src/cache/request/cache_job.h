// A job of the cache: what all kinds of requests share. Each kind has a file of its own, which says
// what it answers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/request/cache_context.h"
#include "cache/request/job.h"
#include "cache/transfer/presence.h"

namespace aquifer {

class CacheJob : public Job {
 protected:
  CacheJob(CacheContext* cache, size_t kind) : Job(&cache->scheduler, kind), cache_(cache) {}

  CacheContext& cache() const { return *cache_; }
  uint16_t tenant() const { return cache_->clients.at(client()).tenant; }
  ChainNames NamesOf(const ChainSlice& chain) const {
    return {.tenant = cache_->catalog.tenant(tenant()).id,
            .group = chain.group,
            .part = chain.part,
            .keys = chain.keys};
  }

 private:
  CacheContext* const cache_;
};

// A job that answers one kind of request. `number` tells the kinds apart, so that finished jobs are
// found.
template <class R, size_t number>
class RequestJob : public CacheJob {
 public:
  static constexpr size_t kKind = number;

 protected:
  explicit RequestJob(CacheContext* cache) : CacheJob(cache, number) {}
  R& asked() const { return static_cast<R&>(*request()); }
};

inline constexpr size_t kJobKinds = 10;  // Hints included, which are the last.

}  // namespace aquifer
