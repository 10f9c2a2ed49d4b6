#include "policy/eviction/takeover.h"

#include <algorithm>
#include <cmath>

namespace aquifer {
namespace {

// By so many blocks it may be behind: a few at first, when one cannot lose more than these without
// losing a tenth of a percent; and a part of what was asked for since it decides.
constexpr double kFirstBlocks = 16;
constexpr double kMostBlocks = 48;
constexpr double kBehindPart = 0.0003;
constexpr double kStayBlocks = 8192;  // That are asked for.
// By so much longer than the last time: where that much was lost, and where it was only feared.
constexpr double kStayFactor = 4;
constexpr double kFearedStayFactor = 2;
constexpr double kMaxStayBlocks = 1 << 22;
constexpr double kHorizonBlocks = 1 << 20;  // What was longer ago counts half.
constexpr double kLeastOutcomes = 64;       // Before they say anything.
constexpr double kMostOutcomes = 4096;
// Of missed blocks of which nothing is known. With none, a loop that LRU would have held was lost
// by nine points, and now by less than one; with more, hints that are mostly right gain less.
constexpr double kUnknownPart = 0.08;

}  // namespace

void Takeover::Outcomes::Add(double more_asked, double more_not_asked) {
  asked += more_asked;
  not_asked += more_not_asked;
  ever += more_asked + more_not_asked;
  if (asked + not_asked <= kMostOutcomes) return;
  asked /= 2;
  not_asked /= 2;
}

double Takeover::ToCome(uint64_t missed) const {
  const auto all = static_cast<double>(missed);
  const double known = std::min(missed_.ever, all);
  double part = 0;
  if (std::min(missed_.count(), extra_.count()) >= kLeastOutcomes) {
    part = std::max(missed_.PartAsked() - extra_.PartAsked(), 0.0);
  }
  return part * known + kUnknownPart * (all - known);
}

void Takeover::NoteRequest(uint32_t blocks, double hits, double lru_hits, uint64_t missed,
                           bool uneven) {
  asked_ever_ += blocks;
  if (lru_decides_) return NoteRepeated(blocks);
  asked_ += blocks;
  behind_ += lru_hits - hits;
  if (uneven) squares_ += (lru_hits - hits) * (lru_hits - hits);
  // One standard deviation of such steps, were each as likely ahead as behind.
  const double chance = std::sqrt(squares_);
  const double allowed = std::min(kFirstBlocks + kBehindPart * asked_ever_, kMostBlocks) + chance;
  if (behind_ + ToCome(missed) > allowed + kBehindPart * asked_) {
    const bool lost = behind_ > allowed / 2;
    stay_ =
        std::clamp(stay_ * (lost ? kStayFactor : kFearedStayFactor), kStayBlocks, kMaxStayBlocks);
    ++times_;
    Decide(true);
  } else if (asked_ > kHorizonBlocks) {
    asked_ /= 2;
    behind_ /= 2;
    squares_ /= 4;
    stay_ = 0;
  }
}

void Takeover::NoteRepeated(uint32_t blocks) {
  if (!lru_decides_) return;
  asked_ += blocks;
  if (asked_ >= stay_) Decide(false);
}

void Takeover::Decide(bool lru) {
  lru_decides_ = lru;
  asked_ = 0;
  behind_ = 0;
  squares_ = 0;
}

}  // namespace aquifer
