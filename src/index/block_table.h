// A flat hash table of references: it knows their hashes and asks its user about equality. Sized
// once, for the most it will hold; never moved, never rehashed.
//
// A bucket is one cache line of twelve references with a byte of hash each. A full bucket overflows
// into the next and counts what it sent there, so a lookup goes on only while something may be
// there, and deletion leaves no marks.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace aquifer {

class BlockTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // No memory: ok() is false, and nothing else may be called.
  explicit BlockTable(uint32_t max_refs);
  bool ok() const { return memory_ != nullptr; }

  // The reference under that hash for which `is_it(ref)` holds, or kNone.
  template <class IsIt>
  uint32_t Find(uint64_t hash, IsIt is_it) const {
    const uint8_t tag = TagOf(hash);
    uint32_t at = BucketOf(hash);
    for (uint32_t steps = 0; steps < bucket_count_; ++steps) {
      const Bucket& bucket = buckets_[at];
      for (Slots slots = bucket.WithTag(tag); slots.any(); slots.DropFirst()) {
        const uint32_t ref = bucket.refs[slots.first()];
        if (is_it(ref)) return ref;
      }
      if (bucket.overflow == 0) break;
      at = Next(at);
    }
    return kNone;
  }

  // Asks the memory for where Find() will begin.
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&buckets_[BucketOf(hash)]); }

  // Returns the ref that Find() will ask about first; kNone: it is not in the first bucket.
  uint32_t Guess(uint64_t hash) const {
    const Bucket& bucket = buckets_[BucketOf(hash)];
    const Slots slots = bucket.WithTag(TagOf(hash));
    return slots.any() ? bucket.refs[slots.first()] : kNone;
  }

  // At most max_refs are in it.
  void Add(uint64_t hash, uint32_t ref);
  // It is there.
  void Remove(uint64_t hash, uint32_t ref);

  uint64_t bytes() const { return uint64_t{bucket_count_} * sizeof(Bucket); }
  // Walks everything. For tests.
  uint32_t CountRefs() const;

 private:
  static constexpr size_t kSlots = 12;

  // One set bit for each slot with some tag: bit 8 * i + 7 of `low` for the slots 0 to 7, of `high`
  // for the rest.
  struct Slots {
    uint64_t low;
    uint64_t high;

    bool any() const { return (low | high) != 0; }
    size_t first() const {
      return low != 0 ? static_cast<size_t>(std::countr_zero(low)) / 8
                      : 8 + static_cast<size_t>(std::countr_zero(high)) / 8;
    }
    void DropFirst() {
      if (low != 0) {
        low &= low - 1;
      } else {
        high &= high - 1;
      }
    }
  };

  struct alignas(64) Bucket {
    std::array<uint8_t, kSlots> tags;
    uint32_t overflow;  // How many references would be here if there had been room.
    std::array<uint32_t, kSlots> refs;

    Slots WithTag(uint8_t tag) const {
      static_assert(std::endian::native == std::endian::little);
      uint64_t low = 0;
      uint32_t high = 0;
      std::memcpy(&low, tags.data(), sizeof(low));
      std::memcpy(&high, tags.data() + sizeof(low), sizeof(high));
      const uint64_t pattern = tag * 0x0101010101010101u;
      return {ZeroBytes(low ^ pattern), ZeroBytes(high ^ pattern) & UINT32_MAX};
    }
  };
  static_assert(sizeof(Bucket) == 64);

  struct FreeMemory {
    void operator()(void* memory) const;
  };

  // The top bit of every byte that is zero.
  static uint64_t ZeroBytes(uint64_t word) {
    constexpr uint64_t kLow7 = 0x7F7F7F7F7F7F7F7Fu;
    return ~(((word & kLow7) + kLow7) | word | kLow7);
  }

  // Never 0, which marks an empty slot. The bucket comes from the hash's low half, the tag from its
  // top.
  static uint8_t TagOf(uint64_t hash) {
    const auto top = static_cast<uint8_t>(hash >> 56);
    return top == 0 ? 1 : top;
  }
  uint32_t BucketOf(uint64_t hash) const {
    return static_cast<uint32_t>((hash & UINT32_MAX) * bucket_count_ >> 32);
  }
  uint32_t Next(uint32_t at) const { return at + 1 == bucket_count_ ? 0 : at + 1; }

  const uint32_t bucket_count_;
  std::unique_ptr<void, FreeMemory> memory_;
  Bucket* const buckets_;  // bucket_count_ of them, in memory_.
};

}  // namespace aquifer
