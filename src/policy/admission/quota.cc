#include "policy/admission/quota.h"

#include "base/check.h"
#include "base/planted_bug.h"

namespace aquifer {

Quota::Quota(const QuotaOptions& options) : capacity_(options.capacity_bytes) {}

Status Quota::SetTenant(uint16_t tenant, const TenantQuota& quota) {
  if (quota.floor_bytes > quota.ceiling_bytes) {
    return Status(Code::kInvalid, "the tenant's floor is above its ceiling");
  }
  const uint64_t others = floors_ - account(tenant).quota.floor_bytes;
  if (quota.floor_bytes > capacity_ || others > capacity_ - quota.floor_bytes) {
    return Status(Code::kInvalid, "the tenants' floors add up to more than the capacity");
  }
  floors_ = others + quota.floor_bytes;
  MutableAccount(tenant).quota = quota;
  return Status();
}

QuotaTake Quota::CanTake(uint16_t tenant, uint64_t bytes) const {
  const Account& own = account(tenant);
  const uint64_t ceiling = own.quota.ceiling_bytes;
  if (bytes > ceiling || bytes > capacity_) return QuotaTake::kNever;
  if (own.charged > ceiling - bytes) return QuotaTake::kOwnPays;
  if (charged_ > capacity_ - bytes) return QuotaTake::kSomeonePays;
  return QuotaTake::kFits;
}

bool Quota::Charge(uint16_t tenant, uint64_t bytes) {
  if (CanTake(tenant, bytes) != QuotaTake::kFits) return false;
  ChargeAnyway(tenant, bytes);
  return true;
}

void Quota::ChargeAnyway(uint16_t tenant, uint64_t bytes) {
  if (bytes == 0) return;
  MutableAccount(tenant).charged += bytes;
  charged_ += bytes;
}

void Quota::Uncharge(uint16_t tenant, uint64_t bytes) {
  if (bytes == 0) return;
  Account& own = MutableAccount(tenant);
  AQ_CHECK(own.charged >= bytes);
  own.charged -= bytes;
  charged_ -= bytes;
}

uint64_t Quota::OverFloor(uint16_t tenant) const {
  const Account& own = account(tenant);
  if (Planted(PlantedBug::kFloorIgnored)) return own.charged;
  return own.charged > own.quota.floor_bytes ? own.charged - own.quota.floor_bytes : 0;
}

uint64_t Quota::charged(uint16_t tenant) const { return account(tenant).charged; }

TenantQuota Quota::quota(uint16_t tenant) const { return account(tenant).quota; }

const Quota::Account& Quota::account(uint16_t tenant) const {
  static const Account none;
  return tenant < accounts_.size() ? accounts_[tenant] : none;
}

Quota::Account& Quota::MutableAccount(uint16_t tenant) {
  if (tenant >= accounts_.size()) accounts_.resize(size_t{tenant} + 1);
  return accounts_[tenant];
}

}  // namespace aquifer
