#include "policy/eviction/block_weight.h"

#include <algorithm>
#include <cmath>

namespace aquifer {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kMaxClass = 60;  // A thousand million times the usual.
// Beside the mean: 16 times, so that two of one owner may be 256 times apart.
constexpr double kMaxAboveMean = 8;

}  // namespace

WeightClass WeightClassOf(double saved_ms, uint64_t bytes) {
  if (!(saved_ms > 0) || bytes == 0) return kUnknownWeight;
  const double halves = 2 * std::log2(saved_ms * kMiB / static_cast<double>(bytes));
  return static_cast<WeightClass>(std::lround(std::clamp(halves, -kMaxClass, kMaxClass)));
}

void RecentMean::Add(double value, double blocks) {
  known_blocks = std::min(known_blocks + blocks, kBlocks);
  mean += std::min(blocks / known_blocks, 1.0) * (value - mean);
}

BlockWeights::Means& BlockWeights::MeansOf(uint16_t owner) {
  if (means_.size() <= owner) means_.resize(size_t{owner} + 1);
  return means_[owner];
}

void BlockWeights::Note(uint16_t owner, WeightClass weight) {
  if (weight == kUnknownWeight) return;
  MeansOf(owner).weight_class.Add(weight, 1);
}

double BlockWeights::Of(uint16_t owner, WeightClass weight) const {
  if (weight == kUnknownWeight || owner >= means_.size()) return 1;
  const double above = weight - means_[owner].weight_class.mean;
  return std::exp2(std::clamp(above, -kMaxAboveMean, kMaxAboveMean) / 2);
}

void BlockWeights::NoteAsked(const ChainSaving& saving, uint32_t blocks) {
  if (!(saving.first_ms > 0) || saving.block_bytes == 0 || blocks == 0) return;
  const double ms_per_byte = saving.Of(blocks) / blocks / static_cast<double>(saving.block_bytes);
  MeansOf(saving.owner).asked_ms_per_byte.Add(ms_per_byte, blocks);
}

double BlockWeights::BytesOf(const ChainSaving& saving, uint32_t blocks) const {
  const double bytes = blocks * static_cast<double>(std::max<uint64_t>(saving.block_bytes, 1));
  if (blocks == 0 || saving.owner >= means_.size()) return bytes;
  const double mean_ms_per_byte = means_[saving.owner].asked_ms_per_byte.mean;
  if (mean_ms_per_byte == 0 || !(saving.first_ms > 0) || saving.block_bytes == 0) return bytes;
  const double most = std::exp2(kMaxAboveMean / 2);
  return bytes * std::clamp(saving.Of(blocks) / bytes / mean_ms_per_byte, 1 / most, most);
}

}  // namespace aquifer
