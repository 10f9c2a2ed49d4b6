// Tenants' keys for tests.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

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
  SharedDataKey Known(const TenantId& tenant) override {
    return past_.contains(tenant) && !keys_.contains(tenant) ? nullptr : KeyOf(tenant);
  }
  std::optional<std::vector<DataKeyId>> Generations(const TenantId& tenant) override {
    const auto found = past_.find(tenant);
    std::vector<DataKeyId> all = found == past_.end() ? std::vector<DataKeyId>() : found->second;
    if (const SharedDataKey key = Known(tenant)) {
      all.push_back(key->id);
    } else if (forgotten_.contains(tenant)) {
      return std::nullopt;
    }
    return all;
  }
  bool Missing(const TenantId& tenant) override { return missing_.contains(tenant); }
  bool IsDestroyed(const DataKeyId& id) override { return destroyed_.contains(id); }
  std::vector<DataKeyId> Destroyed() override { return {destroyed_.begin(), destroyed_.end()}; }

  // As after the tenant was deleted, here or elsewhere.
  void Destroy(const TenantId& tenant) {
    const DataKeyId id = KeyOf(tenant)->id;
    past_[tenant].push_back(id);
    destroyed_.insert(id);
    keys_.erase(tenant);
  }
  bool Has(const TenantId& tenant) const { return keys_.contains(tenant); }

  void Forget(const TenantId& tenant) {
    keys_.erase(tenant);
    forgotten_.insert(tenant);
  }
  // As with a master key that does not fit; and with the right one again.
  void Lose(const TenantId& tenant) {
    lost_[tenant] = keys_.extract(tenant).mapped();
    forgotten_.insert(tenant);
    missing_.insert(tenant);
  }
  void Regain(const TenantId& tenant) {
    keys_[tenant] = lost_.extract(tenant).mapped();
    forgotten_.erase(tenant);
    missing_.erase(tenant);
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
  std::set<TenantId> missing_;
  std::map<TenantId, SharedDataKey> lost_;
  std::map<TenantId, std::vector<DataKeyId>> past_;
  std::set<DataKeyId> destroyed_;
};

}  // namespace aquifer
