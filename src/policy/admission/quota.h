// How the bytes of one tier are divided between tenants. Every tenant has a floor, which nobody
// else's needs push it below, and a ceiling, which it never passes. What nobody's floor covers goes
// to whoever uses it.
//
// The caps are hard to the byte: a charge that would pass the tier's capacity or the tenant's
// ceiling is refused. Floors are promises against others, not reservations: an idle tenant's floor
// is lent out, and is taken back from those above theirs (OverFloor) when it returns.
#pragma once

#include <cstdint>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

struct TenantQuota {
  uint64_t floor_bytes = 0;
  uint64_t ceiling_bytes = UINT64_MAX;
};

enum class QuotaTake : uint8_t {
  kFits,         // Charge() will succeed.
  kOwnPays,      // The tenant is at its ceiling: it must give up something of its own.
  kSomeonePays,  // The tier is full.
  kNever,        // More than the ceiling or the capacity, whatever is given up.
};

struct QuotaOptions {
  uint64_t capacity_bytes = 0;
};

class Quota {
 public:
  explicit Quota(const QuotaOptions& options);

  // Tenants not set have no floor and no ceiling. kInvalid: the floors would add up to more than
  // the capacity, or a floor is above its ceiling. A ceiling below what is charged already refuses
  // further charges and takes nothing back by itself.
  Status SetTenant(uint16_t tenant, const TenantQuota& quota);

  QuotaTake CanTake(uint16_t tenant, uint64_t bytes) const;

  // False, and nothing is charged, unless CanTake() says kFits.
  [[nodiscard]] bool Charge(uint16_t tenant, uint64_t bytes);
  void Uncharge(uint16_t tenant, uint64_t bytes);
  // What the tenant already has and does not give back, whatever its ceiling says.
  void ChargeAnyway(uint16_t tenant, uint64_t bytes);

  // The most that a tenant may be made to give up for another's sake.
  uint64_t OverFloor(uint16_t tenant) const;

  uint64_t charged(uint16_t tenant) const;
  uint64_t charged() const { return charged_; }
  uint64_t capacity_bytes() const { return capacity_; }
  TenantQuota quota(uint16_t tenant) const;

 private:
  struct Account {
    TenantQuota quota;
    uint64_t charged = 0;
  };

  const Account& account(uint16_t tenant) const;
  Account& MutableAccount(uint16_t tenant);

  const uint64_t capacity_;
  uint64_t charged_ = 0;
  uint64_t floors_ = 0;
  std::vector<Account> accounts_;  // By tenant; grows to the highest one seen.
};

}  // namespace aquifer
