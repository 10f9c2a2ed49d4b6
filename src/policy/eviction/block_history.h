// What a learning order remembers of blocks: those that its tier has, and the ghosts of others that
// it had or was asked for, by name, in the order in which they were last used.
//
// One list from the newest to the oldest serves three ends: every age bucket is a stretch of it, so
// that growing older is moving a border; its newest part, as many bytes as the tier has, is
// exactly what plain leaf-first LRU would hold now (a request's blocks are used tail first, so
// whatever is last in the list is a leaf); and two blocks can be compared by their last use.
//
// Nothing here takes long at once: memory grows by chunks that are never copied, and the hash table
// by one of its slots at a time. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/eviction/reuse_model.h"

namespace aquifer {

inline constexpr uint32_t kNoRecord = UINT32_MAX;

struct BlockRecord {
  uint64_t name = 0;
  int64_t used_nanos = 0;  // No two have the same.
  uint32_t newer = kNoRecord;
  uint32_t older = kNoRecord;
  uint32_t hash_next = kNoRecord;
  uint32_t ref = kNoRecord;  // kNoRecord: a ghost.
  uint32_t tokens = 0;       // Of the last request that used it, with its answer.
  uint16_t full_blocks = 0;  // Of the same.
  uint16_t pages = 1;        // Of 4 KiB; what is larger than 256 MiB counts as that.
  BlockClass block_class{};
  uint8_t bucket = 0;
  uint8_t touches = 0;
  uint8_t children = 0;
  uint8_t turn : 6 = 0;
  bool in_recent : 1 = false;  // LRU would have it.
  bool evicted : 1 = false;    // The tier had it after it was last asked for.

  bool ghost() const { return ref == kNoRecord; }
  // The tier has given up what LRU would still have.
  bool missed() const { return in_recent && evicted && ghost(); }
};
static_assert(sizeof(BlockRecord) == 56);

class BlockHistory {
 public:
  // Sizes are counted in these; a block whose size is not known is one.
  static constexpr uint64_t kPageBytes = 4096;

  BlockHistory();

  BlockRecord& at(uint32_t record) { return chunks_[record / kChunk][record % kChunk]; }
  const BlockRecord& at(uint32_t record) const { return chunks_[record / kChunk][record % kChunk]; }

  uint32_t Find(uint64_t name) const;
  // Used now. The name is not known yet; 0 is never found again. `bytes` may be unknown, 0.
  uint32_t Add(uint64_t name, uint64_t bytes, int64_t now_nanos);
  void Remove(uint32_t record);
  // Moves it to the front of the list; its bucket is the first.
  void Use(uint32_t record, int64_t now_nanos);
  // The same, and it is asked for.
  void Ask(uint32_t record, int64_t now_nanos);

  // The next record that has outgrown its bucket, which is then the one above; kNoRecord: none.
  uint32_t GrowOlder(int64_t now_nanos);

  // A new record is a ghost.
  void NoteGhost(uint32_t record);
  // The tier has the block of a ghost now, as `ref`.
  void Admit(uint32_t record, uint32_t ref);
  // It has it no longer: a ghost again.
  void GiveUp(uint32_t record);
  // The ghost used longest ago. kNoRecord: none was found so soon; ask again.
  uint32_t OldestGhost();

  // How much LRU would have. What is far off is made right by and by: a few hundred blocks a call.
  // How many missed blocks LRU would not have any more either.
  uint64_t SetRecent(uint64_t pages);
  // Of what LRU would give up next; 0: there is nothing.
  int64_t oldest_recent_age_nanos() const {
    return oldest_recent_ == kNoRecord ? 0 : last_used_nanos_ - at(oldest_recent_).used_nanos;
  }
  uint64_t missed_blocks() const { return missed_blocks_; }

  // When anything was used last.
  int64_t latest_nanos() const { return last_used_nanos_; }
  uint32_t size() const { return size_; }
  uint64_t bytes() const;

 private:
  static constexpr uint32_t kChunk = 256;
  static constexpr uint32_t kHashChunk = 1024;

  uint32_t& slot(uint32_t index) { return hash_[index / kHashChunk][index % kHashChunk]; }
  uint32_t SlotOf(uint64_t name) const;
  void SplitSlot();
  void Link(uint32_t record, int64_t now_nanos);
  void Unlink(uint32_t record);

  std::vector<std::unique_ptr<BlockRecord[]>> chunks_;
  std::vector<std::unique_ptr<uint32_t[]>> hash_;  // Linear hashing: slots split one by one.
  uint32_t slots_ = kHashChunk;
  uint32_t slots_before_ = kHashChunk;  // A power of two, at most slots_.
  uint32_t free_ = kNoRecord;
  uint32_t used_chunks_end_ = 0;
  uint32_t size_ = 0;
  uint32_t newest_ = kNoRecord;
  std::array<uint32_t, kAgeBuckets> oldest_in_;
  uint8_t growing_ = 0;  // The bucket that GrowOlder() looks at.
  uint64_t recent_pages_ = 0;
  uint32_t oldest_recent_ = kNoRecord;
  uint64_t missed_blocks_ = 0;
  uint32_t ghost_cursor_ = kNoRecord;  // No ghost is older.
  int64_t last_used_nanos_ = INT64_MIN;
};

}  // namespace aquifer
