#include "policy/admission/pin_table.h"

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

size_t PinTable::Expire(int64_t now, std::span<BlockPin> pins) {
  size_t expired = 0;
  while (expired < pins.size() && !endings_.empty()) {
    const auto [until, pin] = *endings_.begin();
    if (until == kPinnedForever || until > now) break;
    Erase(until_.find(pin));
    pins[expired++] = pin;
  }
  return expired;
}

void PinTable::Erase(std::map<BlockPin, int64_t>::iterator found) {
  endings_.erase({found->second, found->first});
  until_.erase(found);
}

}  // namespace aquifer
