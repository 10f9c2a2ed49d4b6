// Which pages of KV are whose. Blocks that are complete are kept under their key when their
// sequence ends, for as long as nobody needs the pages: the next turn of a conversation finds them
// without asking the cache. Knows nothing of bytes. One thread.
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
  // By block: known in the pool under its key, perhaps used by others too. The rest is its own.
  std::vector<bool> shared;
};

class PagePool {
 public:
  PagePool(uint32_t pages, uint32_t pages_per_block);

  uint32_t total() const { return total_; }
  // Pages that nobody uses, blocks that are only kept included.
  size_t available() const { return free_.size() + kept_.size() * pages_per_block_; }

  // How many of these blocks are there, from the first on.
  size_t Count(std::span<const Key> keys) const;
  // Takes the blocks that are there, from the first on, for an empty table. Returns how many.
  size_t Adopt(std::span<const Key> keys, PageTable* table);
  // Until the table has so many pages. False: there are not as many, and nothing was taken.
  bool Grow(size_t pages, PageTable* table);
  // Block `block` of the table is complete, and `key` names it. False: another sequence has
  // computed it as well and its pages are kept; this one's go with their sequence.
  bool Publish(const Key& key, size_t block, PageTable* table);
  // Gives everything back. `keys` name the table's blocks.
  void Release(std::span<const Key> keys, PageTable* table);

  // Whoever still copies a published block holds on to it.
  void Hold(const Key& key);
  void LetGo(const Key& key);

  uint64_t evicted_blocks() const { return evicted_blocks_; }

 private:
  struct Block {
    std::vector<uint32_t> pages;
    size_t users = 0;
    std::list<Key>::iterator kept;  // Where there are no users.
  };

  void EvictOldest();

  const uint32_t total_;
  const uint32_t pages_per_block_;
  std::vector<uint32_t> free_;
  std::map<Key, Block> blocks_;
  std::list<Key> kept_;  // Blocks without users, the one used last at the end.
  uint64_t evicted_blocks_ = 0;
};

}  // namespace aquifer::reference
