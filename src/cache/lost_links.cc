#include "cache/lost_links.h"

namespace aquifer {

LostLinks::Record& LostLinks::At(const BlockName& name) {
  const auto [record, added] = records_.try_emplace(name);
  if (!added) return record->second;
  by_age_.push_back(name);
  if (records_.size() > max_links_) {
    records_.erase(by_age_.front());
    by_age_.pop_front();
  }
  return record->second;
}

void LostLinks::Want(const BlockName& name) { At(name); }

void LostLinks::OnDropped(const BlockName& name, const LostLink& link, bool has_children) {
  if (!has_children && !records_.contains(name)) return;
  Record& record = At(name);
  record.link = link;
  record.known = true;
  if (link.position == 0) return;
  BlockName parent = name;
  parent.key = link.parent;
  Want(parent);
}

const LostLink* LostLinks::Find(const BlockName& name) const {
  const auto found = records_.find(name);
  if (found == records_.end() || !found->second.known) return nullptr;
  const LostLink& link = found->second.link;
  BlockName parent = name;
  parent.key = link.parent;
  const auto above = records_.find(parent);
  // Stored again elsewhere since: which of the two holds is not known.
  const bool fits = link.position == 0 || above == records_.end() || !above->second.known ||
                    above->second.link.position + 1 == link.position;
  return fits ? &link : nullptr;
}

}  // namespace aquifer
