#include "index/block_table.h"

#include <cstdlib>

#include "base/check.h"
#include "index/lazy_memory.h"

namespace aquifer {
namespace {

// Nine of twelve slots are taken when the table is full: it then costs 7.1 bytes a reference, and
// few lookups leave the bucket they begin in.
constexpr uint64_t kFullSlots = 9;

}  // namespace

void BlockTable::FreeMemory::operator()(void* memory) const { std::free(memory); }

BlockTable::BlockTable(uint32_t max_refs)
    : bucket_count_(static_cast<uint32_t>((uint64_t{max_refs} + kFullSlots - 1) / kFullSlots)),
      memory_(TakeLazyMemory(bytes())),
      buckets_(static_cast<Bucket*>(AlignedIn(memory_.get()))) {
  // Hashing touches every page soon anyway, and there are few.
  if (memory_ != nullptr) Populate(memory_.get(), bytes());
}

void BlockTable::Add(uint64_t hash, uint32_t ref) {
  for (uint32_t at = BucketOf(hash);; at = Next(at)) {
    Bucket& bucket = buckets_[at];
    const Slots empty = bucket.WithTag(0);
    if (empty.any()) {
      bucket.tags[empty.first()] = TagOf(hash);
      bucket.refs[empty.first()] = ref;
      return;
    }
    ++bucket.overflow;
  }
}

void BlockTable::Remove(uint64_t hash, uint32_t ref) {
  for (uint32_t at = BucketOf(hash);; at = Next(at)) {
    Bucket& bucket = buckets_[at];
    for (Slots slots = bucket.WithTag(TagOf(hash)); slots.any(); slots.DropFirst()) {
      if (bucket.refs[slots.first()] != ref) continue;
      bucket.tags[slots.first()] = 0;
      return;
    }
    AQ_CHECK(bucket.overflow > 0);
    --bucket.overflow;
  }
}

uint32_t BlockTable::CountRefs() const {
  uint32_t count = 0;
  for (uint32_t at = 0; at < bucket_count_; ++at) {
    for (const uint8_t tag : buckets_[at].tags) count += tag != 0 ? 1 : 0;
  }
  return count;
}

}  // namespace aquifer
