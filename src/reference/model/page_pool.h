// PagePool says which sequence has which pages of KV. When a sequence ends, its complete blocks are
// kept under their keys until their pages are needed. The next turn of a conversation finds them
// without asking the cache. It knows nothing of bytes. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "aquifer/key.h"

namespace aquifer::reference {

// The pages of one sequence, in order.
struct PageTable {
  std::vector<uint32_t> pages;
  // For each block: true if the pool knows it under its key, perhaps with other users. Other blocks
  // are the sequence's own.
  std::vector<bool> shared;
};

class PagePool {
 public:
  PagePool(uint32_t pages, uint32_t pages_per_block);

  uint32_t total() const { return total_; }
  // Pages without a user, including those of kept blocks.
  size_t available() const { return free_.size() + kept_.size() * pages_per_block_; }

  // How many of these blocks the pool has, from the first on.
  size_t Count(std::span<const Key> keys) const;
  // Adds the blocks that the pool has, from the first on, to an empty table. Returns how many.
  size_t Adopt(std::span<const Key> keys, PageTable* table);
  // Grows the table to so many pages. Returns false, and takes nothing, if there are too few.
  bool Grow(size_t pages, PageTable* table);
  // Publishes a complete block of the table under `key`. Returns false if another sequence has
  // published it already: this sequence's pages then go with it.
  bool Publish(const Key& key, size_t block, PageTable* table);
  // Gives all pages back. `keys` name the table's blocks.
  void Release(std::span<const Key> keys, PageTable* table);

  // Keeps a published block while it is being copied.
  void Hold(const Key& key);
  void LetGo(const Key& key);

  uint64_t evicted_blocks() const { return evicted_blocks_; }

 private:
  struct Block {
    std::vector<uint32_t> pages;
    size_t users = 0;
    std::list<Key>::iterator kept;  // Valid while the block has no users.
  };

  void EvictOldest();

  const uint32_t total_;
  const uint32_t pages_per_block_;
  std::vector<uint32_t> free_;
  std::map<Key, Block> blocks_;
  std::list<Key> kept_;  // Blocks without users, the most recently used one last.
  uint64_t evicted_blocks_ = 0;
};

}  // namespace aquifer::reference
