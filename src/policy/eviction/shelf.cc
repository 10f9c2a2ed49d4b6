#include "policy/eviction/shelf.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr int kMaxStepsAside = 64;  // To the right place of a block that comes late.

size_t CellOf(const BlockRecord& record) {
  return size_t{record.block_class.number} * kAgeBuckets + record.bucket;
}

}  // namespace

CellRanking RankByAge(const ReuseTable& table) {
  CellRanking ranking = {.table = table, .by_age = true};
  for (size_t cell = 0; cell < kReuseCells; ++cell) {
    const size_t younger = kAgeBuckets - 1 - cell % kAgeBuckets;
    const auto rank = static_cast<uint16_t>(younger * kBlockClasses + cell / kAgeBuckets);
    ranking.table.rank[cell] = rank;
    ranking.table.at_rank[rank] = static_cast<uint16_t>(cell);
  }
  return ranking;
}

void Shelf::Mark(size_t cell, bool filled) {
  const uint16_t rank = ranking_->table.rank[cell];
  const uint64_t bit = uint64_t{1} << (rank % 64);
  if (filled) {
    filled_[rank / 64] |= bit;
  } else {
    filled_[rank / 64] &= ~bit;
  }
}

// Most come in the order of their use. The end of a request's chain comes a little late; and a
// block whose child is gone, or that was held, may be as old as the oldest. So it is looked for
// from the end of the list that is nearer in time.
void Shelf::Link(uint32_t ref, size_t cell) {
  if (rows_[cell / kAgeBuckets] == nullptr) rows_[cell / kAgeBuckets] = std::make_unique<Row>();
  List& target = list(cell);
  uint32_t after = target.last;  // It goes behind this one.
  if (after != kNoRecord && UsedBefore(ref, after)) {
    const int64_t used = record(ref).used_nanos;
    if (record(after).used_nanos - used < used - record(target.first).used_nanos) {
      for (int step = 0; step < kMaxStepsAside && UsedBefore(ref, after); ++step) {
        after = blocks_[after].previous;
      }
    } else {
      after = kNoRecord;
      uint32_t next = target.first;
      for (int step = 0; step < kMaxStepsAside && UsedBefore(next, ref); ++step) {
        after = next;
        next = blocks_[next].next;
      }
    }
  }
  ShelvedBlock& added = blocks_[ref];
  added.previous = after;
  added.next = after == kNoRecord ? target.first : blocks_[after].next;
  (added.previous == kNoRecord ? target.first : blocks_[added.previous].next) = ref;
  (added.next == kNoRecord ? target.last : blocks_[added.next].previous) = ref;
  if (target.first == target.last) Mark(cell, true);
}

void Shelf::Unlink(uint32_t ref, size_t cell) {
  List& source = list(cell);
  const ShelvedBlock& removed = blocks_[ref];
  (removed.previous == kNoRecord ? source.first : blocks_[removed.previous].next) = removed.next;
  (removed.next == kNoRecord ? source.last : blocks_[removed.next].previous) = removed.previous;
  if (source.first == kNoRecord) Mark(cell, false);
}

void Shelf::Insert(uint32_t ref) {
  AQ_CHECK(!blocks_[ref].listed);
  Link(ref, CellOf(record(ref)));
  blocks_[ref].listed = true;
  ++size_;
}

void Shelf::Erase(uint32_t ref) {
  AQ_CHECK(blocks_[ref].listed);
  Unlink(ref, CellOf(record(ref)));
  blocks_[ref].listed = false;
  --size_;
}

void Shelf::Age(uint32_t ref) {
  const size_t cell = CellOf(record(ref));
  Unlink(ref, cell - 1);
  Link(ref, cell);
}

void Shelf::Rank(std::shared_ptr<const CellRanking> ranking) {
  ranking_ = std::move(ranking);
  filled_.fill(0);
  for (size_t c = 0; c < kBlockClasses; ++c) {
    if (rows_[c] == nullptr) continue;
    for (size_t b = 0; b < kAgeBuckets; ++b) {
      if ((*rows_[c])[b].first != kNoRecord) Mark(c * kAgeBuckets + b, true);
    }
  }
}

uint32_t Shelf::Least() const {
  if (size_ == 0) return kNoRecord;
  size_t word = 0;
  while (filled_[word] == 0) ++word;
  uint64_t bits = filled_[word];
  size_t rank = word * 64 + static_cast<size_t>(std::countr_zero(bits));
  const auto first_at = [&](size_t at) {
    const uint16_t cell = ranking_->table.at_rank[at];
    return (*rows_[cell / kAgeBuckets])[cell % kAgeBuckets].first;
  };
  uint32_t least = first_at(rank);
  if (!ranking_->by_age) return least;
  // All classes of the oldest bucket: the one used longest ago is at the head of one of them.
  const size_t end = (rank / kBlockClasses + 1) * kBlockClasses;
  for (++rank; rank < end; ++rank) {
    bits = filled_[rank / 64] >> (rank % 64);
    if (bits == 0) {
      rank |= 63;
      continue;
    }
    rank += static_cast<size_t>(std::countr_zero(bits));
    if (rank >= end) break;
    const uint32_t other = first_at(rank);
    if (UsedBefore(other, least)) least = other;
  }
  return least;
}

uint64_t Shelf::bytes() const {
  uint64_t bytes = sizeof(Shelf);
  for (const auto& row : rows_) bytes += row == nullptr ? 0 : sizeof(Row);
  return bytes;
}

}  // namespace aquifer
