// How a core is made: the caller's CacheOptions, and bounds that only tests and the simulator
// change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "cache/session/session_ends.h"
#include "policy/admission/quota.h"
#include "policy/admission/write_budget.h"
#include "policy/cost/worth.h"
#include "tier/nvme/nvme_tier.h"

namespace aquifer {

struct CoreOptions {
  CacheOptions cache;
  uint64_t extent_bytes = uint64_t{64} << 20;
  uint32_t ready_extents = UINT32_MAX;  // Fault the whole pool in, in the background.
  uint32_t paced_by_cores = 0;          // As in DramPoolOptions.
  uint32_t max_blocks = 0;              // 0: from the capacities.
  uint32_t max_requests_per_client = 1024;
  uint32_t max_hints_per_client = 1024;
  uint32_t max_leases_per_client = 1 << 20;
  uint32_t max_sessions = 100'000;
  SessionEndsBounds session_ends{};
  uint32_t max_layouts_per_tenant = 256;
  // Deletions that are remembered for drives that have not been read.
  uint32_t max_deletions_remembered = 1 << 17;
  uint32_t max_deletions_remembered_per_tenant = 1 << 15;
  int64_t tick_nanos = 50'000'000;
  int64_t idle_tick_nanos = 500'000'000;  // While nobody asks for anything, and nothing waits.
  int64_t reopen_nanos = 1'000'000'000;   // How often a drive that would not open is tried again.
  // Drives that have not opened by then come later: the cache starts without them.
  int64_t open_wait_nanos = 5'000'000'000;
  // A drive that has been out of service for so long is detached: its blocks leave the index.
  int64_t detach_nanos = 60'000'000'000;
};

// kInvalid says what to change.
Status CheckOptions(const CoreOptions& options);
Status CheckTenants(const std::vector<TenantOptions>& tenants);
// Returns ok if the tenants' quotas fit beside each other.
Status CheckQuotas(const std::vector<TenantOptions>& tenants, Quota dram, Quota nvme);
TenantQuota DramQuotaOf(const TenantOptions& tenant);
TenantQuota NvmeQuotaOf(const TenantOptions& tenant);
// The options of the tenant of that name; the defaults where it is not among them.
TenantOptions OptionsOf(const std::vector<TenantOptions>& tenants, std::string_view name);

// What the parts are made with.
uint32_t BlocksToIndex(const CoreOptions& options);
WriteBudgetOptions BudgetOf(const CacheOptions& options);
WorthOptions WorthOf(const CacheOptions& options);
NvmeTierOptions NvmeOptionsOf(const CoreOptions& options);

}  // namespace aquifer
