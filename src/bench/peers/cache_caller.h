// A cache whose calls wait for their answers, for commands that have nothing else to do meanwhile.
// An answer that means "not kept" or "recompute" to an engine is tried again, or is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"

namespace aquifer {

// A chain of made-up tokens, the same for the same name.
struct NamedChain {
  Key root;
  std::vector<Key> keys;

  // The key before keys[first].
  const Key& ParentOf(size_t first) const { return first == 0 ? root : keys[first - 1]; }
};

Result<NamedChain> MakeChain(const Layout& layout, std::string_view tenant, std::string_view name,
                             size_t blocks);

// Writes block `block` of a chain into its slot and returns the sums over it.
using FillBlock = std::function<LaneSums(size_t block, std::span<std::byte> slot)>;

class CacheCaller {
 public:
  static Result<std::unique_ptr<CacheCaller>> Open(const CacheOptions& options,
                                                   const Layout& layout);
  // Over a cache that there is already.
  static Result<std::unique_ptr<CacheCaller>> New(std::unique_ptr<Cache> cache,
                                                  const Layout& layout);

  Cache* cache() { return cache_.get(); }
  LayoutHandle layout() const { return layout_; }

  ChainSlice Slice(std::span<const Key> keys) const {
    return {.layout = layout_, .group = 0, .part = 0, .keys = keys};
  }

  // Reserves, fills and commits the whole chain, in batches. Waits for memory where an engine would
  // go on without; kLate when none comes. Returns how many blocks were not there already.
  Result<size_t> Store(const NamedChain& chain, const FillBlock& fill);

  // Reserves, and tries again until every key of the request has a slot.
  Status ReserveSlots(ReserveRequest* request);
  // The same for a request that Reserve() was called with already.
  Status FinishSlots(ReserveRequest* request);

  // Until all of the pool is faulted in, or no more of it can be had.
  Status WaitForPool();

  Status Flush();
  Status EvictEverything();
  Result<CacheStats> Stats();

  // Waits for an answer and gives the request's own status; kLate after a minute.
  Status Finish(const Request& request);

 private:
  CacheCaller(std::unique_ptr<Cache> cache, LayoutHandle layout)
      : cache_(std::move(cache)), layout_(layout) {}

  // Fills and commits what of `reserve_` was given; `first` is the block of its first key. Appends
  // what was refused to `refused`.
  Result<size_t> FillReserved(size_t first, const FillBlock& fill, std::vector<size_t>* refused);

  const std::unique_ptr<Cache> cache_;
  const LayoutHandle layout_;
  ReserveRequest reserve_;
  CommitRequest commit_;
};

}  // namespace aquifer
