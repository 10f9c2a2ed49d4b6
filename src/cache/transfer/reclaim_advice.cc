#include "cache/transfer/reclaim_advice.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

namespace aquifer {

class ReclaimAdvice::Choice final : public ReclaimChoice {
 public:
  explicit Choice(const ReclaimAdvice* advice) : advice_(advice) {}

  void Add(std::span<const BlockId> ids) override {
    if (advice_->tenants_unknown()) unknown_ = true;
    const Residency& residency = *advice_->residency_;
    for (const BlockId& id : ids) {
      const uint32_t number = added_++;
      const BlockRef ref = residency.Find(id);
      if (ref == kNoBlock) continue;
      const uint16_t tenant = residency.at(ref).tenant;
      if (advice_->being_stored(residency.NameOf(ref))) {
        candidates_.push_back(
            {.tenant = tenant, .value = std::numeric_limits<double>::max(), .number = number});
        continue;
      }
      if (!residency.at(ref).in_tier(kTierNvme)) continue;
      const bool pinned = residency.at(ref).pins != 0;
      if (pinned) pinned_bytes_ += residency.SlotBytesOf(ref);
      bytes_[tenant] += residency.SlotBytesOf(ref);
      candidates_.push_back({.pinned = pinned,
                             .tenant = tenant,
                             .value = residency.NvmeValue(ref),
                             .number = number});
    }
  }

  bool MayReclaim(uint64_t keep_bytes) override {
    uint64_t must_keep = pinned_bytes_;
    for (const auto& [tenant, bytes] : bytes_) {
      const uint64_t over_floor = advice_->ToSpare(tenant);
      if (over_floor >= bytes) continue;
      must_keep += bytes - over_floor;
      at_floor_.insert(tenant);
    }
    return !unknown_ && must_keep <= keep_bytes;
  }

  std::vector<uint32_t> Order() override {
    for (Candidate& candidate : candidates_) {
      candidate.at_floor = at_floor_.contains(candidate.tenant);
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      if (a.pinned != b.pinned) return a.pinned;
      if (a.at_floor != b.at_floor) return a.at_floor;
      if (a.value != b.value) return a.value > b.value;
      return a.number < b.number;
    });
    std::vector<uint32_t> order;
    order.reserve(candidates_.size());
    for (const Candidate& candidate : candidates_) order.push_back(candidate.number);
    return order;
  }

 private:
  struct Candidate {
    bool pinned = false;
    bool at_floor = false;
    uint16_t tenant = 0;
    double value = 0;
    uint32_t number = 0;
  };

  const ReclaimAdvice* const advice_;  // Not touched by Order().
  std::vector<Candidate> candidates_;
  std::map<uint16_t, uint64_t> bytes_;  // By tenant.
  std::set<uint16_t> at_floor_;
  uint64_t pinned_bytes_ = 0;
  uint32_t added_ = 0;
  bool unknown_ = false;
};

std::unique_ptr<ReclaimChoice> ReclaimAdvice::NewChoice() const {
  return std::make_unique<Choice>(this);
}

uint64_t ReclaimAdvice::ToSpare(uint16_t tenant) const {
  const auto leaving = dropping_bytes_.find(tenant);
  const uint64_t bytes = leaving == dropping_bytes_.end() ? 0 : leaving->second;
  return residency_->NvmeOverFloor(tenant) - std::min(bytes, residency_->NvmeOverFloor(tenant));
}

bool ReclaimAdvice::MayDrop(const BlockId& id) {
  const BlockRef ref = residency_->Find(id);
  if (ref == kNoBlock || !residency_->at(ref).in_tier(kTierNvme)) return true;
  const BlockEntry& entry = residency_->at(ref);
  if (entry.pins != 0 && !entry.in_tier(kTierDram)) return false;
  const uint64_t bytes = residency_->SlotBytesOf(ref);
  if (ToSpare(entry.tenant) < bytes) return false;
  const Dropping dropping{.tenant = entry.tenant, .bytes = bytes};
  if (dropping_.try_emplace(id, dropping).second) dropping_bytes_[entry.tenant] += bytes;
  return true;
}

void ReclaimAdvice::OnLost(std::span<const BlockId> ids) {
  for (const BlockId& id : ids) {
    const auto dropping = dropping_.find(id);
    if (dropping == dropping_.end()) continue;
    dropping_bytes_[dropping->second.tenant] -= dropping->second.bytes;
    dropping_.erase(dropping);
  }
}

}  // namespace aquifer
