// Which blocks exist, where they are, who has them leased, and how they hang together in chains.
// The index holds no payload and decides nothing: it is the memory of the cache, and every other
// part names a block by the BlockRef it gives out.
//
// An entry is 128 bytes in one slab that is reserved at the start and committed page by page, so
// growth never copies. A table (block_table.h) finds entries by identity: a lookup touches one line
// of the table and one of the entry.
//
// The parent of a block may be missing: the root of a chain is no block, parents may be stored
// after their children, or be removed before them. A placeholder entry then stands in for it, holds
// its key, and is taken over in place when the parent arrives. Inserting and removing are therefore
// O(1) whatever the number of children. A placeholder is never found, matched or visited; it lives
// exactly as long as it has children.
//
// Single-threaded: the cache's owner. Reads no clock; the time is passed in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "aquifer/checksum.h"
#include "aquifer/key.h"
#include "aquifer/status.h"
#include "base/task_meter.h"
#include "index/block_table.h"

namespace aquifer {

// Names an entry until it is removed; then the number is used again.
using BlockRef = uint32_t;
inline constexpr BlockRef kNoBlock = UINT32_MAX;

inline constexpr uint32_t kNoDramSlot = UINT32_MAX;

// Tiers are numbered by the cache. The first two are special only in that the index counts, for
// each block, how many of its children are in them: that is what makes a block a leaf there.
inline constexpr uint8_t kTierDram = 0;
inline constexpr uint8_t kTierNvme = 1;
inline constexpr size_t kCountedTiers = 2;
inline constexpr uint8_t kTierFirstDurable = 3;  // And all behind it. 2 is for peers, to come.
inline constexpr size_t kMaxTiers = 8;

constexpr uint8_t TierBit(uint8_t tier) { return static_cast<uint8_t>(1u << tier); }

enum class BlockState : uint8_t {
  kFree = 0,         // Not an entry.
  kPlaceholder = 1,  // Only a parent's key; never handed out.
  kFilling = 2,      // Reserved: someone is writing its bytes.
  kResident = 3,     // Complete: readable wherever its residency says.
  kGone = 4,         // Retired, but leased or under I/O: unfindable, and waits to be removed.
};

// Flags that the index keeps for the cache; they mean nothing to the index.
inline constexpr uint8_t kFlagDurableWanted = 1;  // Must reach the durable tier.
inline constexpr uint8_t kFlagDeleted = 2;        // Somebody asked for that; others still use it.

// The identity of BlockId, with the tenant as the cache's number for it.
struct BlockName {
  uint16_t tenant = 0;
  uint16_t group = 0;
  uint16_t part = 0;
  Key key{};
  friend auto operator<=>(const BlockName&, const BlockName&) = default;
};

// Two cache lines: matching reads the first alone.
struct alignas(64) BlockEntry {
  Key key;
  uint16_t tenant = 0;
  uint16_t group = 0;
  uint16_t part = 0;
  uint16_t layout = 0;
  BlockState state = BlockState::kFree;
  uint8_t residency = 0;  // TierBit() of every tier that holds it.
  uint8_t io_tiers = 0;   // TierBit() of every tier that reads or writes it now.
  uint8_t flags = 0;
  uint16_t leases = 0;
  uint16_t pins = 0;
  uint32_t slot = kNoDramSlot;
  uint32_t expiry_unix_seconds = 0;  // 0: never.
  uint32_t position = 0;
  BlockRef parent = kNoBlock;  // May be a placeholder: use Index::Parent().

  Checksum checksum;
  uint64_t engine_hash = 0;
  int64_t last_used_nanos = 0;
  BlockRef first_child = kNoBlock;
  BlockRef next_sibling = kNoBlock;
  BlockRef prev_sibling = kNoBlock;
  uint32_t children = 0;
  std::array<uint32_t, kCountedTiers> children_in{};  // The children in DRAM, on NVMe.
  uint32_t owner_data = 0;                            // The cache's own; 0 in a new entry.
  uint32_t uses = 0;                                  // Counted by Touch().

  bool has_slot() const { return slot != kNoDramSlot; }
  bool in_tier(uint8_t tier) const { return (residency & TierBit(tier)) != 0; }
  bool expired(uint32_t unix_seconds) const {
    return expiry_unix_seconds != 0 && expiry_unix_seconds <= unix_seconds;
  }
  // Someone needs it where it is: not to be evicted or moved.
  bool held() const {
    return leases != 0 || pins != 0 || io_tiers != 0 || state == BlockState::kFilling;
  }
};
static_assert(sizeof(BlockEntry) == 128);

struct NewBlock {
  BlockName name{};
  Key parent{};           // The key before it in its chain; the root's for position 0.
  uint32_t position = 0;  // Which block of the chain it is.
  uint16_t layout = 0;
  BlockState state = BlockState::kFilling;  // Or kResident, for what a tier recovered.
  uint32_t expiry_unix_seconds = 0;
  Checksum checksum{};
  uint64_t engine_hash = 0;
  int64_t now_nanos = 0;
};

struct MatchQuery {
  uint16_t tenant = 0;
  uint16_t group = 0;
  uint16_t part = 0;
  uint8_t tiers = 0xFF;  // TierBit() of the tiers that count.
  std::span<const Key> chain{};
  size_t from = 0;
  size_t max_steps = 0;       // At most so many keys: 512 take well under 100 us.
  uint32_t unix_seconds = 0;  // Blocks that expired by then end the run.
};

enum class MatchEnd : uint8_t {
  kChainEnd,  // The whole chain matched.
  kSlice,     // max_steps were taken; go on at from + matched.
  kMissing,   // The next key is not there, or in none of the wanted tiers.
  kFilling,   // The next key is being filled.
  kExpired,   // The next block is past its expiry.
};

struct MatchResult {
  size_t matched = 0;
  MatchEnd end = MatchEnd::kMissing;
  BlockRef stopped_at = kNoBlock;  // The entry that ended the run, where there is one.
};

struct IndexOptions {
  // Entries of any kind, placeholders included, of which there is one for each chain root and for
  // each missing parent. Address space and the table are taken for this many at the start.
  uint32_t max_blocks = 0;
  // Mixed into every hash, so that no client can choose keys that collide. Random in production.
  uint64_t hash_seed = 0;
  TaskMeter* meter = nullptr;  // Counts the entries that are looked at; may be null.
};

class Index {
 public:
  // kInvalid: max_blocks is zero or does not fit a BlockRef. kNoSpace: no memory.
  static Result<std::unique_ptr<Index>> Create(const IndexOptions& options);
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // Filling and resident entries alike; kNoBlock when there is none.
  BlockRef Find(const BlockName& name) const;

  // Find() for many keys of one tenant, group and part, with the memory latencies overlapped.
  // `refs` is as long as `keys`; kNoBlock marks what is not there. Any order. Not cut: give at most
  // 512 keys a call.
  void FindMany(uint16_t tenant, uint16_t group, uint16_t part, std::span<const Key> keys,
                std::span<BlockRef> refs) const;

  // The longest run of readable blocks from `from` on: resident, in one of the wanted tiers, not
  // expired. Writes their refs to the front of `refs`, which has room for the slice.
  MatchResult Match(const MatchQuery& query, std::span<BlockRef> refs) const;

  // Adds a block that Find() does not find, below its parent. kNoSpace: max_blocks are taken (a
  // missing parent takes one more). kInvalid: the position does not follow from the parent's or
  // the children's, which also keeps hostile parents from making a cycle. kBusy: a retired entry
  // of this name is still held and has too many children to hand over at once.
  Result<BlockRef> Insert(const NewBlock& block);

  // Makes the block unfindable while its slot is still read or written. It is in no tier any more;
  // SetResident() said so. The name may be inserted again at once. Remove() it when nothing holds
  // it.
  void Retire(BlockRef ref);

  // Forgets the block. It is in no tier, not leased, not pinned and not under I/O. Its children
  // keep its key as their parent's.
  void Remove(BlockRef ref);

  // kFilling to kResident.
  void SetComplete(BlockRef ref, const Checksum& checksum);
  // Other bytes are right for the block, too, and those count now.
  void SetChecksum(BlockRef ref, const Checksum& checksum) { Mutable(ref).checksum = checksum; }

  // Returns the parent if this made it a leaf of the tier or stopped it being one, else kNoBlock.
  // Only counted tiers have leaves. Saying what is so already changes nothing.
  BlockRef SetResident(BlockRef ref, uint8_t tier, bool resident);

  // A leaf of a counted tier has no child there. Evicting leaves only keeps every tier
  // prefix-closed.
  bool IsLeaf(BlockRef ref, uint8_t tier) const { return at(ref).children_in[tier] == 0; }

  // False: 65 535 leases are out already.
  [[nodiscard]] bool Lease(BlockRef ref);
  // Returns how many are left.
  uint32_t Unlease(BlockRef ref);
  [[nodiscard]] bool Pin(BlockRef ref);
  uint32_t Unpin(BlockRef ref);
  void SetIo(BlockRef ref, uint8_t tier, bool busy);

  void SetSlot(BlockRef ref, uint32_t slot) { Mutable(ref).slot = slot; }
  void SetExpiry(BlockRef ref, uint32_t unix_seconds) {
    Mutable(ref).expiry_unix_seconds = unix_seconds;
  }
  void SetFlags(BlockRef ref, uint8_t set, uint8_t clear = 0) {
    BlockEntry& entry = Mutable(ref);
    entry.flags = static_cast<uint8_t>((entry.flags & ~clear) | set);
  }
  void SetOwnerData(BlockRef ref, uint32_t data) { Mutable(ref).owner_data = data; }
  // Counts a use.
  void Touch(BlockRef ref, int64_t now_nanos);

  // Filling, resident or gone.
  const BlockEntry& at(BlockRef ref) const;
  bool Exists(BlockRef ref) const { return ref < limit_ && IsBlock(slab_[ref].state); }

  // kNoBlock when the parent is a root or missing.
  BlockRef Parent(BlockRef ref) const;
  // The same whether or not the parent is there. All zero for a gone block whose name was inserted
  // again, which has left its chain.
  Key ParentKey(BlockRef ref) const;
  // Children are visited by at(child).next_sibling, newest first.
  BlockRef FirstChild(BlockRef ref) const { return at(ref).first_child; }
  // The same for a name that may be a root or a missing parent.
  BlockRef FirstChildOf(const BlockName& name) const;

  // Every ref is below this: for sweeps that are cut in slices.
  BlockRef ref_limit() const { return limit_; }
  // Examines up to `max_steps` entries from `*cursor` on, writes those resident and expired to
  // `refs` and returns how many; stops early when `refs` is full. `*cursor` ends where the next
  // slice begins: 0 after the last.
  size_t CollectExpired(uint32_t unix_seconds, size_t max_steps, BlockRef* cursor,
                        std::span<BlockRef> refs) const;

  uint32_t size() const { return blocks_; }
  uint32_t placeholders() const { return placeholders_; }
  uint32_t max_blocks() const { return max_blocks_; }
  // Insert() can still take so many blocks at the least.
  uint32_t room() const { return (max_blocks_ - blocks_ - placeholders_) / 2; }
  // Memory in use: the table, and the slab up to the highest ref ever given out.
  uint64_t bytes() const;

  // Walks everything and aborts on the first thing that does not fit. For tests.
  void CheckConsistency() const;

 private:
  struct FreeMemory {
    void operator()(void* memory) const;
  };

  explicit Index(const IndexOptions& options);

  static bool IsBlock(BlockState state) { return state >= BlockState::kFilling; }
  static bool IsFindable(BlockState state) {
    return state == BlockState::kFilling || state == BlockState::kResident;
  }

  BlockEntry& Mutable(BlockRef ref);
  uint64_t HashOf(uint16_t tenant, uint16_t group, uint16_t part, const Key& key) const;
  uint64_t HashOf(const BlockEntry& entry) const;
  // The entry of any kind in the table under that name, placeholders included.
  BlockRef Lookup(uint64_t hash, uint16_t tenant, uint16_t group, uint16_t part,
                  const Key& key) const;
  BlockRef Lookup(const BlockName& name) const;
  // Calls `visit(i, Lookup(keys[i]))` in order, until it returns false.
  template <class Visit>
  void LookupMany(uint16_t tenant, uint16_t group, uint16_t part, std::span<const Key> keys,
                  Visit visit) const;

  BlockRef TakeEntry();
  void FreeEntry(BlockRef ref);
  void Link(BlockRef ref, BlockRef parent);
  // Also frees the parent when it is a placeholder and this was its last child.
  void Unlink(BlockRef ref);
  BlockRef AddPlaceholder(const NewBlock& child);
  // `gone` leaves table and chain to `ref`, which takes over its children.
  void HandOver(BlockRef gone, BlockRef ref);

  const uint32_t max_blocks_;
  TaskMeter unmetered_;
  TaskMeter* const meter_;
  std::array<uint64_t, 6> seeds_;
  BlockTable table_;
  std::unique_ptr<void, FreeMemory> slab_memory_;
  BlockEntry* const slab_;    // Room for max_blocks_, in slab_memory_; untouched from limit_ on.
  uint32_t limit_ = 0;        // Entries below it have been used at least once.
  BlockRef free_ = kNoBlock;  // Entries below it that are free again, through next_sibling.
  uint32_t blocks_ = 0;
  uint32_t placeholders_ = 0;
};

}  // namespace aquifer
