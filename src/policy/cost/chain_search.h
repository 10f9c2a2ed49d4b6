// How far along a chain a tier goes that must be asked for every block. Prefixes are closed: what
// has a block has all before it. So a few blocks are asked for at once, and the next round looks
// between the last that was there and the first that was not: 16 at a time find the end of a chain
// of 4 000 in three rounds.
//
// Pure: it asks nobody. Whoever owns it asks, and tells the answers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace aquifer {

class ChainSearch {
 public:
  // At most `width`, at least 2, are asked for in a round.
  ChainSearch(size_t keys, size_t width);

  bool done() const { return round_.empty(); }
  // The positions to ask for now, rising. All of them are answered before there is another round.
  std::span<const size_t> round() const { return round_; }
  // The answer for round()[i], once each. A store that drops blocks may have one behind a gap: it
  // does not count. True: that was the last of the round.
  bool Answer(size_t i, bool there);

  // So many are there from the front; final when it is done.
  size_t found() const { return low_; }

 private:
  void EndRound();
  void NextRound();

  const size_t width_;
  size_t low_ = 0;   // Everything before it is there.
  size_t high_ = 0;  // Nothing from here on is.
  bool first_ = true;
  std::vector<size_t> round_;
  std::vector<bool> there_;  // By place in the round.
  size_t open_ = 0;          // Of the round, not answered yet.
};

}  // namespace aquifer
