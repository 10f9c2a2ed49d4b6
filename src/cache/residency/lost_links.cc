#include "cache/residency/lost_links.h"

namespace aquifer {
namespace {

BlockName ParentOf(const BlockName& name, const LostLink& link) {
  BlockName parent = name;
  parent.key = link.parent;
  return parent;
}

}  // namespace

LostLinks::Record& LostLinks::At(const BlockName& name) {
  const auto [record, added] = records_.try_emplace(name);
  if (!added) return record->second;
  by_age_.push_back(name);
  if (records_.size() > max_links_) {
    OnDeleted(by_age_.front());
    records_.erase(by_age_.front());
    by_age_.pop_front();
  }
  return record->second;
}

void LostLinks::Want(const BlockName& name) { At(name); }

std::pair<BlockName, Key> LostLinks::BelowParent(const BlockName& name, const LostLink& link) {
  return {ParentOf(name, link), name.key};
}

void LostLinks::OnDropped(const BlockName& name, const LostLink& link, bool has_children,
                          bool durable) {
  if (!has_children && !records_.contains(name)) return;
  OnDeleted(name);  // It may have hung below another one.
  Record& record = At(name);
  record.link = link;
  record.known = true;
  if (durable) durable_.insert(BelowParent(name, link));
  if (link.position > 0) Want(ParentOf(name, link));
}

void LostLinks::OnDeleted(const BlockName& name) {
  const auto found = records_.find(name);
  if (found != records_.end()) durable_.erase(BelowParent(name, found->second.link));
}

bool LostLinks::ForgetDurable(uint16_t tenant, size_t max) {
  auto next = durable_.lower_bound({{.tenant = tenant}, {}});
  for (; max > 0 && next != durable_.end() && next->first.tenant == tenant; --max) {
    next = durable_.erase(next);
  }
  return next != durable_.end() && next->first.tenant == tenant;
}

std::vector<Key> LostLinks::DurableBelow(const BlockName& name, size_t max) const {
  std::vector<Key> below;
  for (auto next = durable_.lower_bound({name, Key{}});
       below.size() < max && next != durable_.end() && next->first == name; ++next) {
    below.push_back(next->second);
  }
  return below;
}

const LostLink* LostLinks::Find(const BlockName& name) const {
  const auto found = records_.find(name);
  if (found == records_.end() || !found->second.known) return nullptr;
  const LostLink& link = found->second.link;
  const auto above = records_.find(ParentOf(name, link));
  // Stored again elsewhere since: which of the two holds is not known.
  const bool fits = link.position == 0 || above == records_.end() || !above->second.known ||
                    above->second.link.position + 1 == link.position;
  return fits ? &link : nullptr;
}

}  // namespace aquifer
