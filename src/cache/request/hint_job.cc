#include "cache/request/hint_job.h"

#include <algorithm>

#include "base/planted_bug.h"

namespace aquifer {
namespace {

constexpr size_t kHintSlice = 64;

}  // namespace

void HintJob::Begin(const SessionForecast& forecast, const BlockName& head) {
  priority_ = std::clamp(forecast.priority, kLeastPriority, kMostPriority);
  outlook_ = SessionHint::kNone;
  if (forecast.state == SessionState::kWillContinue) outlook_ = ExpectedIn(forecast.return_seconds);
  if (forecast.state == SessionState::kFinished) outlook_ = SessionHint::kEnded;
  ttl_seconds_ = forecast.ttl_seconds;
  durable_ = forecast.durability == Durability::kDurable && cache().durable != nullptr &&
             cache().MayLeaveHost(tenant());
  walk_ = head;
  shared_ = false;
  below_.reset();
  if (cache().durable == nullptr || !IsSessionName(forecast.session)) return;
  const bool of_tenant = cache().IsDurableTenant(tenant());
  if (durable_ || of_tenant) {
    cache().durable->NameSession(forecast.session, head, /*own_class=*/!of_tenant);
  } else {
    cache().durable->ClaimSession(forecast.session, head);
  }
}

void HintJob::Run() {
  const bool more = cache().walk.Up(
      kHintSlice, &walk_, [this](BlockRef ref, const Key& key, uint32_t) { ApplyTo(ref, key); });
  cache().eraser.Pump();
  cache().loader.Pump();
  cache().write_down.Pump();
  if (cache().durable != nullptr) cache().durable->PumpSoon();
  if (more && (durable_ || !shared_)) return RunAgain();
  Drop();
  End(0);
}

// What other chains share is not this session's to speak of; but it is nothing without it.
void HintJob::ApplyTo(BlockRef ref, const Key& key) {
  shared_ = shared_ || IsShared(key);
  below_ = key;
  if (ref != kNoBlock && (durable_ || !shared_)) Apply(ref);
}

bool HintJob::IsShared(const Key& key) const {
  BlockName name = walk_;
  name.key = key;
  return cache().walk.HasOtherBelow(name, below_).value_or(true);
}

void HintJob::Drop() { --cache().clients.at(client()).hints; }

// A tenant's rule is how long a block may be kept at most: what a caller says only shortens that.
uint32_t HintJob::ExpiryOf(BlockRef ref) const {
  const int64_t rule = cache().catalog.tenant(tenant()).options.ttl_seconds;
  if (rule == 0) return cache().UnixIn(ttl_seconds_);
  const uint32_t current = cache().residency.at(ref).expiry_unix_seconds;
  return std::min(cache().UnixIn(std::min(rule, ttl_seconds_)),
                  current == 0 ? UINT32_MAX : current);
}

void HintJob::Apply(BlockRef ref) {
  Residency& residency = cache().residency;
  if (residency.at(ref).state != BlockState::kResident) {
    if (durable_) residency.WantDurable(ref);  // Another rank is still at it: when it is committed.
    return;
  }
  if (durable_) {
    cache().durable->Want(ref);
    cache().write_down.Want(ref);
  }
  if (shared_) return;
  residency.SetForecast(ref, priority_, outlook_);
  if (ttl_seconds_ <= 0 || Planted(PlantedBug::kHintedTtlIgnored)) return;
  const uint32_t expiry = ExpiryOf(ref);
  if (expiry == residency.at(ref).expiry_unix_seconds) return;
  residency.SetExpiry(ref, expiry);
  // The record on NVMe has the old one, which would count again after a restart.
  if (residency.at(ref).in_tier(kTierNvme)) cache().write_down.Renew(ref);
  if (cache().durable != nullptr) cache().durable->OnExpiryChanged(ref);
}

}  // namespace aquifer
