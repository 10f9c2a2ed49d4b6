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

std::optional<FlushWaits::Wait> FlushWaits::TakeWritten(uint16_t of, uint64_t oldest_unwritten) {
  const auto found = for_blocks_.find(of);
  if (found == for_blocks_.end()) return std::nullopt;
  ByNumber& waits = found->second;
  if (SequenceOf(*waits.begin()) >= oldest_unwritten) return std::nullopt;
  Wait wait = std::move(waits.begin()->second.wait);
  waits.erase(waits.begin());
  if (waits.empty()) for_blocks_.erase(found);
  return wait;
}

}  // namespace aquifer
