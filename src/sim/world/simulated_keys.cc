#include "sim/world/simulated_keys.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/crypto/secret_key.h"

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kRefreshNanos = 20 * kSecond;
constexpr int64_t kAbsentNanos = 10 * kSecond;
constexpr int64_t kAgainNanos = kSecond;

Status Unreachable() { return Status(Code::kUnavailable, "injected"); }

}  // namespace

// ---- The key store ----

SimulatedKeyStore::SimulatedKeyStore(uint64_t seed) : random_(seed) {
  SecretKey master;
  random_.Fill(master.writable());
  Result<std::unique_ptr<KeyWrapper>> wrapper =
      NewMasterKeyWrapper(std::span(&master, 1), &random_);
  AQ_CHECK(wrapper.ok());
  wrapper_ = *std::move(wrapper);
}

Result<bool> SimulatedKeyStore::Create(const std::string& name, std::span<const std::byte> value) {
  if (!reachable_) return Unreachable();
  return values_.try_emplace(name, value.begin(), value.end()).second;
}

Result<std::vector<std::byte>> SimulatedKeyStore::Read(const std::string& name) {
  if (!reachable_) return Unreachable();
  const auto found = values_.find(name);
  if (found == values_.end()) return Status(Code::kNotFound);
  return found->second;
}

Result<bool> SimulatedKeyStore::Replace(const std::string& name,
                                        std::span<const std::byte> expected,
                                        std::span<const std::byte> value) {
  if (!reachable_) return Unreachable();
  const auto found = values_.find(name);
  if (found == values_.end() || !std::ranges::equal(found->second, expected)) return false;
  found->second.assign(value.begin(), value.end());
  return true;
}

Status SimulatedKeyStore::Delete(const std::string& name) {
  if (!reachable_) return Unreachable();
  values_.erase(name);
  return Status();
}

Result<std::vector<std::string>> SimulatedKeyStore::List() {
  if (!reachable_) return Unreachable();
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) names.push_back(name);
  return names;
}

// ---- A node's keys ----

SimulatedKeys::SimulatedKeys(SimulatedKeyStore* store, Scheduler* scheduler, Scheduler::Party party,
                             Random* random, uint64_t seed)
    : scheduler_(scheduler), party_(party), random_(seed), keys_(store, store->wrapper(), random) {}

void SimulatedKeys::Start() {
  [[maybe_unused]] const Status read = keys_.ReadMarks();
  scheduler_->At(scheduler_->now() + kRefreshNanos, party_, [this] { Refresh(); });
}

void SimulatedKeys::Release(const TenantId& tenant) {
  keys_.Release(tenant);
  absent_.erase(tenant);  // Another node may have made one meanwhile.
}

SharedDataKey SimulatedKeys::KeyOf(const TenantId& tenant) {
  if (SharedDataKey known = keys_.Known(tenant)) return known;
  Want(tenant, true);
  return nullptr;
}

SharedDataKey SimulatedKeys::Known(const TenantId& tenant) {
  if (SharedDataKey known = keys_.Known(tenant)) return known;
  if (!IsAbsent(tenant)) Want(tenant, false);
  return nullptr;
}

std::optional<std::vector<DataKeyId>> SimulatedKeys::Generations(const TenantId& tenant) {
  std::vector<DataKeyId> all = keys_.Past(tenant);
  if (const SharedDataKey known = Known(tenant)) {
    all.push_back(known->id);
    return all;
  }
  if (keys_.held(tenant) || IsAbsent(tenant)) return all;
  return std::nullopt;
}

bool SimulatedKeys::IsAbsent(const TenantId& tenant) const {
  const auto absent = absent_.find(tenant);
  return absent != absent_.end() && scheduler_->now() < absent->second;
}

void SimulatedKeys::Want(const TenantId& tenant, bool make) {
  if (keys_.held(tenant)) return;  // The caller asks again.
  const auto [wanted, fresh] = wanted_.try_emplace(tenant, make);
  wanted->second = wanted->second || make;
  if (!fresh) return;
  const auto nanos = static_cast<int64_t>(random_.Below(50 * kMilli));
  scheduler_->At(scheduler_->now() + nanos, party_, [this, tenant] { Find(tenant); });
}

void SimulatedKeys::Find(const TenantId& tenant) {
  const bool make = wanted_.at(tenant);
  const Status status = (make ? keys_.GetOrMake(tenant) : keys_.Get(tenant)).status();
  if (status.code() == Code::kUnavailable || status.code() == Code::kBusy) {
    scheduler_->At(scheduler_->now() + kAgainNanos, party_, [this, tenant] { Find(tenant); });
    return;
  }
  wanted_.erase(tenant);
  if (status.code() == Code::kNotFound) {
    absent_[tenant] = scheduler_->now() + kAbsentNanos;
  } else {
    absent_.erase(tenant);
  }
}

void SimulatedKeys::Refresh() {
  const DataKeys::Refreshed refreshed = keys_.Refresh();
  [[maybe_unused]] const Status read = keys_.ReadMarks();
  scheduler_->At(scheduler_->now() + kRefreshNanos, party_, [this] { Refresh(); });
  for (const TenantId& tenant : refreshed.forgotten) {
    if (on_forgotten) {
      on_forgotten(tenant);
    } else {
      Release(tenant);
    }
  }
}

}  // namespace aquifer
