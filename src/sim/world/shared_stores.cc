#include "sim/world/shared_stores.h"

#include <algorithm>

namespace aquifer {

bool StoresPlan::has_lasting() const {
  return std::any_of(stores.begin(), stores.end(),
                     [](const StorePlan& store) { return store.counts(); });
}

bool StoresPlan::listings_lag() const {
  return std::any_of(stores.begin(), stores.end(),
                     [](const StorePlan& store) { return store.store.listing_lag_nanos > 0; });
}

SharedStores::SharedStores(const StoresPlan& plan, Scheduler* scheduler)
    : plan_(plan), scheduler_(scheduler), keys_(plan.seed) {
  for (const StorePlan& store : plan.stores) {
    stores_.push_back(std::make_unique<SimulatedStore>(store.store, scheduler));
  }
}

void SharedStores::Heal() {
  keys_.SetReachable(true);
  for (const auto& store : stores_) store->Heal();
}

StoreLinks::StoreLinks(SharedStores* shared, Scheduler::Party party, Clock* clock, Random* random,
                       uint64_t seed)
    : shared_(shared),
      keys_(shared->plan().sealed ? std::make_unique<SimulatedKeys>(
                                        shared->keys(), shared->scheduler(), party, random, seed)
                                  : nullptr),
      packer_({.keys = keys_.get()}, clock, random) {
  for (size_t i = 0; i < shared->size(); ++i) {
    connections_.push_back(shared->store(i)->Connect(party, clock));
  }
  if (keys_ != nullptr) keys_->Start();
}

std::vector<DurableTierSource> StoreLinks::Sources() {
  std::vector<DurableTierSource> sources;
  for (size_t i = 0; i < connections_.size(); ++i) {
    const StorePlan& plan = shared_->plan().stores[i];
    DurableTierSource source;
    source.name = plan.store.name;
    source.make = [this, i, options = plan.tier](const DurableTierParts& parts) {
      return NewDurableTier(options, connections_[i].get(), &packer_, parts.listener, parts.workers,
                            parts.owner, parts.clock, parts.random);
    };
    source.writes = plan.writes;
    source.lasting = plan.lasting;
    source.write_bytes_per_second = plan.write_bytes_per_second;
    sources.push_back(std::move(source));
  }
  return sources;
}

void StoreLinks::Abandon() {
  for (const auto& connection : connections_) connection->Abandon();
}

}  // namespace aquifer
