// An engine as tests need it: one client with one layout, whose calls wait for their answers. It
// stores chains with bytes that follow from their keys, and looks at every byte that it recalls.
//
// An answer that never comes ends the process: the request could not be destroyed safely.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "testing/chain.h"

namespace aquifer {

// Which blocks of a chain; all of them unless it says otherwise.
struct BlockRange {
  size_t first = 0;
  size_t count = SIZE_MAX;
  uint16_t group = 0;
  uint16_t part = 0;
};

// The outcome of a fetch, by blocks.
struct Recalled {
  size_t right = 0;
  size_t missed = 0;
  size_t late = 0;
  size_t corrupt = 0;
  size_t failed = 0;  // With any other code.
  size_t wrong = 0;   // Served, but not what was stored. The one thing that must never be.

  friend bool operator==(const Recalled&, const Recalled&) = default;
};
std::ostream& operator<<(std::ostream& out, const Recalled& recalled);

// For GoogleTest's messages.
void PrintTo(Code code, std::ostream* out);
void PrintTo(Refusal refusal, std::ostream* out);

class TestEngine {
 public:
  // The cache outlives the engine.
  TestEngine(Cache* cache, const Layout& layout);

  Cache* cache() const { return cache_; }
  LayoutHandle handle() const { return handle_; }
  const Layout& layout() const { return layout_; }
  // Refers to the chain.
  ChainSlice Slice(const Chain& chain, const BlockRange& range = {}) const;
  ChainSlice Slice(Chain&& chain, const BlockRange& range = {}) const = delete;

  // Waits for what was submitted.
  void Finish(const Request& request) const;
  // Asks again until it holds, for at most `seconds`; false if it never did.
  bool Eventually(const std::function<bool()>& holds, int seconds = 30) const;

  // Submits, and asks again while memory is being prepared.
  std::unique_ptr<ReserveRequest> Reserve(const Chain& chain, const BlockRange& range = {});
  // Fills the slots that were given and commits them.
  std::unique_ptr<CommitRequest> FillAndCommit(const Chain& chain, const BlockRange& range,
                                               const ReserveRequest& reserve);
  // Returns how many blocks are there afterwards.
  size_t Store(const Chain& chain, const BlockRange& range = {});
  // The same for more than DRAM may hold: where there is no room, it waits for write-down.
  size_t StorePatiently(const Chain& chain, const BlockRange& range = {});

  std::unique_ptr<MatchRequest> Match(const Chain& chain, const BlockRange& range = {},
                                      size_t have = 0);
  size_t Matched(const Chain& chain, const BlockRange& range = {}) {
    return Match(chain, range)->matched;
  }
  std::unique_ptr<FetchRequest> Fetch(const Chain& chain, const BlockRange& range = {},
                                      int64_t timeout_nanos = 30 * kDefaultTimeoutNanos);
  // Looks at what was fetched, and gives it back.
  Recalled CheckAndRelease(const Chain& chain, const BlockRange& range, const FetchRequest& fetch);
  // Fetches piece by piece, so that a chain may be larger than DRAM.
  Recalled Recall(const Chain& chain, const BlockRange& range = {});

  Status Flush(int64_t timeout_nanos = 60 * kDefaultTimeoutNanos);
  size_t Pin(const Chain& chain, int64_t seconds, const BlockRange& range = {});
  std::unique_ptr<PrestageRequest> Prestage(const Chain& chain, const BlockRange& range = {});
  std::unique_ptr<PrestageRequest> PrestageSession(const std::string& session);
  std::unique_ptr<EvictRequest> Evict(const Chain& chain, const BlockRange& range = {});
  std::unique_ptr<EvictRequest> EvictSession(const std::string& session);
  std::unique_ptr<EvictRequest> EvictEverything();
  std::unique_ptr<DrainRequest> Drain();
  void NameSession(const std::string& session, const Chain& chain, int64_t ttl_seconds = 0);
  void Release(const FetchRequest& fetch);

  CacheStats Stats();
  uint64_t Counter(std::string_view name) { return Stats().Counter(name); }
  // All zero when there is no such tier.
  TierStats StatsOf(TierKind tier);

 private:
  // As many blocks as fit into a few MiB: far less than any pool.
  size_t BatchBlocks(uint16_t group) const;
  size_t StoreOnce(const Chain& chain, const BlockRange& range);

  Cache* const cache_;
  const Layout layout_;
  LayoutHandle handle_ = 0;
};

}  // namespace aquifer
