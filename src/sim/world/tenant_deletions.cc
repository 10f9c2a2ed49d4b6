#include "sim/world/tenant_deletions.h"

#include <algorithm>
#include <utility>

#include "base/request_progress.h"

namespace aquifer {

TenantId TenantDeletions::IdOf(uint32_t tenant) const {
  return TenantIdOf(node_->options().tenants[tenant].name);
}

void TenantDeletions::OnStart() {
  for (const auto& [tenant, moment] : destroyed_) {
    truth_->KeyIsGone(tenant, moment, node_->number());
  }
  if (node_->keys() == nullptr) return;
  node_->keys()->on_forgotten = [this](const TenantId& id) {
    for (uint32_t tenant = 0; tenant < node_->options().tenants.size(); ++tenant) {
      if (IdOf(tenant) == id) return DropAll(tenant);
    }
    node_->keys()->Release(id);
  };
}

bool TenantDeletions::Destroy(uint32_t tenant, uint64_t moment) {
  if (!node_->keys()->Destroy(IdOf(tenant)).ok()) return false;
  if (moment != 0) destroyed_[tenant] = moment;
  truth_->KeyDestroyed(tenant);
  DropAll(tenant);
  return true;
}

void TenantDeletions::OnKeyOverdue(uint32_t tenant, uint64_t moment) {
  if (destroyed_[tenant] == moment) truth_->KeyIsGone(tenant, moment, node_->number());
}

void TenantDeletions::DropAll(uint32_t tenant) {
  const uint64_t number = next_drop_++;
  auto drop = std::make_unique<Drop>();
  drop->tenant = tenant;
  drop->evict.everything = true;
  Drop* const at = drop.get();
  drops_[number] = std::move(drop);
  node_->Post([this, at] {
    const Result<ClientNumber> client = node_->core()->Attach(
        {.tenant = node_->options().tenants[at->tenant].name, .engine = {}}, this);
    if (!client.ok()) return truth_->Violate("a deletion of a tenant could not attach");
    at->client = *client;
    RequestProgress::Begin(&at->evict);
    node_->core()->Evict(at->client, &at->evict);
  });
  node_->PostIn(int64_t{60} * 1'000'000'000, [this, number] {
    const auto found = drops_.find(number);
    if (found == drops_.end()) return;
    node_->core()->Cancel(found->second->client, &found->second->evict);
  });
}

void TenantDeletions::OnProgress(Request* request, size_t completed, bool done) {
  RequestProgress::Advance(request, completed, done);
  if (!done) return;
  const auto found = std::find_if(drops_.begin(), drops_.end(), [request](const auto& drop) {
    return &drop.second->evict == request;
  });
  // Not from inside the core.
  if (found != drops_.end()) node_->Post([this, number = found->first] { End(number); });
}

// What could not be dropped cannot be read either.
void TenantDeletions::End(uint64_t number) {
  const auto found = drops_.find(number);
  if (found == drops_.end()) return;
  const std::unique_ptr<Drop> drop = std::move(found->second);
  drops_.erase(found);
  node_->core()->Detach(drop->client, nullptr);
  node_->keys()->Release(IdOf(drop->tenant));
  const auto moment = destroyed_.find(drop->tenant);
  if (moment != destroyed_.end()) {
    truth_->KeyIsGone(drop->tenant, moment->second, node_->number());
  }
}

}  // namespace aquifer
