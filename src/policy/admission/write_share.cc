#include "policy/admission/write_share.h"

#include <algorithm>
#include <cmath>

namespace aquifer {
namespace {

constexpr uint8_t kThriftyRank = static_cast<uint8_t>(0.38 * WriteShare::kRanks);
constexpr uint8_t kUsualRank = static_cast<uint8_t>(0.7 * WriteShare::kRanks);
// Of what is asked for.
constexpr double kHardlyLost = 0.0001;
constexpr double kLittleLost = 0.005;
constexpr double kOneBlock = 1;  // Or what is left of more that were long ago.
// What is left unwritten leaves room for others: this much of what would be lost stays lost. With
// 0.5 and more, loads that gain by the usual part had everything written.
constexpr double kStaysLost = 0.25;
constexpr double kLeastTurnover = 2000;
constexpr double kFirstRank = 1000;            // Among fewer a rank says little.
constexpr double kTurnoversRemembered = 2;     // What was longer ago counts half.
constexpr double kOffersRemembered = 1 << 15;  // The same.

// In sixteenths of a logit around one half: steps of a quarter took a third of all blocks for
// alike.
size_t LikelihoodOf(double probability, size_t count) {
  constexpr double kPerLogit = 16;
  constexpr double kLeast = 1e-9;
  const double likely = std::clamp(probability, kLeast, 1 - kLeast);
  const double middle = static_cast<double>(count) / 2;
  const double step = middle + std::round(kPerLogit * std::log(likely / (1 - likely)));
  return static_cast<size_t>(std::clamp(step, 0.0, static_cast<double>(count - 1)));
}

}  // namespace

WriteShare::WriteShare(uint64_t tier_blocks)
    : turnover_(std::max(static_cast<double>(tier_blocks), kLeastTurnover)),
      written_ranks_(kUsualRank) {}

uint8_t WriteShare::Rank(double reuse_probability) {
  const size_t likelihood = LikelihoodOf(reuse_probability, kLikelihoods);
  // Blocks that are alike have one rank, the last that one of them could have: they are written
  // together or not at all.
  offered_by_[likelihood] += 1;
  offered_ += 1;
  double within = 0;
  for (size_t i = likelihood; i < kLikelihoods; ++i) within += offered_by_[i];
  const double rank = std::ceil(within / offered_ * kRanks);
  if (offered_ > kOffersRemembered) {
    offered_ /= 2;
    for (double& offered : offered_by_) offered /= 2;
  }
  since_ += 1;
  if (since_ >= turnover_) knows_ = true;
  if (!knows_ && since_ < kFirstRank) return 0;
  return static_cast<uint8_t>(std::min<double>(rank, kRanks));
}

void WriteShare::NoteRequest(const Request& request) {
  asked_ += static_cast<double>(request.blocks);
  ahead_ += static_cast<double>(request.hits) - static_cast<double>(request.lru_hits);
  uint8_t takes = 0;  // To have the chain so far.
  for (uint64_t i = 0; i < request.lru_hits; ++i) {
    takes = std::max(takes, request.rank(i));
    if (i >= request.hits) {
      if (Writes(takes)) break;  // Missed for another reason.
      missed_ += 1;
    }
    lost_[takes] += 1;
  }
  if (!knows_) return;
  Decide();
  if (since_ < kTurnoversRemembered * turnover_) return;
  for (double* const each : {&since_, &asked_, &ahead_, &missed_}) *each /= 2;
  for (double& lost : lost_) lost /= 2;
}

void WriteShare::Decide() {
  std::array<double, kRanks + 1> lost{};  // By the last rank that is written.
  for (uint8_t rank = kRanks; rank > 0; --rank) lost[rank - 1] = lost[rank] + lost_[rank];
  const auto least_for = [&lost](double most) {
    const auto* const found = std::ranges::find_if(lost, [&](double each) { return each <= most; });
    return static_cast<uint8_t>(found - lost.begin());
  };
  const double hardly = std::max(kHardlyLost * asked_, kOneBlock);
  const double to_spend = std::max(ahead_ + missed_, kOneBlock);  // By so much it could be ahead.
  const uint8_t enough = least_for(std::min(hardly, to_spend));
  if (lost[kThriftyRank] <= kLittleLost * asked_) {
    written_ranks_ = std::min(least_for(hardly), kThriftyRank);
  } else if (enough <= kUsualRank || (ahead_ >= 0 && to_spend >= kStaysLost * lost[kUsualRank])) {
    written_ranks_ = kUsualRank;
  } else {
    written_ranks_ = enough;
  }
}

}  // namespace aquifer
