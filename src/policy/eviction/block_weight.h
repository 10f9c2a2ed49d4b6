// What a block's bytes are worth beside another's: the milliseconds that having it saves when it is
// asked for, by the byte. A block of a large model may be a hundred times as large as one of a
// small model, and one deep in a long context takes several times as long to compute as the first.
//
// Weights come in classes, half a power of two apart: few enough for a shelf of blocks each
// (shelf.h). What a block saves is not always known; it counts like the mean of those where it is.
//
// What is known of it is what a tenant's engines say, who may say anything. So a weight is held
// against the mean of the same tenant, within bounds: large numbers win nothing. Who reports on
// purpose that some blocks save next to nothing can still lift its others by a few times; what
// others are sure of is their floor.
//
// Pure numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace aquifer {

using WeightClass = int8_t;
inline constexpr WeightClass kUnknownWeight = INT8_MIN;

// A saving or a size of 0 is not known.
WeightClass WeightClassOf(double saved_ms, uint64_t bytes);

// What the blocks of one chain save, each for itself: the deeper ones more.
struct ChainSaving {
  uint16_t owner = 0;        // Whose engines say so.
  uint64_t block_bytes = 0;  // 0: not known.
  double first_ms = 0;       // 0: not known.
  double deeper_ms = 0;      // By so much more than the one before it.

  double At(uint32_t position) const { return first_ms + deeper_ms * position; }
  // Of the first so many together.
  double Of(uint32_t blocks) const {
    return blocks * (first_ms + deeper_ms * (static_cast<double>(blocks) - 1) / 2);
  }
};

// The mean over the last blocks, kBlocks of them or so: what came before those counts less and
// less.
struct RecentMean {
  static constexpr double kBlocks = 1 << 16;

  double known_blocks = 0;  // As many as count, at most kBlocks.
  double mean = 0;

  // So many blocks more, with that mean.
  void Add(double value, double blocks);
};

class BlockWeights {
 public:
  // A block of that class was used.
  void Note(uint16_t owner, WeightClass weight);
  // Beside the mean of its owner's, which is 1.
  double Of(uint16_t owner, WeightClass weight) const;

  // So many blocks of a chain were asked for.
  void NoteAsked(const ChainSaving& saving, uint32_t blocks);
  // What the first so many of a chain save, in bytes of which each saves as much as its owner's do
  // on average.
  double BytesOf(const ChainSaving& saving, uint32_t blocks) const;

 private:
  struct Means {
    RecentMean weight_class;       // Of blocks that were used.
    RecentMean asked_ms_per_byte;  // Of blocks that were asked for; a mean of 0: not known.
  };
  Means& MeansOf(uint16_t owner);

  std::vector<Means> means_;  // By owner.
};

}  // namespace aquifer
