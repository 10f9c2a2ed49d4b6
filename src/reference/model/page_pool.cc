#include "reference/model/page_pool.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace aquifer::reference {

PagePool::PagePool(uint32_t pages, uint32_t pages_per_block)
    : total_(pages), pages_per_block_(pages_per_block) {
  for (uint32_t page = pages; page-- > 0;) free_.push_back(page);
}

size_t PagePool::Count(std::span<const Key> keys) const {
  size_t count = 0;
  while (count < keys.size() && blocks_.contains(keys[count])) ++count;
  return count;
}

size_t PagePool::Adopt(std::span<const Key> keys, PageTable* table) {
  AQ_CHECK(table->pages.empty());
  const size_t taken = Count(keys);
  for (const Key& key : keys.first(taken)) {
    Hold(key);
    const std::vector<uint32_t>& pages = blocks_.at(key).pages;
    table->pages.insert(table->pages.end(), pages.begin(), pages.end());
    table->shared.push_back(true);
  }
  return taken;
}

bool PagePool::Grow(size_t pages, PageTable* table) {
  if (pages <= table->pages.size()) return true;
  const size_t missing = pages - table->pages.size();
  if (missing > available()) return false;
  while (free_.size() < missing) EvictOldest();
  for (size_t i = 0; i < missing; ++i) {
    table->pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PagePool::EvictOldest() {
  const auto found = blocks_.find(kept_.front());
  free_.insert(free_.end(), found->second.pages.begin(), found->second.pages.end());
  blocks_.erase(found);
  kept_.pop_front();
  ++evicted_blocks_;
}

bool PagePool::Publish(const Key& key, size_t block, PageTable* table) {
  if (table->shared.size() <= block) table->shared.resize(block + 1);
  if (table->shared[block]) return true;
  const auto first = table->pages.begin() + static_cast<ptrdiff_t>(block * pages_per_block_);
  const auto [entry, added] = blocks_.try_emplace(key);
  if (!added) return false;
  entry->second.pages.assign(first, first + pages_per_block_);
  entry->second.users = 1;
  table->shared[block] = true;
  return true;
}

void PagePool::Release(std::span<const Key> keys, PageTable* table) {
  // The last block goes first, so that the end of a chain is evicted before its beginning.
  for (size_t page = table->pages.size(); page-- > 0;) {
    const size_t block = page / pages_per_block_;
    if (block >= table->shared.size() || !table->shared[block]) {
      free_.push_back(table->pages[page]);
    } else if (page % pages_per_block_ == 0) {
      LetGo(keys[block]);
    }
  }
  *table = {};
}

void PagePool::Hold(const Key& key) {
  Block& block = blocks_.at(key);
  if (block.users++ == 0) kept_.erase(block.kept);
}

void PagePool::LetGo(const Key& key) {
  Block& block = blocks_.at(key);
  AQ_CHECK(block.users > 0);
  if (--block.users == 0) block.kept = kept_.insert(kept_.end(), key);
}

}  // namespace aquifer::reference
