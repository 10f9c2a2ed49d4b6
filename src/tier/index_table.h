// An open-addressing hash table from hashes to small numbers (slots, positions in a vector). The
// keys themselves stay with their owner, who compares them, so an entry is 8 bytes. It is only ever
// looked up, never walked.
//
// Reserve() is the only thing that allocates. A table that grows is not moved at once: each later
// Insert() and Erase() carries a few entries over, so that no single call takes long.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"

namespace aquifer {

class IndexTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The value under `hash` for which `is_it(value)` holds, or kNone.
  template <class Predicate>
  uint32_t Find(uint64_t hash, Predicate is_it) const {
    const uint32_t tag = TagOf(hash);
    for (const Buckets* buckets : {&now_, &before_}) {
      if (buckets->entries == nullptr) continue;
      for (size_t i = tag & buckets->mask;; i = (i + 1) & buckets->mask) {
        const Entry entry = buckets->entries[i];
        if (entry.cell == kEmpty) break;
        if (entry.cell != kMoved && entry.tag == tag && is_it(entry.cell - kFirst)) {
          return entry.cell - kFirst;
        }
      }
    }
    return kNone;
  }

  // Room for it was reserved, and it is not there yet.
  void Insert(uint64_t hash, uint32_t value) {
    AQ_CHECK(size_ < reserved_);
    Carry(kCarriedPerCall);
    ++size_;
    Place({.tag = TagOf(hash), .cell = value + kFirst});
  }

  // It is there.
  void Erase(uint64_t hash, uint32_t value) {
    Carry(kCarriedPerCall);
    const Entry gone{.tag = TagOf(hash), .cell = value + kFirst};
    --size_;
    if (const size_t at = PlaceOf(now_, gone); at != SIZE_MAX) return CloseGap(at);
    const size_t at = PlaceOf(before_, gone);
    AQ_CHECK(at != SIZE_MAX);
    before_.entries[at].cell = kMoved;
  }

  // Room for `values` in all.
  void Reserve(size_t values) {
    if (values <= reserved_) return;
    Carry(SIZE_MAX);
    reserved_ = std::max<size_t>({values, reserved_ * 2, 16});
    before_ = std::exchange(now_, Buckets(std::bit_ceil(reserved_ + reserved_ / 2)));
    carried_ = 0;
  }

  size_t size() const { return size_; }

 private:
  // cell: 0, kMoved, or the value + kFirst.
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kMoved = 1;  // Only while a table is left behind: look further.
  static constexpr uint32_t kFirst = 2;
  static constexpr size_t kCarriedPerCall = 16;

  struct Entry {
    uint32_t tag;
    uint32_t cell;
  };

  struct Free {
    void operator()(Entry* entries) const { std::free(entries); }
  };

  struct Buckets {
    Buckets() = default;
    // calloc: the pages of a large table are only touched as it fills.
    explicit Buckets(size_t count)
        : entries(static_cast<Entry*>(std::calloc(count, sizeof(Entry)))), mask(count - 1) {
      AQ_CHECK(entries != nullptr);
    }

    std::unique_ptr<Entry[], Free> entries;
    size_t mask = 0;
  };

  // The hash is the owner's, and its seed a secret (block/block_id.h): only its lower half is not
  // enough to go by.
  static uint32_t TagOf(uint64_t hash) {
    hash ^= hash >> 32;
    return static_cast<uint32_t>((hash * 0x9E3779B97F4A7C15u) >> 32);
  }

  void Place(Entry entry) {
    size_t i = entry.tag & now_.mask;
    while (now_.entries[i].cell != kEmpty) i = (i + 1) & now_.mask;
    now_.entries[i] = entry;
  }

  static size_t PlaceOf(const Buckets& buckets, Entry wanted) {
    if (buckets.entries == nullptr) return SIZE_MAX;
    for (size_t i = wanted.tag & buckets.mask;; i = (i + 1) & buckets.mask) {
      if (buckets.entries[i].cell == wanted.cell) return i;
      if (buckets.entries[i].cell == kEmpty) return SIZE_MAX;
    }
  }

  // Moves later entries of the run back, so that no search meets a hole.
  void CloseGap(size_t gap) {
    for (size_t i = (gap + 1) & now_.mask; now_.entries[i].cell != kEmpty;
         i = (i + 1) & now_.mask) {
      const size_t home = now_.entries[i].tag & now_.mask;
      if (((i - home) & now_.mask) < ((i - gap) & now_.mask)) continue;  // It would pass its home.
      now_.entries[gap] = now_.entries[i];
      gap = i;
    }
    now_.entries[gap].cell = kEmpty;
  }

  void Carry(size_t count) {
    if (before_.entries == nullptr) return;
    for (; count > 0 && carried_ <= before_.mask; --count, ++carried_) {
      Entry& entry = before_.entries[carried_];
      if (entry.cell == kEmpty || entry.cell == kMoved) continue;
      Place(entry);
      entry.cell = kMoved;
    }
    if (carried_ > before_.mask) before_ = Buckets();
  }

  Buckets now_;
  Buckets before_;      // What now_ grew from, until all of it is carried over.
  size_t carried_ = 0;  // Buckets of before_ that are done.
  size_t size_ = 0;
  size_t reserved_ = 0;
};

}  // namespace aquifer
