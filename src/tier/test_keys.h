// Tenants' keys for tests.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "block/key_source.h"
#include "testing/seeded_random.h"

namespace aquifer {

// Keys from a seed, made as they are asked for; a test forgets and changes them.
class TestKeys final : public KeySource {
 public:
  SharedDataKey KeyOf(const TenantId& tenant) override {
    SharedDataKey& key = keys_[tenant];
    if (key == nullptr && !forgotten_.contains(tenant)) key = Make();
    return key;
  }
  void Forget(const TenantId& tenant) {
    keys_.erase(tenant);
    forgotten_.insert(tenant);
  }
  // As after the tenant was deleted and came again.
  void Change(const TenantId& tenant) { keys_[tenant] = Make(); }

 private:
  SharedDataKey Make() {
    auto key = std::make_shared<DataKey>();
    random_.Fill(key->id);
    random_.Fill(key->secret.writable());
    return key;
  }

  SeededRandom random_{5};
  std::map<TenantId, SharedDataKey> keys_;
  std::set<TenantId> forgotten_;
};

}  // namespace aquifer
