// How likely a block is to be asked for again, and when: learned online, from chains alone.
//
// A block's *class* says what kind of block it is (its family and a score, from the request that
// used it last); its *age* is the time since then, in buckets that grow by a quarter. For each
// class and bucket we count how many blocks were asked for while they were in it, and how many grew
// too old for it: a discrete hazard. Blocks that are never seen again simply stop giving samples,
// so there are no delayed labels. The score is a logistic regression over a few features of the
// request, learned from the same samples; it fills in where a cell has been seen too rarely.
//
// What to keep follows from the table that BuildReuseTable() makes of it: for each cell the most
// hits per second that keeping a block can bring, if one gives it up at the best time from now (a
// Gittins index). It lets a chain live through the quiet time before its next turn, which ranking
// by the momentary rate does not. Making it takes a millisecond: a worker's task.
//
// Pure numbers. One thread, but for BuildReuseTable(), which any may run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/eviction/block_features.h"

namespace aquifer {

inline constexpr uint8_t kAgeBuckets = 40;
inline constexpr size_t kBlockFamilies = 10;
inline constexpr size_t kScoreLevels = 25;
inline constexpr size_t kBlockClasses = kBlockFamilies * kScoreLevels;
inline constexpr size_t kReuseCells = kBlockClasses * kAgeBuckets;

// A block leaves the bucket at this age: 4 s, 5 s, 6.25 s, ... The last one has no end.
int64_t AgeBucketEnd(uint8_t bucket);

// A block in the request that uses it.
struct ReuseFeatures {
  uint32_t position = 0;
  uint32_t request_blocks = 0;
  uint32_t full_blocks = 0;
  uint32_t known_blocks = 0;  // Of the request, from the first on: seen before.
  uint32_t turn = 0;          // How often its conversation went on before.
  uint32_t touches = 0;       // How often the block was asked for before.
  uint32_t children = 0;      // How many chains went on from here.
  int64_t gap_nanos = 0;      // Since the turn before; 0 in the first.
  uint64_t added_tokens = 0;  // To the turn before and its answer.
  uint64_t output_tokens = 0;
  SessionHint session = SessionHint::kNone;
};

// Which value each feature has.
using FeatureValues = std::array<uint8_t, 11>;

struct BlockClass {
  uint8_t number = 0;  // Below kBlockClasses.
  FeatureValues values{};
};

struct ReuseCell {
  float reused = 0;
  float outlived = 0;  // Grew too old for the bucket.
};

// What a table is made of.
struct ReuseCounts {
  std::array<ReuseCell, kReuseCells> cells{};
  std::array<std::array<float, kAgeBuckets>, kBlockFamilies> age_weights{};
};

// By cell: class * kAgeBuckets + bucket.
struct ReuseTable {
  std::array<float, kReuseCells> value{};    // Hits per second of keeping a block.
  std::array<float, kReuseCells> reuse{};    // How likely it is asked for while it is kept.
  std::array<uint16_t, kReuseCells> rank{};  // By value: 0 goes first.
  std::array<uint16_t, kReuseCells> at_rank{};
};

// What is kept is gone by the end of the bucket kept_buckets - 1.
ReuseTable BuildReuseTable(const ReuseCounts& counts, uint8_t kept_buckets);

class ReuseModel {
 public:
  ReuseModel();

  BlockClass Classify(const ReuseFeatures& features) const;
  // The same, with what a caller said of it since.
  BlockClass WithSession(const BlockClass& block, SessionHint session) const;

  // A block was asked for in that bucket, or grew out of it.
  void Observe(const BlockClass& block, uint8_t bucket, bool reused);

  // For a new table. What was counted long ago counts less from now on.
  ReuseCounts TakeCounts();

 private:
  static constexpr size_t kWeights = 768;
  struct Weight {
    float value = 0;
    float squares = 0;  // Of its gradients.
  };

  uint8_t NumberOf(uint8_t family, const FeatureValues& values) const;
  float Score(uint8_t family, const FeatureValues& values) const;
  static void Learn(Weight* weight, float gradient, float step);

  ReuseCounts counts_;
  std::array<std::array<float, kAgeBuckets>, kBlockFamilies> age_squares_{};
  std::array<Weight, kWeights> weights_{};
  uint32_t samples_ = 0;
};

}  // namespace aquifer
