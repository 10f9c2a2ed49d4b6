#include "cache/transfer/unwritten.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace aquifer {

void Unwritten::Remove(uint16_t tenant, uint64_t sequence) {
  const auto own = of_.find(tenant);
  if (own == of_.end()) return;
  own->second.erase(sequence);
  if (own->second.empty()) of_.erase(own);
}

uint64_t Unwritten::Oldest(uint16_t of) const {
  if (of != FlushWaits::kEveryone) {
    const auto own = of_.find(of);
    return own == of_.end() ? next_ : *own->second.begin();
  }
  uint64_t oldest = next_;
  for (const auto& [tenant, own] : of_) oldest = std::min(oldest, *own.begin());
  return oldest;
}

uint64_t Unwritten::NextFlushed(const FlushWaits& flushes, uint64_t sequence,
                                const std::function<bool(uint64_t)>& queued) const {
  uint64_t first = 0;
  for (const uint16_t of : flushes.Whose()) {
    const auto own = of_.find(of);
    if (own == of_.end()) continue;
    auto next = own->second.upper_bound(sequence);
    while (next != own->second.end() && !queued(*next)) ++next;
    if (next == own->second.end() || *next > flushes.LastOf(of)) continue;
    if (first == 0 || *next < first) first = *next;
  }
  return first;
}

void Losses::AddRefused(uint16_t tenant) { ++refused_[tenant]; }

void Losses::AddClient(uint32_t client, uint16_t tenant, uint64_t dropped) {
  std::ignore = TellNew(client, tenant, dropped);
}

uint64_t Losses::TellNew(uint32_t client, uint16_t tenant, uint64_t dropped) {
  const auto refused = refused_.find(tenant);
  const uint64_t lost = dropped + (refused == refused_.end() ? 0 : refused->second);
  return lost - std::exchange(told_[client], lost);
}

}  // namespace aquifer
