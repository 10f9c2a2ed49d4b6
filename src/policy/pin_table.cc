#include "policy/pin_table.h"

namespace aquifer {

PinTable::PinTable(const PinTableOptions& options) : options_(options) {}

PinTable::Added PinTable::Add(const BlockPin& pin, int64_t until) {
  const auto found = until_.find(pin);
  if (found != until_.end()) {
    endings_.erase({found->second, pin});
    endings_.insert({until, pin});
    found->second = until;
    return Added::kKnown;
  }
  if (until_.size() >= options_.max_pins) return Added::kFull;
  until_.emplace(pin, until);
  endings_.insert({until, pin});
  owned_.insert({pin.owner, pin.ref});
  return Added::kNew;
}

bool PinTable::Remove(const BlockPin& pin) {
  const auto found = until_.find(pin);
  if (found == until_.end()) return false;
  Erase(found);
  return true;
}

size_t PinTable::RemoveAll(uint32_t ref) {
  size_t removed = 0;
  for (auto it = until_.lower_bound({ref, 0}); it != until_.end() && it->first.ref == ref;) {
    Erase(it++);
    ++removed;
  }
  return removed;
}

size_t PinTable::RemoveOwner(uint64_t owner, std::span<BlockPin> pins) {
  size_t removed = 0;
  auto it = owned_.lower_bound({owner, 0});
  while (it != owned_.end() && it->owner == owner && removed < pins.size()) {
    const BlockPin pin{it->ref, owner};
    ++it;
    Erase(until_.find(pin));
    pins[removed++] = pin;
  }
  return removed;
}

size_t PinTable::Expire(int64_t now, std::span<BlockPin> pins) {
  size_t expired = 0;
  while (expired < pins.size() && NextExpiry() != kPinnedForever && NextExpiry() <= now) {
    const BlockPin pin = endings_.begin()->pin;
    Erase(until_.find(pin));
    pins[expired++] = pin;
  }
  return expired;
}

int64_t PinTable::NextExpiry() const {
  return endings_.empty() ? kPinnedForever : endings_.begin()->until;
}

void PinTable::Erase(std::map<BlockPin, int64_t>::iterator found) {
  endings_.erase({found->second, found->first});
  owned_.erase({found->first.owner, found->first.ref});
  until_.erase(found);
}

}  // namespace aquifer
