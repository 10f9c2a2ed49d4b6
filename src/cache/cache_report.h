// What a cache says of itself: to a client by Stats(), and to whoever runs it, for metrics and for
// the administrator.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "cache/core_snapshot.h"
#include "cache/environment.h"
#include "cache/request/cache_context.h"
#include "tier/dram/dram_pool.h"

namespace aquifer {

class CacheReport {
 public:
  CacheReport(const CacheContext* cache, const DramPool* dram, const CacheOptions& options,
              const CacheEnvironment& environment)
      : cache_(*cache), dram_(dram), options_(options), environment_(environment) {}

  // Everything; only `tenant_bytes` is the tenant's.
  CacheStats StatsOfAll(uint16_t tenant) const;
  // What a tenant may know: of itself, and whether a tier works.
  CacheStats StatsOf(uint16_t tenant) const;

  CoreSnapshot Snapshot() const;
  // Up to `max` tenants from number `first` on.
  std::vector<TenantSnapshot> Tenants(size_t first, size_t max) const;
  // Up to `max` sessions of a tenant, in the order of their names, behind `after`.
  std::vector<SessionSnapshot> Sessions(std::string_view tenant, const std::string& after,
                                        size_t max) const;
  // Adds up to `max` keys of the session's chain, deepest first, from `*next` on, which is empty at
  // the start. Returns true if there may be more.
  bool SessionKeys(std::string_view tenant, const std::string& session, size_t max,
                   std::optional<BlockName>* next, std::vector<Key>* keys) const;

 private:
  void AddDurable(bool sees_all, CacheStats* stats) const;
  void AddDurableCounters(CacheStats* stats) const;

  const CacheContext& cache_;
  const DramPool* const dram_;
  const CacheOptions options_;
  const CacheEnvironment environment_;
};

}  // namespace aquifer
