#include "plan/lru_stack.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/hash_mix.h"

namespace aquifer {
namespace {

constexpr size_t kFirstSlots = 64;
constexpr size_t kFirstPlaces = 4096;
constexpr uint32_t kMaxRateShift = 40;

}  // namespace

LruStack::LruStack(const LruStackOptions& options)
    : options_(options), rate_shift_(options.first_rate_shift), table_(kFirstSlots) {
  AQ_CHECK(options.max_tracked > 0 && options.first_rate_shift <= kMaxRateShift);
  marks_.resize(kFirstPlaces / 64);
  chunk_sums_.resize(kFirstPlaces / kChunkBits + 1);
}

// The high bits say whether a block is followed, the low ones where it is.
uint64_t LruStack::HashOf(uint64_t block) {
  uint64_t state = block;
  return SplitMix(&state);
}

double LruStack::Scaled(size_t count) const {
  return static_cast<double>(count) * static_cast<double>(uint64_t{1} << rate_shift_);
}

size_t LruStack::FindSlot(uint64_t block, uint64_t hash) const {
  const size_t mask = table_.size() - 1;
  size_t slot = hash & mask;
  while (table_[slot].place != kEmpty && table_[slot].block != block) slot = (slot + 1) & mask;
  return slot;
}

double LruStack::DepthAt(uint64_t place) const { return Scaled(live_ - MarkedUpTo(place)) + 1; }

double LruStack::Depth(uint64_t block) const {
  const uint64_t hash = HashOf(block);
  if (rate_shift_ > 0 && !IsFollowed(hash)) return kUnsampled;
  const Slot& slot = table_[FindSlot(block, hash)];
  return slot.place == kEmpty ? kNever : DepthAt(slot.place);
}

void LruStack::Look(std::span<const uint64_t> blocks, std::vector<double>* depths) const {
  depths->resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) (*depths)[i] = Depth(blocks[i]);
}

uint32_t LruStack::Tag(uint64_t block) const {
  return static_cast<uint32_t>(table_[FindSlot(block, HashOf(block))].tag);
}

void LruStack::Touch(std::span<const uint64_t> blocks, uint32_t tag) {
  for (size_t i = blocks.size(); i-- > 0;) TouchOne(blocks[i], tag);
  while (live_ > options_.max_tracked && rate_shift_ < kMaxRateShift) HalveRate();
}

void LruStack::FollowOneIn(uint32_t shift) {
  while (rate_shift_ < shift && rate_shift_ < kMaxRateShift) HalveRate();
}

void LruStack::TouchOne(uint64_t block, uint32_t tag) {
  const uint64_t hash = HashOf(block);
  if (rate_shift_ > 0 && !IsFollowed(hash)) return;
  const uint64_t place = NextPlace();  // May renumber, so it comes before anything is found.
  size_t slot = FindSlot(block, hash);
  if (table_[slot].place != kEmpty) {
    Clear(table_[slot].place);
  } else {
    if (2 * (live_ + 1) > table_.size()) {
      GrowTable();
      slot = FindSlot(block, hash);
    }
    table_[slot].block = block;
    ++live_;
  }
  table_[slot].place = place;
  table_[slot].tag = tag;
  Mark(place);
}

bool LruStack::Rename(uint64_t from, uint64_t to) {
  const uint64_t to_hash = HashOf(to);
  if (rate_shift_ > 0) return false;  // The two names would not be followed alike.
  const size_t from_slot = FindSlot(from, HashOf(from));
  const Slot moved = table_[from_slot];
  if (moved.place == kEmpty || table_[FindSlot(to, to_hash)].place != kEmpty) return false;
  EraseSlot(from_slot);
  table_[FindSlot(to, to_hash)] = {.block = to, .place = moved.place, .tag = moved.tag};
  return true;
}

// ---- Places in time ----

uint64_t LruStack::NextPlace() {
  if (next_place_ == marks_.size() * 64) Renumber();
  return next_place_++;
}

void LruStack::AddToChunk(size_t chunk, int32_t change) {
  for (size_t i = chunk + 1; i < chunk_sums_.size(); i += i & (~i + 1)) chunk_sums_[i] += change;
}

void LruStack::Mark(uint64_t place) {
  marks_[place / 64] |= uint64_t{1} << (place % 64);
  AddToChunk(place / kChunkBits, 1);
}

void LruStack::Clear(uint64_t place) {
  marks_[place / 64] &= ~(uint64_t{1} << (place % 64));
  AddToChunk(place / kChunkBits, -1);
}

size_t LruStack::MarkedUpTo(uint64_t place) const {
  size_t sum = 0;
  const size_t chunk = place / kChunkBits;
  for (size_t i = chunk; i > 0; i &= i - 1) sum += static_cast<size_t>(chunk_sums_[i]);
  for (size_t word = chunk * (kChunkBits / 64); word < place / 64; ++word) {
    sum += static_cast<size_t>(std::popcount(marks_[word]));
  }
  const uint64_t up_to = ~uint64_t{0} >> (63 - place % 64);
  return sum + static_cast<size_t>(std::popcount(marks_[place / 64] & up_to));
}

// Takes the gaps out. With four places for each block it happens once in so many touches that a
// touch pays for about one place.
void LruStack::Renumber() {
  std::vector<uint64_t> ordered(next_place_, kEmpty);  // The slot, by place.
  for (size_t slot = 0; slot < table_.size(); ++slot) {
    if (table_[slot].place != kEmpty) ordered[table_[slot].place] = slot;
  }
  const size_t places =
      std::max(kFirstPlaces, std::bit_ceil((live_ + 1) * 4) / kChunkBits * kChunkBits);
  marks_.assign(places / 64, 0);
  chunk_sums_.assign(places / kChunkBits + 1, 0);
  next_place_ = 0;
  for (const uint64_t slot : ordered) {
    if (slot == kEmpty) continue;
    table_[slot].place = next_place_;
    Mark(next_place_++);
  }
}

// ---- The table ----

// Closes the gap, so that what was put further because of this one is still found.
void LruStack::EraseSlot(size_t slot) {
  const size_t mask = table_.size() - 1;
  size_t next = slot;
  while (true) {
    next = (next + 1) & mask;
    if (table_[next].place == kEmpty) break;
    const size_t home = HashOf(table_[next].block) & mask;
    if (((next - home) & mask) < ((next - slot) & mask)) continue;
    table_[slot] = table_[next];
    slot = next;
  }
  table_[slot] = Slot();
}

void LruStack::GrowTable() {
  std::vector<Slot> before(table_.size() * 2);
  before.swap(table_);
  for (const Slot& slot : before) {
    if (slot.place != kEmpty) table_[FindSlot(slot.block, HashOf(slot.block))] = slot;
  }
}

void LruStack::HalveRate() {
  ++rate_shift_;
  std::vector<Slot> before(table_.size());
  before.swap(table_);
  live_ = 0;
  for (const Slot& slot : before) {
    if (slot.place == kEmpty) continue;
    const uint64_t hash = HashOf(slot.block);
    if (!IsFollowed(hash)) continue;
    table_[FindSlot(slot.block, hash)] = slot;
    ++live_;
  }
  Renumber();
}

size_t LruStack::bytes() const {
  return table_.capacity() * sizeof(Slot) + marks_.capacity() * sizeof(uint64_t) +
         chunk_sums_.capacity() * sizeof(int32_t);
}

}  // namespace aquifer
