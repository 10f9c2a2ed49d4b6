// Which of the blocks that leave a tier are worth a write to the one below, whose drive wears out
// by the write. A block's *rank* tells how large a part of what leaves is at least as likely to
// return; what ranks within the part that is to be written, is. How large that is follows from what
// would have been missed with less: when a block is asked for again, its rank tells with which
// parts it, and all behind it in its chain, would have been left unwritten. So no part has to be
// tried out to know what it loses against LRU, which writes everything.
//
// Where a thrifty part loses little, the least one is written that loses hardly anything, or all of
// the thrifty one. Else it is the usual part, as long as there are as many hits as LRU has; and
// else what it takes to lose hardly anything. Until the lower tier has turned over once, which is
// when LRU misses what it did not write, nothing is known, and everything is written.
//
// Pure numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace aquifer {

class WriteShare {
 public:
  // Ranks are from 1, the likeliest to return, to this; 0 is none.
  static constexpr uint8_t kRanks = 64;

  // Blocks that the lower tier has room for.
  explicit WriteShare(uint64_t tier_blocks);

  // For each block as it leaves, if it is not below yet; 0 for the first ones.
  uint8_t Rank(double reuse_probability);
  bool Writes(uint8_t rank) const { return !knows_ || rank <= written_ranks_; }

  struct Request {
    uint64_t blocks = 0;
    uint64_t hits = 0;
    uint64_t lru_hits = 0;
    // The rank of a block that left since it was asked for last; of others 0.
    std::function<uint8_t(uint64_t position)> rank;
  };
  void NoteRequest(const Request& request);

 private:
  static constexpr size_t kLikelihoods = 256;

  void Decide();

  const double turnover_;  // In blocks that are offered.
  bool knows_ = false;     // It turned over once.
  uint8_t written_ranks_;
  std::array<double, kLikelihoods> offered_by_{};  // By how likely they were to return.
  double offered_ = 0;
  // Of the last few turnovers:
  double since_ = 0;  // Blocks that were offered.
  double asked_ = 0;
  double ahead_ = 0;                       // Hits less LRU's.
  double missed_ = 0;                      // Of LRU's hits, for being unwritten.
  std::array<double, kRanks + 1> lost_{};  // LRU's hits that take such a rank to be written.
};

}  // namespace aquifer
