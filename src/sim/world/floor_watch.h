// Whether floors hold: nobody else's needs push a tenant below what it is promised. Who a block was
// evicted for cannot be seen from outside. But a tenant that has asked for nothing for a while, and
// holds nothing, has no needs of its own; while no drive fails either, and nothing of it can have
// expired, whatever it loses it loses for others.
//
// So a tenant is looked at again and again while it is quiet, and what it has must not fall below
// its floor, or below what it had where that was less. One thing is excused, as long as it lasts:
// blocks that hang below one which went are of no use any more, and go with it, floor or not.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aquifer {

struct TenantFloors {
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;
};

// What the cache says that a tenant has.
struct TenantHoldings {
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;
  uint64_t orphaned = 0;  // How many it ever lost because one above them went.
};

class FloorWatch {
 public:
  explicit FloorWatch(std::vector<TenantFloors> tenants)
      : floors_(std::move(tenants)), watched_(floors_.size()) {}

  // It has a floor at all.
  bool Guards(uint32_t tenant) const {
    return floors_[tenant].dram_bytes > 0 || floors_[tenant].nvme_bytes > 0;
  }
  // It has been quiet since then. What it began before may end a little later: only after that does
  // it count. Returns what is wrong, or nothing.
  std::string See(uint32_t tenant, int64_t quiet_since_nanos, int64_t now_nanos,
                  const TenantHoldings& has);
  // It may have lost something on its own account.
  void Forget(uint32_t tenant) { watched_[tenant] = {}; }

 private:
  struct Watched {
    int64_t quiet_since_nanos = -1;
    TenantHoldings had;  // The most since then.
  };

  const std::vector<TenantFloors> floors_;
  std::vector<Watched> watched_;  // By tenant.
};

}  // namespace aquifer
