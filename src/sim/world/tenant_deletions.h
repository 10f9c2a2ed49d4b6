// A node's part in the deletion of tenants: an administrator destroys a tenant's data key on one
// node, and every node that hears of it drops what the key has sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "aquifer/cache.h"
#include "cache/core.h"
#include "sim/world/node.h"
#include "sim/world/truth.h"

namespace aquifer {

class TenantDeletions final : private ClientSink {
 public:
  TenantDeletions(SimulatedNode* node, Truth* truth) : node_(node), truth_(truth) {}

  // The node was started: what was destroyed before is not to be seen in this life.
  void OnStart();
  void OnDeath() { drops_.clear(); }
  // By an administrator, here. The node is ready. `moment`: when, or 0: nothing is promised of it.
  // False: the key store did not take it.
  bool Destroy(uint32_t tenant, uint64_t moment);
  // A node that never had the key in memory does not hear that it is gone.
  bool Hears(uint32_t tenant) const { return !node_->alive() || node_->keys()->Has(IdOf(tenant)); }
  // A key was destroyed on another node at that moment.
  void OnDestroyed(uint32_t tenant, uint64_t moment) { destroyed_[tenant] = moment; }
  // By now the node must have dropped it.
  void OnKeyOverdue(uint32_t tenant, uint64_t moment);

 private:
  struct Drop {
    uint32_t tenant = 0;
    ClientNumber client = 0;
    EvictRequest evict;
  };
  void OnProgress(Request* request, size_t completed, bool done) override;
  void DropAll(uint32_t tenant);
  void End(uint64_t number);
  TenantId IdOf(uint32_t tenant) const;

  SimulatedNode* const node_;
  Truth* const truth_;
  std::map<uint32_t, uint64_t> destroyed_;  // By tenant: the moment of the last time.
  std::map<uint64_t, std::unique_ptr<Drop>> drops_;
  uint64_t next_drop_ = 1;
};

}  // namespace aquifer
