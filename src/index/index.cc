#include "index/index.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/hash_mix.h"
#include "index/lazy_memory.h"

namespace aquifer {
namespace {

// Lookups overlap: the bucket of a key is asked for this many keys before its entry, and the entry
// this many before it is read. 16 + 16 lines are about what one core keeps in flight.
constexpr size_t kLookahead = 16;

// A hand-over of so many children takes about 50 us.
constexpr uint32_t kMaxHandOver = 512;

bool HasName(const BlockEntry& entry, uint16_t tenant, uint16_t group, uint16_t part,
             const Key& key) {
  return entry.tenant == tenant && entry.group == group && entry.part == part && entry.key == key;
}

}  // namespace

void Index::FreeMemory::operator()(void* memory) const { std::free(memory); }

Result<std::unique_ptr<Index>> Index::Create(const IndexOptions& options) {
  if (options.max_blocks == 0) return Status(Code::kInvalid, "max_blocks is zero");
  if (options.max_blocks == kNoBlock) return Status(Code::kInvalid, "max_blocks is too large");
  auto index = std::unique_ptr<Index>(new Index(options));
  if (!index->table_.ok() || index->slab_memory_ == nullptr) {
    return Status(Code::kNoSpace, "no memory for the index");
  }
  return index;
}

Index::Index(const IndexOptions& options)
    : max_blocks_(options.max_blocks),
      meter_(options.meter != nullptr ? options.meter : &unmetered_),
      table_(options.max_blocks),
      slab_memory_(TakeLazyMemory(uint64_t{options.max_blocks} * sizeof(BlockEntry))),
      slab_(static_cast<BlockEntry*>(AlignedIn(slab_memory_.get()))) {
  uint64_t state = options.hash_seed;
  for (uint64_t& seed : seeds_) seed = SplitMix(&state);
}

Index::~Index() = default;

BlockEntry& Index::Mutable(BlockRef ref) {
  AQ_CHECK(Exists(ref));
  meter_->Count();
  return slab_[ref];
}

const BlockEntry& Index::at(BlockRef ref) const {
  AQ_CHECK(Exists(ref));
  meter_->Count();
  return slab_[ref];
}

// Keys are hashes already, but a client may send any bytes as a key: all of them go in, with seeds
// that it does not know.
uint64_t Index::HashOf(uint16_t tenant, uint16_t group, uint16_t part, const Key& key) const {
  std::array<uint64_t, 4> words;
  std::memcpy(words.data(), key.bytes.data(), sizeof(words));
  const uint64_t rest = uint64_t{tenant} << 32 | uint64_t{group} << 16 | part;
  return Mix(Mix(words[0] ^ seeds_[0], words[1] ^ seeds_[1]) ^ rest ^ seeds_[4],
             Mix(words[2] ^ seeds_[2], words[3] ^ seeds_[3]) ^ seeds_[5]);
}

uint64_t Index::HashOf(const BlockEntry& entry) const {
  return HashOf(entry.tenant, entry.group, entry.part, entry.key);
}

BlockRef Index::Lookup(uint64_t hash, uint16_t tenant, uint16_t group, uint16_t part,
                       const Key& key) const {
  static_assert(BlockTable::kNone == kNoBlock);
  return table_.Find(hash,
                     [&](BlockRef ref) { return HasName(slab_[ref], tenant, group, part, key); });
}

BlockRef Index::Lookup(const BlockName& name) const {
  return Lookup(HashOf(name.tenant, name.group, name.part, name.key), name.tenant, name.group,
                name.part, name.key);
}

template <class Visit>
void Index::LookupMany(uint16_t tenant, uint16_t group, uint16_t part, std::span<const Key> keys,
                       Visit visit) const {
  constexpr size_t kRing = 2 * kLookahead;
  std::array<uint64_t, kRing> hashes;
  std::array<BlockRef, kRing> candidates;
  for (size_t i = 0; i < keys.size() + kRing; ++i) {
    // The oldest first: its place in the ring is what the newest takes.
    if (i >= kRing) {
      const size_t done = i - kRing;
      BlockRef ref = candidates[done % kRing];
      if (ref == kNoBlock || !HasName(slab_[ref], tenant, group, part, keys[done])) {
        ref = Lookup(hashes[done % kRing], tenant, group, part, keys[done]);
      }
      if (!visit(done, ref)) return;
    }
    if (i < keys.size()) {
      const uint64_t hash = HashOf(tenant, group, part, keys[i]);
      hashes[i % kRing] = hash;
      table_.Prefetch(hash);
    }
    if (i >= kLookahead && i - kLookahead < keys.size()) {
      const size_t at = (i - kLookahead) % kRing;
      candidates[at] = table_.Guess(hashes[at]);
      if (candidates[at] != kNoBlock) __builtin_prefetch(&slab_[candidates[at]]);
    }
  }
}

BlockRef Index::Find(const BlockName& name) const {
  meter_->Count();
  const BlockRef ref = Lookup(name);
  return ref != kNoBlock && IsFindable(slab_[ref].state) ? ref : kNoBlock;
}

void Index::FindMany(uint16_t tenant, uint16_t group, uint16_t part, std::span<const Key> keys,
                     std::span<BlockRef> refs) const {
  AQ_CHECK(refs.size() >= keys.size());
  meter_->Count(keys.size());
  LookupMany(tenant, group, part, keys, [&](size_t i, BlockRef ref) {
    refs[i] = ref != kNoBlock && IsFindable(slab_[ref].state) ? ref : kNoBlock;
    return true;
  });
}

MatchResult Index::Match(const MatchQuery& query, std::span<BlockRef> refs) const {
  AQ_CHECK(query.from <= query.chain.size());
  const size_t left = query.chain.size() - query.from;
  const size_t steps = std::min(left, query.max_steps);
  AQ_CHECK(refs.size() >= steps);
  MatchResult result;
  meter_->Count(steps);
  result.end = steps == left ? MatchEnd::kChainEnd : MatchEnd::kSlice;
  LookupMany(query.tenant, query.group, query.part, query.chain.subspan(query.from, steps),
             [&](size_t i, BlockRef ref) {
               if (ref == kNoBlock || !IsFindable(slab_[ref].state)) {
                 result.end = MatchEnd::kMissing;
                 return false;
               }
               const BlockEntry& entry = slab_[ref];
               const bool filling = entry.state == BlockState::kFilling;
               const bool wanted = (entry.residency & query.tiers) != 0;
               if (!filling && wanted && !entry.expired(query.unix_seconds)) {
                 refs[i] = ref;
                 result.matched = i + 1;
                 return true;
               }
               result.stopped_at = ref;
               result.end = filling   ? MatchEnd::kFilling
                            : !wanted ? MatchEnd::kMissing
                                      : MatchEnd::kExpired;
               return false;
             });
  return result;
}

BlockRef Index::TakeEntry() {
  BlockRef ref = free_;
  if (ref != kNoBlock) {
    free_ = slab_[ref].next_sibling;
  } else {
    AQ_CHECK(limit_ < max_blocks_);
    ref = limit_++;
  }
  new (&slab_[ref]) BlockEntry();
  return ref;
}

void Index::FreeEntry(BlockRef ref) {
  slab_[ref].state = BlockState::kFree;
  slab_[ref].next_sibling = free_;
  free_ = ref;
}

// Neither end has a residency that the other would have to count: new entries are in no tier.
void Index::Link(BlockRef ref, BlockRef parent) {
  BlockEntry& child = slab_[ref];
  BlockEntry& above = slab_[parent];
  child.parent = parent;
  child.prev_sibling = kNoBlock;
  child.next_sibling = above.first_child;
  if (above.first_child != kNoBlock) slab_[above.first_child].prev_sibling = ref;
  above.first_child = ref;
  ++above.children;
}

void Index::Unlink(BlockRef ref) {
  BlockEntry& child = slab_[ref];
  BlockEntry& above = slab_[child.parent];
  if (child.next_sibling != kNoBlock) slab_[child.next_sibling].prev_sibling = child.prev_sibling;
  if (child.prev_sibling != kNoBlock) {
    slab_[child.prev_sibling].next_sibling = child.next_sibling;
  } else {
    above.first_child = child.next_sibling;
  }
  --above.children;
  if (above.children == 0 && above.state == BlockState::kPlaceholder) {
    table_.Remove(HashOf(above), child.parent);
    FreeEntry(child.parent);
    --placeholders_;
  }
  child.parent = child.next_sibling = child.prev_sibling = kNoBlock;
}

BlockRef Index::AddPlaceholder(const NewBlock& child) {
  const BlockRef ref = TakeEntry();
  BlockEntry& entry = slab_[ref];
  entry.state = BlockState::kPlaceholder;
  entry.key = child.parent;
  entry.tenant = child.name.tenant;
  entry.group = child.name.group;
  entry.part = child.name.part;
  entry.position = child.position - 1;  // A root's is one before 0 and wraps around.
  table_.Add(HashOf(entry), ref);
  ++placeholders_;
  return ref;
}

void Index::HandOver(BlockRef gone, BlockRef ref) {
  BlockEntry& from = slab_[gone];
  BlockEntry& to = slab_[ref];
  const uint64_t hash = HashOf(from);
  table_.Remove(hash, gone);
  table_.Add(hash, ref);
  for (BlockRef child = from.first_child; child != kNoBlock; child = slab_[child].next_sibling) {
    slab_[child].parent = ref;
  }
  to.first_child = std::exchange(from.first_child, kNoBlock);
  to.children = std::exchange(from.children, 0);
  to.children_in = std::exchange(from.children_in, {});
}

Result<BlockRef> Index::Insert(const NewBlock& block) {
  AQ_CHECK(IsFindable(block.state));
  const BlockName& name = block.name;
  if (name.key == block.parent) return Status(Code::kInvalid);
  const uint64_t hash = HashOf(name.tenant, name.group, name.part, name.key);
  const BlockRef before = Lookup(hash, name.tenant, name.group, name.part, name.key);
  BlockRef parent = Lookup({name.tenant, name.group, name.part, block.parent});

  // Everything that can fail comes before the first change.
  if (before != kNoBlock) {
    const BlockEntry& entry = slab_[before];
    AQ_CHECK(!IsFindable(entry.state));
    if (entry.position != block.position) return Status(Code::kInvalid);
    if (entry.state == BlockState::kGone && entry.children > kMaxHandOver) {
      return Status(Code::kBusy);
    }
  }
  // Positions grow along every link, so no parents, however hostile, can close a circle.
  if (parent != kNoBlock && slab_[parent].position + 1 != block.position) {
    return Status(Code::kInvalid);
  }
  const bool takes_over = before != kNoBlock && slab_[before].state == BlockState::kPlaceholder;
  const uint32_t needed = (takes_over ? 0 : 1) + (parent == kNoBlock ? 1 : 0);
  if (max_blocks_ - blocks_ - placeholders_ < needed) return Status(Code::kNoSpace);

  if (parent == kNoBlock) parent = AddPlaceholder(block);
  const BlockRef ref = takes_over ? before : TakeEntry();
  BlockEntry& entry = slab_[ref];
  if (takes_over) {
    --placeholders_;
  } else if (before != kNoBlock) {
    HandOver(before, ref);
  } else {
    table_.Add(hash, ref);
  }
  ++blocks_;
  entry.key = name.key;
  entry.tenant = name.tenant;
  entry.group = name.group;
  entry.part = name.part;
  entry.layout = block.layout;
  entry.state = block.state;
  entry.expiry_unix_seconds = block.expiry_unix_seconds;
  entry.position = block.position;
  entry.checksum = block.checksum;
  entry.engine_hash = block.engine_hash;
  entry.last_used_nanos = block.now_nanos;
  Link(ref, parent);
  if (!takes_over && before != kNoBlock) Unlink(before);
  return ref;
}

void Index::Retire(BlockRef ref) {
  BlockEntry& entry = Mutable(ref);
  AQ_CHECK(entry.residency == 0);
  entry.state = BlockState::kGone;
}

void Index::Remove(BlockRef ref) {
  BlockEntry& entry = Mutable(ref);
  AQ_CHECK(entry.residency == 0);
  AQ_CHECK(entry.leases == 0 && entry.pins == 0 && entry.io_tiers == 0);
  --blocks_;
  if (entry.parent == kNoBlock) {  // Handed over: in no table and in no chain.
    FreeEntry(ref);
    return;
  }
  Unlink(ref);
  if (entry.children == 0) {
    table_.Remove(HashOf(entry), ref);
    FreeEntry(ref);
    return;
  }
  BlockEntry placeholder;
  placeholder.state = BlockState::kPlaceholder;
  placeholder.key = entry.key;
  placeholder.tenant = entry.tenant;
  placeholder.group = entry.group;
  placeholder.part = entry.part;
  placeholder.position = entry.position;
  placeholder.first_child = entry.first_child;
  placeholder.children = entry.children;
  placeholder.children_in = entry.children_in;
  entry = placeholder;
  ++placeholders_;
}

void Index::SetComplete(BlockRef ref, const Checksum& checksum) {
  BlockEntry& entry = Mutable(ref);
  AQ_CHECK(entry.state == BlockState::kFilling);
  entry.state = BlockState::kResident;
  entry.checksum = checksum;
}

BlockRef Index::SetResident(BlockRef ref, uint8_t tier, bool resident) {
  AQ_CHECK(tier < kMaxTiers);
  BlockEntry& entry = Mutable(ref);
  if (entry.in_tier(tier) == resident) return kNoBlock;
  AQ_CHECK(entry.state != BlockState::kGone);
  entry.residency ^= TierBit(tier);
  if (tier >= kCountedTiers) return kNoBlock;
  BlockEntry& above = slab_[entry.parent];
  uint32_t& count = above.children_in[tier];
  const bool was_leaf = count == 0;
  count += resident ? 1 : -1;
  return was_leaf != (count == 0) && IsFindable(above.state) ? entry.parent : kNoBlock;
}

bool Index::Lease(BlockRef ref) {
  BlockEntry& entry = Mutable(ref);
  if (entry.leases == UINT16_MAX) return false;
  ++entry.leases;
  return true;
}

uint32_t Index::Unlease(BlockRef ref) {
  BlockEntry& entry = Mutable(ref);
  AQ_CHECK(entry.leases > 0);
  return --entry.leases;
}

bool Index::Pin(BlockRef ref) {
  BlockEntry& entry = Mutable(ref);
  if (entry.pins == UINT16_MAX) return false;
  ++entry.pins;
  return true;
}

uint32_t Index::Unpin(BlockRef ref) {
  BlockEntry& entry = Mutable(ref);
  AQ_CHECK(entry.pins > 0);
  return --entry.pins;
}

void Index::SetIo(BlockRef ref, uint8_t tier, bool busy) {
  AQ_CHECK(tier < kMaxTiers);
  BlockEntry& entry = Mutable(ref);
  entry.io_tiers =
      static_cast<uint8_t>(busy ? entry.io_tiers | TierBit(tier) : entry.io_tiers & ~TierBit(tier));
}

void Index::Touch(BlockRef ref, int64_t now_nanos) {
  BlockEntry& entry = Mutable(ref);
  entry.last_used_nanos = now_nanos;
  if (entry.uses != UINT32_MAX) ++entry.uses;
}

BlockRef Index::Parent(BlockRef ref) const {
  const BlockRef parent = at(ref).parent;
  return parent != kNoBlock && IsFindable(slab_[parent].state) ? parent : kNoBlock;
}

Key Index::ParentKey(BlockRef ref) const {
  const BlockRef parent = at(ref).parent;
  return parent == kNoBlock ? Key{} : slab_[parent].key;
}

BlockRef Index::FirstChildOf(const BlockName& name) const {
  const BlockRef ref = Lookup(name);
  return ref == kNoBlock ? kNoBlock : slab_[ref].first_child;
}

size_t Index::CollectExpired(uint32_t unix_seconds, size_t max_steps, BlockRef* cursor,
                             std::span<BlockRef> refs) const {
  const BlockRef begin = *cursor;
  size_t found = 0;
  for (size_t steps = 0; steps < max_steps && *cursor < limit_ && found < refs.size(); ++steps) {
    const BlockEntry& entry = slab_[*cursor];
    if (entry.state == BlockState::kResident && entry.expired(unix_seconds)) {
      refs[found++] = *cursor;
    }
    ++*cursor;
  }
  meter_->Count(*cursor - begin);
  if (*cursor >= limit_) *cursor = 0;
  return found;
}

uint64_t Index::bytes() const { return table_.bytes() + uint64_t{limit_} * sizeof(BlockEntry); }

void Index::CheckConsistency() const {
  uint32_t blocks = 0;
  uint32_t placeholders = 0;
  uint32_t listed = 0;
  for (BlockRef ref = 0; ref < limit_; ++ref) {
    const BlockEntry& entry = slab_[ref];
    if (entry.state == BlockState::kFree) continue;
    const bool handed_over = IsBlock(entry.state) && entry.parent == kNoBlock;
    if (entry.state == BlockState::kPlaceholder) {
      ++placeholders;
      AQ_CHECK(entry.children > 0 && entry.parent == kNoBlock);
    } else {
      ++blocks;
      AQ_CHECK(!handed_over || (entry.state == BlockState::kGone && entry.children == 0));
    }
    if (!handed_over) {
      ++listed;
      AQ_CHECK(Lookup(HashOf(entry), entry.tenant, entry.group, entry.part, entry.key) == ref);
    }
    uint32_t children = 0;
    std::array<uint32_t, kCountedTiers> children_in{};
    BlockRef previous = kNoBlock;
    for (BlockRef child = entry.first_child; child != kNoBlock; child = slab_[child].next_sibling) {
      const BlockEntry& below = slab_[child];
      AQ_CHECK(IsBlock(below.state) && below.parent == ref && below.prev_sibling == previous);
      AQ_CHECK(below.position == entry.position + 1);
      ++children;
      for (uint8_t tier = 0; tier < kCountedTiers; ++tier) children_in[tier] += below.in_tier(tier);
      previous = child;
    }
    AQ_CHECK(children == entry.children && children_in == entry.children_in);
  }
  AQ_CHECK(blocks == blocks_ && placeholders == placeholders_);

  AQ_CHECK(table_.CountRefs() == listed);
  uint32_t free = 0;
  for (BlockRef ref = free_; ref != kNoBlock; ref = slab_[ref].next_sibling) ++free;
  AQ_CHECK(free + blocks + placeholders == limit_);
}

}  // namespace aquifer
