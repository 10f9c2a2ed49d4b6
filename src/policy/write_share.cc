#include "policy/write_share.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr double kUsualPart = 0.7;
constexpr double kThriftyPart = 0.35;
// Behind by the one part of what is asked for, more is written; by the other, everything.
constexpr double kLittleBehind = 0.001;
constexpr double kMostBehind = 0.004;
constexpr double kHorizonBlocks = 1 << 20;  // What was longer ago counts half.
// Left unwritten and missed, as a part of what is asked for.
constexpr double kFewUnwritten = 0.002;
constexpr double kManyUnwritten = 0.004;
constexpr double kFirstUnwritten = 32;  // Blocks, before they say anything.
constexpr double kFirstWait = 6000;     // Blocks that are asked for.
constexpr double kWaitFactor = 8;

}  // namespace

double WriteShare::part() const { return thrifty_ ? kThriftyPart : kUsualPart; }

double WriteShare::eagerness() const {
  const double behind = behind_ / std::max(asked_, kFirstWait);
  return std::clamp((behind - kLittleBehind) / (kMostBehind - kLittleBehind), 0.0, 1.0);
}

void WriteShare::NoteRequest(const Request& request) {
  const auto blocks = static_cast<double>(request.blocks);
  const double lost = static_cast<double>(request.lru_hits) - static_cast<double>(request.hits);
  asked_ += blocks;
  behind_ += lost;
  since_ += blocks;
  if (request.unwritten) unwritten_ += std::max(lost, 0.0);
  if (asked_ > kHorizonBlocks) {
    asked_ /= 2;
    behind_ /= 2;
  }
  if (thrifty_) {
    if (unwritten_ <= kFirstUnwritten + kManyUnwritten * since_) return;
    wait_ *= kWaitFactor;
    SetThrifty(false);
  } else if (since_ >= std::max(wait_, kFirstWait)) {
    wait_ = std::max(wait_, kFirstWait);
    if (unwritten_ < kFewUnwritten * since_) return SetThrifty(true);
    since_ /= 2;
    unwritten_ /= 2;
  }
}

void WriteShare::SetThrifty(bool thrifty) {
  thrifty_ = thrifty;
  since_ = 0;
  unwritten_ = 0;
}

}  // namespace aquifer
