#include "cache/core_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cache/transfer/write_down.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

constexpr uint64_t kMinDriveBytes = uint64_t{1} << 20;
// Entries of the index and of the two eviction orders are committed as they are used, their table
// of 7 bytes a block at the start. Room for blocks of 32 KiB there is always, for smaller ones as
// long as what might be committed is an eighth of the pool; past that the coldest blocks go.
constexpr uint64_t kBytesPerIndexedBlock = uint64_t{32} << 10;
constexpr uint64_t kIndexBytesPerBlock = 184;
constexpr uint64_t kIndexShareOfPool = 8;

// All that write-down, loads (512, or 32 a drive) and deletions (1024) have under way at once:
// nobody is refused for another's sake.
uint32_t QueuedOps(size_t drives) {
  constexpr size_t kWrites = WriteDown::kMaxInFlightBatches * WriteDown::kMaxBatchOps;
  return static_cast<uint32_t>(kWrites + std::max<size_t>(512, 32 * drives) + 1024);
}

// Larger blocks stay in DRAM: a segment must hold one with room to spare.
uint64_t LargestNvmeBlock(const CacheOptions& options) {
  if (options.nvme_segment_bytes == 0) return kMaxBlockBytes;
  return std::min(kMaxBlockBytes, options.nvme_segment_bytes / 2);
}

}  // namespace

TenantOptions OptionsOf(const std::vector<TenantOptions>& tenants, std::string_view name) {
  for (const TenantOptions& tenant : tenants) {
    if (tenant.name == name) return tenant;
  }
  return TenantOptions{};
}

Status CheckTenants(const std::vector<TenantOptions>& tenants) {
  std::set<std::string_view> names;
  for (const TenantOptions& tenant : tenants) {
    if (!names.insert(tenant.name).second) {
      return Status(Code::kInvalid,
                    fmt::format("tenant {} is there twice: give each once", tenant.name));
    }
    if (tenant.name.empty() || tenant.name.size() > 64) {
      return Status(Code::kInvalid, "a tenant's name is not 1 to 64 bytes long");
    }
    if (tenant.priority < kLeastPriority || tenant.priority > kMostPriority) {
      return Status(Code::kInvalid, "priority of tenant " + tenant.name + " is not -8 to 7");
    }
    if (tenant.ttl_seconds < 0) {
      return Status(Code::kInvalid, "ttl_seconds of tenant " + tenant.name +
                                        " is negative: give 0 for blocks that do not expire");
    }
  }
  return Status();
}

TenantQuota DramQuotaOf(const TenantOptions& tenant) {
  return {.floor_bytes = tenant.dram_floor_bytes, .ceiling_bytes = tenant.dram_ceiling_bytes};
}

TenantQuota NvmeQuotaOf(const TenantOptions& tenant) {
  return {.floor_bytes = tenant.nvme_floor_bytes, .ceiling_bytes = tenant.nvme_ceiling_bytes};
}

Status CheckQuotas(const std::vector<TenantOptions>& tenants, Quota dram, Quota nvme) {
  uint16_t number = 0;
  for (const TenantOptions& tenant : tenants) {
    AQ_RETURN_IF_ERROR(dram.SetTenant(number, DramQuotaOf(tenant)));
    AQ_RETURN_IF_ERROR(nvme.SetTenant(number, NvmeQuotaOf(tenant)));
    ++number;
  }
  return Status();
}

Status CheckOptions(const CoreOptions& options) {
  const CacheOptions& cache = options.cache;
  if (cache.dram_bytes < options.extent_bytes) {
    return Status(Code::kInvalid, fmt::format("dram_bytes is {}: give at least one extent, {}",
                                              cache.dram_bytes, options.extent_bytes));
  }
  if (cache.worker_threads == 0 || cache.worker_threads > kMaxWorkerThreads) {
    return Status(Code::kInvalid, fmt::format("worker_threads is {}: give 1 to {}",
                                              cache.worker_threads, kMaxWorkerThreads));
  }
  if (cache.overdue_nanos <= 0) {
    return Status(Code::kInvalid, "overdue_nanos is not positive: give a time, such as 60 s");
  }
  if (cache.assumed_prefill_ms_per_token < 0) {
    return Status(Code::kInvalid, "assumed_prefill_ms_per_token is negative: give 0 for none");
  }
  if (!cache.nvme_directories.empty() &&
      cache.nvme_bytes < cache.nvme_directories.size() * kMinDriveBytes) {
    return Status(Code::kInvalid,
                  fmt::format("nvme_bytes is {}: give at least {} for each of {} directories",
                              cache.nvme_bytes, kMinDriveBytes, cache.nvme_directories.size()));
  }
  // Two names of one directory are found by its lock.
  std::set<std::string_view> directories;
  for (std::string_view directory : cache.nvme_directories) {
    while (directory.size() > 1 && directory.ends_with('/')) directory.remove_suffix(1);
    if (!directories.insert(directory).second) {
      return Status(Code::kInvalid,
                    fmt::format("nvme_directories has {} twice: give each once", directory));
    }
  }
  if (cache.nvme_segment_bytes % kPageBytes != 0) {
    return Status(Code::kInvalid,
                  "nvme_segment_bytes is not a multiple of 4096: round it, or give 0");
  }
  if (!(cache.nvme_written_part > 0) || cache.nvme_written_part > 1) {
    return Status(Code::kInvalid,
                  "nvme_written_part is not above 0 and at most 1: give 1 for all blocks");
  }
  if (cache.nvme_written_part < 1 && cache.eviction == EvictionPolicy::kLru) {
    return Status(Code::kInvalid,
                  "nvme_written_part needs eviction kLearned: LRU does not know which blocks are "
                  "likely to be asked for again; give 1, or write_bytes_per_second");
  }
  return CheckTenants(cache.tenants);
}

uint32_t BlocksToIndex(const CoreOptions& options) {
  if (options.max_blocks != 0) return options.max_blocks;
  const CacheOptions& cache = options.cache;
  const uint64_t bytes = cache.dram_bytes + (cache.nvme_directories.empty() ? 0 : cache.nvme_bytes);
  const uint64_t affordable = cache.dram_bytes / kIndexShareOfPool / kIndexBytesPerBlock;
  const uint64_t wanted =
      std::max(bytes / kBytesPerIndexedBlock, std::min(bytes / kPageBytes, affordable));
  return static_cast<uint32_t>(std::min<uint64_t>(wanted + 65'536, 1u << 30));
}

// A second's worth at once, so that it is a cap over any time that matters to a drive.
WriteBudgetOptions BudgetOf(const CacheOptions& options) {
  WriteBudgetOptions budget;
  budget.bytes_per_second = options.write_bytes_per_second;
  budget.burst_bytes = std::min(budget.burst_bytes, std::max<uint64_t>(budget.bytes_per_second, 1));
  return budget;
}

WorthOptions WorthOf(const CacheOptions& options) {
  WorthOptions worth;
  if (options.assumed_prefill_ms_per_token > 0) {
    worth.default_prefill_tokens_per_second = 1e3 / options.assumed_prefill_ms_per_token;
  }
  return worth;
}

NvmeTierOptions NvmeOptionsOf(const CoreOptions& options) {
  const CacheOptions& cache = options.cache;
  return {.capacity_bytes = cache.nvme_bytes,
          .segment_bytes = cache.nvme_segment_bytes,
          .sync = cache.nvme_sync,
          .max_queued_ops = QueuedOps(cache.nvme_directories.size()),
          .max_block_bytes = LargestNvmeBlock(cache),
          .detach_nanos = options.detach_nanos};
}

}  // namespace aquifer
