#include "policy/quota.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace aquifer {

Quota::Quota(const QuotaOptions& options)
    : capacity_(options.capacity_bytes), rule_(options.rule) {}

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

Status Quota::SetCapacity(uint64_t capacity_bytes) {
  if (floors_ > capacity_bytes) {
    return Status(Code::kInvalid, "the tenants' floors add up to more than the capacity");
  }
  capacity_ = capacity_bytes;
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
  if (bytes == 0) return true;
  Account& own = MutableAccount(tenant);
  if (own.charged == 0) ++active_;
  own.charged += bytes;
  charged_ += bytes;
  return true;
}

void Quota::Uncharge(uint16_t tenant, uint64_t bytes) {
  if (bytes == 0) return;
  Account& own = MutableAccount(tenant);
  AQ_CHECK(own.charged >= bytes);
  own.charged -= bytes;
  charged_ -= bytes;
  if (own.charged == 0) --active_;
}

std::optional<size_t> Quota::WhoPays(uint16_t tenant, uint64_t bytes,
                                     std::span<const QuotaOffer> offers) const {
  const QuotaTake take = CanTake(tenant, bytes);
  if (take == QuotaTake::kFits || take == QuotaTake::kNever) return std::nullopt;

  // A tenant that only claims its floor gives up its own things last.
  const bool within_floor =
      bytes <= quota(tenant).floor_bytes && charged(tenant) <= quota(tenant).floor_bytes - bytes;
  // In doubles: a share is a judgement, not an account.
  const auto over_share = [&](const QuotaOffer& offer) {
    if (offer.tenant == tenant && within_floor) return -std::numeric_limits<double>::infinity();
    const uint64_t wanted = charged(offer.tenant) + (offer.tenant == tenant ? bytes : 0);
    return static_cast<double>(wanted) - static_cast<double>(FairShare(offer.tenant));
  };
  const auto pays_before = [&](const QuotaOffer& a, const QuotaOffer& b) {
    const double over_a = over_share(a);
    const double over_b = over_share(b);
    const bool by_share = rule_ == PayRule::kFurthestOverShare || within_floor;
    if (by_share && over_a != over_b) return over_a > over_b;
    if (a.value != b.value) return a.value < b.value;
    return a.tenant < b.tenant;
  };

  std::optional<size_t> best;
  for (size_t i = 0; i < offers.size(); ++i) {
    const QuotaOffer& offer = offers[i];
    if (offer.bytes == 0) continue;
    if (offer.tenant != tenant) {
      if (take == QuotaTake::kOwnPays || offer.bytes > OverFloor(offer.tenant)) continue;
    }
    if (!best.has_value() || pays_before(offer, offers[*best])) best = i;
  }
  return best;
}

uint64_t Quota::OverFloor(uint16_t tenant) const {
  const Account& own = account(tenant);
  return own.charged > own.quota.floor_bytes ? own.charged - own.quota.floor_bytes : 0;
}

uint64_t Quota::Excess(uint16_t tenant) const {
  const Account& own = account(tenant);
  return own.charged > own.quota.ceiling_bytes ? own.charged - own.quota.ceiling_bytes : 0;
}

uint64_t Quota::FairShare(uint16_t tenant) const {
  const Account& own = account(tenant);
  const uint64_t users = active_ + (own.charged == 0 ? 1 : 0);
  return own.quota.floor_bytes + (capacity_ - floors_) / users;
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
