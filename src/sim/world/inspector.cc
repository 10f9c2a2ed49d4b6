#include "sim/world/inspector.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace aquifer {
namespace {

std::string NameOf(TierKind tier) { return tier == TierKind::kDram ? "DRAM" : "NVMe"; }

// What lies at stores is nobody's alone: neither this node's to charge nor to cap.
bool IsShared(const TierStats& tier) { return tier.tier == TierKind::kDurable; }

}  // namespace

std::string FindWrongAccounts(const std::vector<Accounts>& tenants) {
  if (tenants.empty()) return "";
  const CacheStats& all = tenants[0].stats;
  for (size_t tier = 0; tier < all.tiers.size(); ++tier) {
    const TierStats& first = all.tiers[tier];
    if (IsShared(first)) continue;
    if (first.used_bytes > first.capacity_bytes) {
      return fmt::format("{} bytes of {} are used, of {}", first.used_bytes, NameOf(first.tier),
                         first.capacity_bytes);
    }
    uint64_t charged = 0;
    for (size_t tenant = 0; tenant < tenants.size(); ++tenant) {
      const Accounts& own = tenants[tenant];
      const TierStats& stats = own.stats.tiers[tier];
      charged += stats.tenant_bytes;
      const uint64_t ceiling =
          stats.tier == TierKind::kDram ? own.dram_ceiling_bytes : own.nvme_ceiling_bytes;
      if (stats.tenant_bytes > ceiling) {
        return fmt::format("tenant {} is charged {} bytes of {}, over its ceiling of {}", tenant,
                           stats.tenant_bytes, NameOf(stats.tier), ceiling);
      }
      if (stats.tier == TierKind::kDram && own.lent_bytes > stats.tenant_bytes) {
        return fmt::format("tenant {} holds {} bytes of DRAM and is charged only {}", tenant,
                           own.lent_bytes, stats.tenant_bytes);
      }
    }
    if (first.tier == TierKind::kDram && charged != first.used_bytes) {
      return fmt::format("{} bytes of DRAM are used, but {} charged", first.used_bytes, charged);
    }
  }
  if (all.Counter("pool_bytes") > all.tiers[0].capacity_bytes) {
    return fmt::format("the DRAM pool has {} bytes, over its cap", all.Counter("pool_bytes"));
  }
  if (all.Counter("quarantined_bytes") > all.tiers[0].used_bytes) {
    return "more is in quarantine than is used";
  }
  return "";
}

std::string FindDisagreement(const std::vector<Accounts>& tenants) {
  if (tenants.empty() || tenants[0].stats.tiers.size() < 2) return "";
  if (IsShared(tenants[0].stats.tiers[1])) return "";  // There are no drives.
  const CacheStats& all = tenants[0].stats;
  const uint64_t held = all.Counter("nvme_live_blocks");
  if (all.tiers[1].blocks <= held) return "";
  return fmt::format("{} blocks are said to be on NVMe, but the drives hold {}",
                     all.tiers[1].blocks, held);
}

std::string FindLeftovers(const std::vector<Accounts>& tenants) {
  if (std::string wrong = FindWrongAccounts(tenants); !wrong.empty() || tenants.empty()) {
    return wrong;
  }
  const CacheStats& all = tenants[0].stats;
  for (const char* name :
       {"blocks", "quarantined_bytes", "pending_erasures", "blocks_only_in_dram"}) {
    if (all.Counter(name) != 0) return fmt::format("{} is {} at the end", name, all.Counter(name));
  }
  for (size_t tenant = 0; tenant < tenants.size(); ++tenant) {
    for (const TierStats& tier : tenants[tenant].stats.tiers) {
      if (tier.tenant_bytes == 0 || IsShared(tier)) continue;
      return fmt::format("tenant {} is charged {} bytes of {} at the end", tenant,
                         tier.tenant_bytes, NameOf(tier.tier));
    }
  }
  return "";
}

void Inspector::CheckStep() {
  truth_->CheckDeadlines();
  const CacheOptions& options = node_->options();
  if (node_->extents()->outstanding_bytes() > options.dram_bytes) {
    truth_->Violate(fmt::format("extents of {} bytes are out, over the cap of {}",
                                node_->extents()->outstanding_bytes(), options.dram_bytes));
  }
  uint64_t on_drives = 0;
  for (size_t drive = 0; drive < node_->drives(); ++drive) {
    on_drives += node_->media(drive)->used_bytes();
  }
  if (on_drives > options.nvme_bytes) {
    truth_->Violate(fmt::format("files of {} bytes are on the drives, over the cap of {}",
                                on_drives, options.nvme_bytes));
  }
}

std::vector<Accounts> Inspector::TakeAccounts() {
  const std::vector<TenantOptions>& tenants = node_->options().tenants;
  if (life_ != node_->life()) {
    life_ = node_->life();
    clients_.clear();
    for (const TenantOptions& tenant : tenants) {
      const Result<ClientNumber> client =
          node_->core()->Attach({.tenant = tenant.name, .engine = "inspector"}, this);
      if (!client.ok()) truth_->Violate("the inspector could not attach");
      clients_.push_back(client.ok() ? *client : 0);
    }
  }
  std::vector<Accounts> accounts;
  for (uint32_t tenant = 0; tenant < tenants.size(); ++tenant) {
    StatsRequest request;
    node_->core()->Stats(clients_[tenant], &request);
    accounts.push_back({.stats = std::move(request.stats),
                        .lent_bytes = truth_->lent_bytes(tenant, node_->number()),
                        .dram_ceiling_bytes = tenants[tenant].dram_ceiling_bytes,
                        .nvme_ceiling_bytes = tenants[tenant].nvme_ceiling_bytes});
  }
  return accounts;
}

void Inspector::CheckAll() {
  truth_->CheckLoans();
  if (std::string wrong = FindWrongAccounts(TakeAccounts()); !wrong.empty()) {
    truth_->Violate(std::move(wrong));
  }
}

void Inspector::CheckAtRest() {
  CheckAll();
  if (std::string wrong = FindDisagreement(TakeAccounts()); !wrong.empty()) {
    truth_->Violate(std::move(wrong));
  }
}

void Inspector::CheckEmpty() {
  if (std::string wrong = FindLeftovers(TakeAccounts()); !wrong.empty()) {
    truth_->Violate(std::move(wrong));
  }
}

}  // namespace aquifer
