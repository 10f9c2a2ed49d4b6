#include "cache/residency/flush_waits.h"

#include <algorithm>
#include <utility>

namespace aquifer {

FlushWaits::Id FlushWaits::Add(uint16_t of, uint64_t sequence, Wait wait) {
  const uint64_t number = next_++;
  ByNumber& waits = for_blocks_[of];
  waits.emplace_hint(waits.end(), number, ForBlocks{sequence, std::move(wait)});
  return {of, number};
}

void FlushWaits::End(const Id& id) {
  if (at_tier_.erase(id.number) > 0) return;
  const auto found = for_blocks_.find(id.of);
  if (found == for_blocks_.end()) return;
  found->second.erase(id.number);
  if (found->second.empty()) for_blocks_.erase(found);
}

std::vector<uint16_t> FlushWaits::Whose() const {
  std::vector<uint16_t> whose;
  for (const auto& [of, waits] : for_blocks_) whose.push_back(of);
  return whose;
}

uint64_t FlushWaits::LastOf(uint16_t of) const {
  const auto found = for_blocks_.find(of);
  return found == for_blocks_.end() ? 0 : SequenceOf(*found->second.rbegin());
}

void FlushWaits::WaitUntil(uint64_t sequence) {
  postponed_number_ = next_;
  postponed_sequence_ = sequence;
}

uint64_t FlushWaits::SequenceOf(const ByNumber::value_type& waiting) const {
  const uint64_t sequence = waiting.second.sequence;
  return waiting.first < postponed_number_ ? std::max(sequence, postponed_sequence_) : sequence;
}

void FlushWaits::MoveToTier(ByNumber* waits, std::vector<uint64_t>* taken) {
  const auto first = waits->begin();
  taken->push_back(first->first);
  at_tier_.emplace(first->first, std::move(first->second.wait));
  waits->erase(first);
}

void FlushWaits::ForgetEmpty() {
  std::erase_if(for_blocks_, [](const auto& of) { return of.second.empty(); });
}

std::vector<uint64_t> FlushWaits::TakeWritten(
    const std::function<uint64_t(uint16_t)>& oldest_unwritten, size_t max) {
  std::vector<uint64_t> taken;
  for (auto& [of, waits] : for_blocks_) {
    const uint64_t oldest = oldest_unwritten(of);
    while (!waits.empty() && taken.size() < max && SequenceOf(*waits.begin()) < oldest) {
      MoveToTier(&waits, &taken);
    }
  }
  ForgetEmpty();
  return taken;
}

std::vector<uint64_t> FlushWaits::TakeAny(size_t max) {
  std::vector<uint64_t> taken;
  for (auto next = at_tier_.begin(); next != at_tier_.end() && taken.size() < max; ++next) {
    taken.push_back(next->first);
  }
  for (auto& [of, waits] : for_blocks_) {
    while (!waits.empty() && taken.size() < max) MoveToTier(&waits, &taken);
  }
  ForgetEmpty();
  return taken;
}

std::optional<FlushWaits::Wait> FlushWaits::Finish(uint64_t number) {
  const auto found = at_tier_.find(number);
  if (found == at_tier_.end()) return std::nullopt;
  Wait wait = std::move(found->second);
  at_tier_.erase(found);
  return wait;
}

}  // namespace aquifer
