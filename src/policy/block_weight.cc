#include "policy/block_weight.h"

#include <algorithm>
#include <cmath>

namespace aquifer {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kMaxClass = 60;  // A thousand million times the usual.
// Beside the mean: 16 times, so that two of one owner may be 256 times apart.
constexpr double kMaxAboveMean = 8;
constexpr uint32_t kMeanBlocks = 1 << 16;  // As many blocks make a mean.

}  // namespace

WeightClass WeightClassOf(double saved_ms, uint64_t bytes) {
  if (!(saved_ms > 0) || bytes == 0) return kUnknownWeight;
  const double halves = 2 * std::log2(saved_ms * kMiB / static_cast<double>(bytes));
  return static_cast<WeightClass>(std::lround(std::clamp(halves, -kMaxClass, kMaxClass)));
}

BlockWeights::Mean& BlockWeights::MeanOf(uint16_t owner) {
  if (means_.size() <= owner) means_.resize(size_t{owner} + 1);
  return means_[owner];
}

void BlockWeights::Note(uint16_t owner, WeightClass weight) {
  if (weight == kUnknownWeight) return;
  Mean& mean = MeanOf(owner);
  mean.known = std::min(mean.known + 1, kMeanBlocks);
  mean.weight += (weight - mean.weight) / mean.known;
}

double BlockWeights::Of(uint16_t owner, WeightClass weight) const {
  if (weight == kUnknownWeight || owner >= means_.size()) return 1;
  const double above = weight - means_[owner].weight;
  return std::exp2(std::clamp(above, -kMaxAboveMean, kMaxAboveMean) / 2);
}

void BlockWeights::NoteAsked(const ChainSaving& saving, uint32_t blocks) {
  if (!(saving.first_ms > 0) || saving.block_bytes == 0 || blocks == 0) return;
  const double per_byte = saving.Of(blocks) / blocks / static_cast<double>(saving.block_bytes);
  Mean& mean = MeanOf(saving.owner);
  mean.asked_blocks = std::min<double>(mean.asked_blocks + blocks, kMeanBlocks);
  const double part = std::min(blocks / mean.asked_blocks, 1.0);
  mean.asked_per_byte += part * (per_byte - mean.asked_per_byte);
}

double BlockWeights::BytesOf(const ChainSaving& saving, uint32_t blocks) const {
  const double bytes = blocks * static_cast<double>(std::max<uint64_t>(saving.block_bytes, 1));
  if (blocks == 0 || saving.owner >= means_.size()) return bytes;
  const double mean = means_[saving.owner].asked_per_byte;
  if (mean == 0 || !(saving.first_ms > 0) || saving.block_bytes == 0) return bytes;
  const double most = std::exp2(kMaxAboveMean / 2);
  return bytes * std::clamp(saving.Of(blocks) / bytes / mean, 1 / most, most);
}

}  // namespace aquifer
