#include "cache/session/session_table.h"

#include <algorithm>
#include <utility>

#include "base/text/utf8.h"

namespace aquifer {
namespace {

constexpr size_t kMaxSessionName = 256;

}  // namespace

bool IsSessionName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxSessionName && IsPrintable(name);
}

const NamedSession* SessionTable::Find(uint16_t tenant, const std::string& name) const {
  const ByName* const own = SessionsOf(tenant);
  if (own == nullptr) return nullptr;
  const auto found = own->find(name);
  return found == own->end() ? nullptr : &found->second;
}

const SessionTable::ByName* SessionTable::SessionsOf(uint16_t tenant) const {
  const auto own = tenants_.find(tenant);
  return own == tenants_.end() ? nullptr : &own->second.by_name;
}

void SessionTable::Remember(const std::string& name, const BlockName& head) {
  if (!IsSessionName(name)) return;
  Tenant& own = tenants_[head.tenant];
  const auto [named, fresh] = own.by_name.try_emplace(name);
  own.by_age.erase(named->second.order);
  if (!fresh) ForgetHead(head.tenant, name);
  own.heads.insert(head);
  named->second = {.head = head, .order = next_order_++};
  own.by_age.emplace(named->second.order, name);
  count_ += fresh ? 1 : 0;
  residency_->WantLink(head);
  if (count_ > max_sessions_) ForgetOne();
}

void SessionTable::ForgetHead(uint16_t tenant, const std::string& name) {
  Tenant& own = tenants_.at(tenant);
  NamedSession& session = own.by_name.at(name);
  if (!std::exchange(session.deleted, true)) own.heads.erase(own.heads.find(session.head));
}

bool SessionTable::IsHead(const BlockName& name) const {
  const auto own = tenants_.find(name.tenant);
  return own != tenants_.end() && own->second.heads.contains(name);
}

// No tenant's sessions push out those of a tenant that has few.
void SessionTable::ForgetOne() {
  const auto most = std::ranges::max_element(
      tenants_, {}, [](const auto& tenant) { return tenant.second.by_name.size(); });
  ForgetOldestOf(&most->second);
}

void SessionTable::ForgetOldestOf(Tenant* tenant) {
  const auto oldest = tenant->by_name.find(tenant->by_age.begin()->second);
  const NamedSession& session = oldest->second;
  if (!session.deleted) tenant->heads.erase(tenant->heads.find(session.head));
  tenant->by_name.erase(oldest);
  tenant->by_age.erase(tenant->by_age.begin());
  --count_;
}

bool SessionTable::ForgetSome(uint16_t tenant, size_t max) {
  const auto own = tenants_.find(tenant);
  if (own == tenants_.end()) return false;
  for (; max > 0 && !own->second.by_age.empty(); --max) ForgetOldestOf(&own->second);
  if (!own->second.by_age.empty()) return true;
  tenants_.erase(own);
  return false;
}

}  // namespace aquifer
