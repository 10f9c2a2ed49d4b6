// The tenants' data keys on simulated time: one key store that all nodes see, and for each life of
// a node what tenant/key_service.h does with threads. The keys themselves, their wrapping and their
// marks are the product's (tenant/data_keys.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "block/key_source.h"
#include "sim/world/scheduler.h"
#include "tenant/keys/data_keys.h"
#include "tenant/keys/key_store.h"
#include "tenant/keys/key_wrapper.h"
#include "testing/seeded_random.h"

namespace aquifer {

// The key store. It outlives the nodes.
class SimulatedKeyStore final : public KeyStore {
 public:
  explicit SimulatedKeyStore(uint64_t seed);

  void SetReachable(bool on) { reachable_ = on; }
  KeyWrapper* wrapper() { return wrapper_.get(); }

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Read(const std::string& name) override;
  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override;
  Status Delete(const std::string& name) override;
  Result<std::vector<std::string>> List() override;

 private:
  SeededRandom random_;
  std::unique_ptr<KeyWrapper> wrapper_;
  std::map<std::string, std::vector<std::byte>> values_;
  bool reachable_ = true;
};

class SimulatedKeys final : public KeySource {
 public:
  // All outlive it. What the party has scheduled is gone when the node has died.
  SimulatedKeys(SimulatedKeyStore* store, Scheduler* scheduler, Scheduler::Party party,
                Random* random, uint64_t seed);

  // Somebody else destroyed this tenant's key: what it sealed is to be dropped, and then Release()
  // called.
  std::function<void(const TenantId&)> on_forgotten;

  void Start();
  // Destroys the key. Ok: what it sealed is to be dropped, and then Release() called.
  Status Destroy(const TenantId& tenant) { return keys_.Destroy(tenant); }
  void Release(const TenantId& tenant);

  // It is in memory.
  bool Has(const TenantId& tenant) const { return keys_.Known(tenant) != nullptr; }

  SharedDataKey KeyOf(const TenantId& tenant) override;
  SharedDataKey Known(const TenantId& tenant) override;
  std::optional<std::vector<DataKeyId>> Generations(const TenantId& tenant) override;
  bool Missing(const TenantId& tenant) override {
    return keys_.Known(tenant) == nullptr && failed_.contains(tenant);
  }
  bool IsDestroyed(const DataKeyId& id) override { return keys_.IsDestroyed(id); }
  std::vector<DataKeyId> Destroyed() override { return keys_.Destroyed(); }

 private:
  void Want(const TenantId& tenant, bool make);
  void Find(const TenantId& tenant);
  void Refresh();
  bool IsAbsent(const TenantId& tenant) const;

  Scheduler* const scheduler_;
  const Scheduler::Party party_;
  SeededRandom random_;
  DataKeys keys_;
  std::map<TenantId, bool> wanted_;     // Asked for; true: to be made where there is none.
  std::set<TenantId> failed_;           // Of those, the ones that could not be had so far.
  std::map<TenantId, int64_t> absent_;  // They have no key; until when.
};

}  // namespace aquifer
