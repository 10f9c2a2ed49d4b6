// How the bytes of one tier are divided between tenants. Every tenant has a floor, which nobody
// else's needs push it below, and a ceiling, which it never passes. What nobody's floor covers goes
// to whoever uses it, and comes back from whoever is furthest over a fair share.
//
// The caps are hard to the byte: a charge that would pass the tier's capacity or the tenant's
// ceiling is refused, and who must give something up first is said by WhoPays(). Floors are
// promises against others, not reservations: an idle tenant's floor is lent out, and is taken back
// from those above theirs when it returns.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
  kSomeonePays,  // The tier is full: ask WhoPays().
  kNever,        // More than the ceiling or the capacity, whatever is given up.
};

// What a tenant would give up next.
struct QuotaOffer {
  uint16_t tenant = 0;
  uint64_t bytes = 0;  // Of that block (or extent); 0: it has nothing to give.
  double value = 0;    // EvictionOrder::Value().
};

enum class PayRule : uint8_t {
  kFurthestOverShare,  // A tenant that floods the tier pays for the flood.
  kLeastValuable,      // The best hit rate over all, at the expense of quiet tenants.
};

struct QuotaOptions {
  uint64_t capacity_bytes = 0;
  PayRule rule = PayRule::kFurthestOverShare;
};

class Quota {
 public:
  explicit Quota(const QuotaOptions& options);

  // Tenants not set have no floor and no ceiling. kInvalid: the floors would add up to more than
  // the capacity, or a floor is above its ceiling. A ceiling below what is charged already refuses
  // further charges and takes nothing back by itself; Excess() says how much to give up.
  Status SetTenant(uint16_t tenant, const TenantQuota& quota);
  // The tier grew or shrank. kInvalid: the floors no longer fit.
  Status SetCapacity(uint64_t capacity_bytes);

  QuotaTake CanTake(uint16_t tenant, uint64_t bytes) const;

  // False, and nothing is charged, unless CanTake() says kFits.
  [[nodiscard]] bool Charge(uint16_t tenant, uint64_t bytes);
  void Uncharge(uint16_t tenant, uint64_t bytes);

  // Which offer to take so that `tenant` can have `bytes` more, as an index into `offers`; none
  // when no allowed offer is left, and then the answer to the tenant is "no space". One offer a
  // tenant. Ask again after taking it, until CanTake() says kFits.
  std::optional<size_t> WhoPays(uint16_t tenant, uint64_t bytes,
                                std::span<const QuotaOffer> offers) const;

  // The most that a tenant may be made to give up for another's sake.
  uint64_t OverFloor(uint16_t tenant) const;
  // What a tenant must give up to be within its ceiling again; all together, to be within the cap.
  uint64_t Excess(uint16_t tenant) const;
  uint64_t Excess() const { return charged_ > capacity_ ? charged_ - capacity_ : 0; }

  // A floor, plus an even part of what no floor covers among the tenants that use the tier.
  uint64_t FairShare(uint16_t tenant) const;

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

  uint64_t capacity_;
  const PayRule rule_;
  uint64_t charged_ = 0;
  uint64_t floors_ = 0;
  uint32_t active_ = 0;            // Tenants with a charge.
  std::vector<Account> accounts_;  // By tenant; grows to the highest one seen.
};

}  // namespace aquifer
