// What lies outside of all simulated hosts and is shared by them: the stores, and the store of the
// tenants' keys. And what one life of a node has of it: connections, keys in memory, durable tiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "cache/environment.h"
#include "sim/world/scheduler.h"
#include "sim/world/simulated_keys.h"
#include "sim/world/simulated_store.h"
#include "tier/durable/durable_tier.h"
#include "tier/packing/packer.h"

namespace aquifer {

struct StorePlan {
  SimulatedStoreOptions store;
  DurableTierOptions tier;
  DurableWrites writes = DurableWrites::kDurable;
  bool lasting = true;
  uint64_t write_bytes_per_second = 0;

  // What is written to it is durable.
  bool counts() const { return lasting && writes != DurableWrites::kNothing; }
};

struct StoresPlan {
  std::vector<StorePlan> stores;  // None: the nodes have no durable tier.
  bool sealed = false;            // Tenants have data keys.
  uint64_t seed = 1;

  bool has_lasting() const;
  bool listings_lag() const;
};

class SharedStores {
 public:
  SharedStores(const StoresPlan& plan, Scheduler* scheduler);

  const StoresPlan& plan() const { return plan_; }
  size_t size() const { return stores_.size(); }
  SimulatedStore* store(size_t store) { return stores_[store].get(); }
  SimulatedKeyStore* keys() { return &keys_; }
  Scheduler* scheduler() { return scheduler_; }
  // Ends every fault that lasts.
  void Heal();

 private:
  const StoresPlan plan_;
  Scheduler* const scheduler_;
  SimulatedKeyStore keys_;
  std::vector<std::unique_ptr<SimulatedStore>> stores_;
};

class StoreLinks {
 public:
  // All outlive it. What the party has scheduled is gone when the node has died.
  StoreLinks(SharedStores* shared, Scheduler::Party party, Clock* clock, Random* random,
             uint64_t seed);

  std::vector<DurableTierSource> Sources();
  Packer* packer() { return &packer_; }
  SimulatedKeys* keys() { return keys_.get(); }  // Null: nothing is sealed.

  // The node dies: first this, then its core goes, then the connections.
  void Abandon();
  void Close() { connections_.clear(); }

 private:
  SharedStores* const shared_;
  const std::unique_ptr<SimulatedKeys> keys_;
  Packer packer_;
  std::vector<std::unique_ptr<SimulatedStore::Connection>> connections_;
};

}  // namespace aquifer
