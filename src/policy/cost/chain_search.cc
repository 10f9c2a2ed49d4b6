#include "policy/cost/chain_search.h"

#include <utility>

#include "base/check.h"

namespace aquifer {

ChainSearch::ChainSearch(size_t keys, size_t width) : width_(width), high_(keys) {
  AQ_CHECK(width >= 2);
  NextRound();
}

void ChainSearch::NextRound() {
  round_.clear();
  const size_t left = high_ - low_;
  const bool ends = std::exchange(first_, false);
  if (left <= width_) {
    for (size_t position = low_; position < high_; ++position) round_.push_back(position);
  } else if (ends) {
    // Most often there is all of it, or nothing: one round tells.
    for (size_t i = 0; i < width_; ++i) round_.push_back(i * (left - 1) / (width_ - 1));
  } else {
    for (size_t i = 1; i <= width_; ++i) round_.push_back(low_ + i * left / (width_ + 1));
  }
  there_.assign(round_.size(), false);
  open_ = round_.size();
}

bool ChainSearch::Answer(size_t i, bool there) {
  AQ_CHECK(open_ > 0);
  there_[i] = there;
  if (--open_ > 0) return false;
  EndRound();
  return true;
}

void ChainSearch::EndRound() {
  for (size_t i = 0; i < round_.size(); ++i) {
    if (!there_[i]) {
      high_ = round_[i];
      break;
    }
    low_ = round_[i] + 1;
  }
  NextRound();
}

}  // namespace aquifer
