// Sessions by name, what callers tell about their future, and how long prefills take them.
#include <algorithm>
#include <utility>

#include "base/planted_bug.h"
#include "base/text/utf8.h"
#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {
namespace {

constexpr size_t kHintSlice = 64;
constexpr size_t kMaxLookedAtBelow = 64;
constexpr size_t kMaxSessionName = 256;

// A name is listed, typed and paged by as text: what is none is not remembered.
bool IsSessionName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxSessionName && IsPrintable(name);
}

}  // namespace

const Core::Session* Core::FindSession(uint16_t tenant, const std::string& name) const {
  const auto own = sessions_.find(tenant);
  if (own == sessions_.end()) return nullptr;
  const auto found = own->second.by_name.find(name);
  return found == own->second.by_name.end() ? nullptr : &found->second;
}

Core::Noted Core::Note(BlockRef ref) const {
  const BlockEntry& entry = residency_->at(ref);
  return {.ref = ref, .tenant = entry.tenant, .key_bits = entry.key.Prefix64()};
}

bool Core::Holds(const Noted& noted) const {
  if (!residency_->index().Exists(noted.ref)) return false;
  const BlockEntry& entry = residency_->at(noted.ref);
  return entry.state == BlockState::kResident && entry.tenant == noted.tenant &&
         entry.key.Prefix64() == noted.key_bits;
}

bool Core::WalkUp(size_t max, BlockName* next, const Visit& visit) const {
  const Index& index = residency_->index();
  for (size_t step = 0; step < max; ++step) {
    const BlockRef ref = index.Find(*next);
    const LostLink* const gone = ref == kNoBlock ? residency_->LinkAbove(*next) : nullptr;
    if (ref == kNoBlock && gone == nullptr) return false;
    const uint32_t position = gone == nullptr ? index.at(ref).position : gone->position;
    const Key key = std::exchange(next->key, gone == nullptr ? index.ParentKey(ref) : gone->parent);
    visit(ref, key, position);
    if (!IsBefore(*next, position)) return false;
  }
  return true;
}

bool Core::IsBefore(const BlockName& above, uint32_t position) const {
  if (position == 0) return false;
  const Index& index = residency_->index();
  const BlockRef ref = index.Find(above);
  if (ref != kNoBlock) return index.at(ref).position < position;
  const LostLink* const gone = residency_->LinkAbove(above);
  return gone == nullptr || gone->position < position;
}

std::optional<bool> Core::HasOtherBelow(const BlockName& name, std::optional<Key> own) const {
  const Index& index = residency_->index();
  BlockRef child = index.FirstChildOf(name);
  for (size_t looked = 0; child != kNoBlock && looked < kMaxLookedAtBelow; ++looked) {
    const BlockEntry& entry = index.at(child);
    child = entry.next_sibling;
    if (entry.state == BlockState::kGone) continue;
    if (!own) own = entry.key;
    if (entry.key != *own) return true;
  }
  if (child != kNoBlock) return std::nullopt;
  for (const Key& key : residency_->DurableBelow(name, 2)) {
    if (!own) own = key;
    if (key != *own) return true;
  }
  return false;
}

bool Core::WalkKeys(size_t max, BlockName* next, std::vector<Key>* keys, bool* whole) const {
  *whole = false;
  return WalkUp(max, next, [&](BlockRef, const Key& key, uint32_t position) {
    keys->push_back(key);
    *whole = position == 0;
  });
}

void Core::RememberSession(const std::string& name, const BlockName& head) {
  if (!IsSessionName(name)) return;
  TenantSessions& own = sessions_[head.tenant];
  const auto [named, fresh] = own.by_name.try_emplace(name);
  own.by_age.erase(named->second.order);
  if (!fresh) ForgetHead(head.tenant, name);
  own.heads.insert(head);
  named->second = {.head = head, .order = next_session_++};
  own.by_age.emplace(named->second.order, name);
  session_count_ += fresh ? 1 : 0;
  residency_->WantLink(head);
  if (session_count_ > options_.max_sessions) ForgetASession();
}

void Core::ForgetHead(uint16_t tenant, const std::string& name) {
  TenantSessions& own = sessions_.at(tenant);
  Session& session = own.by_name.at(name);
  if (!std::exchange(session.deleted, true)) own.heads.erase(own.heads.find(session.head));
}

bool Core::IsSessionHead(const BlockName& name) const {
  const auto own = sessions_.find(name.tenant);
  return own != sessions_.end() && own->second.heads.contains(name);
}

// The oldest of whoever has the most: nobody's sessions push out those of a tenant that has few.
void Core::ForgetASession() {
  const auto most =
      std::max_element(sessions_.begin(), sessions_.end(), [](const auto& a, const auto& b) {
        return a.second.by_name.size() < b.second.by_name.size();
      });
  ForgetOldestOf(&most->second);
}

void Core::ForgetOldestOf(TenantSessions* sessions) {
  const auto oldest = sessions->by_name.find(sessions->by_age.begin()->second);
  const Session& session = oldest->second;
  if (!session.deleted) sessions->heads.erase(sessions->heads.find(session.head));
  sessions->by_name.erase(oldest);
  sessions->by_age.erase(sessions->by_age.begin());
  --session_count_;
}

bool Core::ForgetSessions(uint16_t tenant, size_t max) {
  const auto own = sessions_.find(tenant);
  if (own == sessions_.end()) return false;
  for (; max > 0 && !own->second.by_age.empty(); --max) ForgetOldestOf(&own->second);
  if (!own->second.by_age.empty()) return true;
  sessions_.erase(own);
  return false;
}

void HintJob::Begin(const SessionForecast& forecast, const BlockName& head) {
  priority_ = std::clamp(forecast.priority, kLeastPriority, kMostPriority);
  outlook_ = SessionHint::kNone;
  if (forecast.state == SessionState::kWillContinue) outlook_ = ExpectedIn(forecast.return_seconds);
  if (forecast.state == SessionState::kFinished) outlook_ = SessionHint::kEnded;
  ttl_seconds_ = forecast.ttl_seconds;
  durable_ = forecast.durability == Durability::kDurable && core().durable_ != nullptr;
  walk_ = head;
  shared_ = false;
  below_.reset();
  if (core().durable_ == nullptr || !IsSessionName(forecast.session)) return;
  const bool of_tenant = core().IsDurableTenant(tenant());
  if (durable_ || of_tenant) {
    core().durable_->NameSession(forecast.session, head, /*own_class=*/!of_tenant);
  } else {
    core().durable_->ClaimSession(forecast.session, head);
  }
}

void HintJob::Run() {
  const bool more = core().WalkUp(
      kHintSlice, &walk_, [this](BlockRef ref, const Key& key, uint32_t) { ApplyTo(ref, key); });
  core().eraser_->Pump();
  core().loader_->Pump();
  core().write_down_->Pump();
  if (core().durable_ != nullptr) core().durable_->PumpSoon();
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
  return core().HasOtherBelow(name, below_).value_or(true);
}

void HintJob::Drop() { --core().clients_[client()].hints; }

// A tenant's rule is how long a block may be kept at most: what a caller says only shortens that.
uint32_t HintJob::ExpiryOf(BlockRef ref) const {
  const int64_t rule = core().catalog_.tenant(tenant()).options.ttl_seconds;
  if (rule == 0) return core().UnixIn(ttl_seconds_);
  const uint32_t current = core().residency_->at(ref).expiry_unix_seconds;
  return std::min(core().UnixIn(std::min(rule, ttl_seconds_)), current == 0 ? UINT32_MAX : current);
}

void HintJob::Apply(BlockRef ref) {
  Residency& residency = *core().residency_;
  if (residency.at(ref).state != BlockState::kResident) {
    if (durable_) residency.WantDurable(ref);  // Another rank is still at it: when it is committed.
    return;
  }
  if (durable_) {
    core().durable_->Want(ref);
    core().write_down_->Want(ref);
  }
  if (shared_) return;
  residency.SetForecast(ref, priority_, outlook_);
  if (ttl_seconds_ <= 0 || Planted(PlantedBug::kHintedTtlIgnored)) return;
  const uint32_t expiry = ExpiryOf(ref);
  if (expiry == residency.at(ref).expiry_unix_seconds) return;
  core().ChangeExpiry(ref, expiry);
}

void Core::ChangeExpiry(BlockRef ref, uint32_t unix_seconds) {
  residency_->SetExpiry(ref, unix_seconds);
  // The record on NVMe has the old one, which would count again after a restart.
  if (residency_->at(ref).in_tier(kTierNvme)) write_down_->Renew(ref);
  if (durable_ != nullptr) durable_->OnExpiryChanged(ref);
}

void Core::ReportPrefill(ClientNumber client, const PrefillReport& report) {
  if (!HasLayout(client, report.layout)) return;
  prefill_.Add(PrefillNameOf(client, LayoutOf(client, report.layout)),
               {.tokens = report.tokens,
                .context = report.context_tokens,
                .elapsed_ms = report.milliseconds});
}

}  // namespace aquifer
