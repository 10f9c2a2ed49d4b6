// The depth of every block in a stack of blocks ordered by last use (Mattson's stack distances): a
// cache that drops what was used longest ago and has room for C blocks holds exactly those whose
// depth is at most C. One pass over a trace therefore answers for every size at once.
//
// A request's blocks are touched from the last to the first, so that a chain's head lies above its
// tail: this is the product's order, in which only tails are dropped
// (policy/eviction/leaf_recency.h), and along a chain depths never fall.
//
// Past `max_tracked` blocks only those are followed whose hash is below a threshold, and the depth
// is scaled up (SHARDS, Waldspurger et al., FAST 2015); the threshold halves each time the limit is
// reached again. Up to there depths are exact. Memory: about 40 bytes a tracked block. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace aquifer {

struct LruStackOptions {
  size_t max_tracked = size_t{1} << 24;  // Blocks.
  uint32_t first_rate_shift = 0;         // Follow one block in 2^this from the start.
};

class LruStack {
 public:
  static constexpr double kNever = 1e300;   // Depth of a block that was not touched before.
  static constexpr double kUnsampled = -1;  // It is not followed: see its neighbours.

  explicit LruStack(const LruStackOptions& options);

  // The depth of each block now, counted from 1; `depths` gets as many as there are blocks.
  void Look(std::span<const uint64_t> blocks, std::vector<double>* depths) const;
  double Depth(uint64_t block) const;
  // Uses the blocks of one request; each keeps the tag until it is used again.
  void Touch(std::span<const uint64_t> blocks, uint32_t tag = 0);
  // Of whoever used the block last; 0 where it is not known.
  uint32_t Tag(uint64_t block) const;
  // The block `from` is known by the name `to` from now on, at the same depth. False, and nothing
  // happens, where `from` is unknown or `to` known already.
  bool Rename(uint64_t from, uint64_t to);

  // Follows one block in 2^shift from now on; never more than before.
  void FollowOneIn(uint32_t shift);

  bool exact() const { return rate_shift_ == 0; }
  uint32_t rate_shift() const { return rate_shift_; }
  size_t tracked() const { return live_; }
  double blocks() const { return Scaled(live_); }  // Distinct, estimated when not exact.
  size_t bytes() const;

 private:
  static constexpr uint64_t kEmpty = (uint64_t{1} << 44) - 1;
  struct Slot {
    uint64_t block = 0;
    uint64_t place : 44 = kEmpty;  // In time: when it was last used.
    uint64_t tag : 20 = 0;
  };
  static constexpr size_t kChunkBits = 512;

  static uint64_t HashOf(uint64_t block);
  bool IsFollowed(uint64_t hash) const { return hash >> (64 - rate_shift_) == 0; }
  double Scaled(size_t count) const;
  size_t FindSlot(uint64_t block, uint64_t hash) const;
  double DepthAt(uint64_t place) const;
  void TouchOne(uint64_t block, uint32_t tag);
  uint64_t NextPlace();
  void Mark(uint64_t place);
  void Clear(uint64_t place);
  size_t MarkedUpTo(uint64_t place) const;
  void AddToChunk(size_t chunk, int32_t change);
  void EraseSlot(size_t slot);
  void GrowTable();
  void Renumber();
  void HalveRate();

  LruStackOptions options_;
  uint32_t rate_shift_ = 0;
  std::vector<Slot> table_;  // Open addressing, at most half full.
  size_t live_ = 0;
  // One bit for each place in time; set where some block was last used.
  std::vector<uint64_t> marks_;
  std::vector<int32_t> chunk_sums_;  // A Fenwick tree over chunks of kChunkBits places.
  uint64_t next_place_ = 0;
};

}  // namespace aquifer
