#include "policy/eviction/reuse_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace aquifer {
namespace {

constexpr double kFirstBucketSeconds = 4;
constexpr double kBucketRatio = 1.25;
constexpr float kLevelWidth = 0.25F;
constexpr int kMiddleLevel = static_cast<int>(kScoreLevels / 2);
// So many samples a cell's prediction is worth against what was counted in it.
constexpr double kPriorSamples = 1000;
// So many samples of an age are as good as what is known of younger ones.
constexpr float kAgeSamples = 1000;
constexpr float kForget = 0.9995F;   // At each new table.
constexpr uint32_t kLearnOneIn = 3;  // Blocks of a request are much alike.
constexpr float kStep = 0.05F;
// As if so much had been learned before: the first few samples would throw the weights far off.
constexpr float kFirstSquares = 10;
constexpr float kAgeStep = 0.2F;
// To begin with, all blocks are alike, which is keeping what was used last; but nobody asks for a
// block that was not full.
constexpr float kFirstHazard = 0.03F;
constexpr float kFirstPartialHazard = 0.001F;
// Where a caller said when: by then, and before. Few are on time, so "then" is wide.
constexpr float kDueHazard = 0.15F;
constexpr float kEarlyHazard = 0.005F;
// What a caller says is believed from the start, and then as far as it proves true.
constexpr float kExpectedWeight = 0.5F;
constexpr float kEndedWeight = -2;

// From kExpected on, one for each SessionHint.
enum Family : uint8_t { kPartial, kShared, kFirstTurn, kLaterTurn, kExpected, kEnded, kTimed };

// When the sessions of a family from kTimed on are due, in seconds: half of what the hint says to
// twice that.
struct Due {
  double from;
  double until;
};
static_assert(kTimed - kExpected == static_cast<int>(SessionHint::kWithinMinute) -
                                        static_cast<int>(SessionHint::kExpected));
constexpr std::array<Due, kBlockFamilies - kTimed> kDue = {
    {{0, 120}, {30, 1200}, {300, 7200}, {1800, 1e9}}};

// The features, in the order of FeatureValues: how many values each has, and whether every family
// has weights of its own for it.
struct FeatureShape {
  uint8_t values;
  bool by_family;
};
constexpr std::array<FeatureShape, 11> kFeatures = {{{8, false},
                                                     {16, true},
                                                     {16, true},
                                                     {16, true},
                                                     {18, false},
                                                     {20, false},
                                                     {16, false},
                                                     {8, false},
                                                     {18, false},
                                                     {8, false},
                                                     {7, true}}};
constexpr size_t kSessionFeature = 10;

constexpr auto kOffsets = [] {
  std::array<uint16_t, kFeatures.size() + 1> offsets{};
  for (size_t i = 0; i < kFeatures.size(); ++i) {
    const size_t rows = kFeatures[i].by_family ? kBlockFamilies : 1;
    offsets[i + 1] = static_cast<uint16_t>(offsets[i] + rows * kFeatures[i].values);
  }
  return offsets;
}();

size_t WeightOf(size_t feature, uint8_t family, uint8_t value) {
  const FeatureShape& shape = kFeatures[feature];
  return kOffsets[feature] + (shape.by_family ? size_t{family} * shape.values : 0) + value;
}

// 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7...
uint8_t Log2Value(uint64_t number, uint8_t values) {
  return static_cast<uint8_t>(std::min(static_cast<int>(std::bit_width(number)), values - 1));
}

uint8_t FamilyOfTurn(uint32_t turn, SessionHint session) {
  if (session == SessionHint::kNone) return turn == 0 ? kFirstTurn : kLaterTurn;
  return static_cast<uint8_t>(kExpected + static_cast<uint8_t>(session) -
                              static_cast<uint8_t>(SessionHint::kExpected));
}

uint8_t FamilyOf(const ReuseFeatures& block) {
  if (block.position >= block.full_blocks) return kPartial;
  if (block.children >= 2) return kShared;
  return FamilyOfTurn(block.turn, block.session);
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float Logit(float p) { return std::log(p / (1 - p)); }

double BucketEndSeconds(uint8_t bucket) {
  return kFirstBucketSeconds * std::pow(kBucketRatio, bucket);
}

// Before anything was learned.
float FirstHazard(size_t family, uint8_t bucket) {
  if (family == kPartial) return kFirstPartialHazard;
  if (family < kTimed) return kFirstHazard;
  const Due& due = kDue[family - kTimed];
  const double end = BucketEndSeconds(bucket);
  if (end <= due.from) return kEarlyHazard;
  return end / kBucketRatio < due.until ? kDueHazard : kFirstHazard;
}

double BucketSeconds(uint8_t bucket) {
  const double end = BucketEndSeconds(bucket);
  return bucket == 0 ? end : end - end / kBucketRatio;
}

}  // namespace

SessionHint ExpectedIn(int64_t seconds) {
  if (seconds <= 0) return SessionHint::kExpected;
  if (seconds <= 60) return SessionHint::kWithinMinute;
  if (seconds <= 600) return SessionHint::kWithinTenMinutes;
  return seconds <= 3600 ? SessionHint::kWithinHour : SessionHint::kLater;
}

int64_t AgeBucketEnd(uint8_t bucket) {
  static const auto bucket_ends = [] {
    std::array<int64_t, kAgeBuckets> ends{};
    for (uint8_t b = 0; b + 1 < kAgeBuckets; ++b) {
      ends[b] = static_cast<int64_t>(1e9 * BucketEndSeconds(b));
    }
    ends[kAgeBuckets - 1] = INT64_MAX;
    return ends;
  }();
  return bucket_ends[bucket];
}

ReuseModel::ReuseModel() {
  static_assert(kOffsets[kFeatures.size()] <= kWeights);
  for (uint8_t family = 0; family < kBlockFamilies; ++family) {
    for (uint8_t b = 0; b < kAgeBuckets; ++b) {
      counts_.age_weights[family][b] = Logit(FirstHazard(family, b));
    }
    weights_[WeightOf(kSessionFeature, family, 1)].value = kExpectedWeight;
    weights_[WeightOf(kSessionFeature, family, 2)].value = kEndedWeight;
  }
}

float ReuseModel::Score(uint8_t family, const FeatureValues& values) const {
  float score = 0;
  for (size_t i = 0; i < values.size(); ++i)
    score += weights_[WeightOf(i, family, values[i])].value;
  return score;
}

BlockClass ReuseModel::Classify(const ReuseFeatures& block) const {
  const uint8_t family = FamilyOf(block);
  const bool known = block.position < block.known_blocks;
  const uint32_t fresh = block.request_blocks - std::min(block.known_blocks, block.request_blocks);
  BlockClass result;
  const auto value = [&](size_t feature, uint64_t number) {
    return Log2Value(number, kFeatures[feature].values);
  };
  result.values = {static_cast<uint8_t>(std::min<uint32_t>(block.turn, 7)),
                   value(1, block.request_blocks),
                   value(2, block.position),
                   value(3, block.request_blocks - std::min(block.position, block.request_blocks)),
                   value(4, block.output_tokens),
                   value(5, block.added_tokens),
                   static_cast<uint8_t>(std::min<uint32_t>(block.touches, 7) + (known ? 8 : 0)),
                   value(7, block.children),
                   value(8, static_cast<uint64_t>(block.gap_nanos / 1'000'000'000)),
                   static_cast<uint8_t>(uint64_t{fresh} * 7 / std::max(block.request_blocks, 1u)),
                   static_cast<uint8_t>(block.session)};
  result.number = NumberOf(family, result.values);
  return result;
}

uint8_t ReuseModel::NumberOf(uint8_t family, const FeatureValues& values) const {
  const float level = std::round(Score(family, values) / kLevelWidth) + kMiddleLevel;
  const auto clamped =
      static_cast<uint8_t>(std::clamp(level, 0.0F, static_cast<float>(kScoreLevels - 1)));
  return static_cast<uint8_t>(family * kScoreLevels + clamped);
}

BlockClass ReuseModel::WithSession(const BlockClass& block, SessionHint session) const {
  BlockClass result = block;
  result.values[kSessionFeature] = static_cast<uint8_t>(session);
  auto family = static_cast<uint8_t>(block.number / kScoreLevels);
  if (family != kPartial && family != kShared) family = FamilyOfTurn(block.values[0], session);
  result.number = NumberOf(family, result.values);
  return result;
}

void ReuseModel::Learn(Weight* weight, float gradient, float step) {
  weight->squares += gradient * gradient;
  weight->value -= step * gradient / std::sqrt(weight->squares + kFirstSquares);
}

void ReuseModel::Observe(const BlockClass& block, uint8_t bucket, bool reused) {
  ReuseCell& cell = counts_.cells[block.number * kAgeBuckets + bucket];
  (reused ? cell.reused : cell.outlived) += 1;
  if (++samples_ % kLearnOneIn != 0) return;
  const auto family = static_cast<uint8_t>(block.number / kScoreLevels);
  float& age = counts_.age_weights[family][bucket];
  const float gradient = Sigmoid(age + Score(family, block.values)) - (reused ? 1.0F : 0.0F);
  Weight age_weight = {.value = age, .squares = age_squares_[family][bucket]};
  Learn(&age_weight, gradient, kAgeStep);
  age = age_weight.value;
  age_squares_[family][bucket] = age_weight.squares;
  for (size_t i = 0; i < block.values.size(); ++i) {
    Learn(&weights_[WeightOf(i, family, block.values[i])], gradient, kStep);
  }
}

ReuseCounts ReuseModel::TakeCounts() {
  for (ReuseCell& cell : counts_.cells) {
    cell.reused *= kForget;
    cell.outlived *= kForget;
  }
  return counts_;
}

namespace {

// The weights of ages, of which the old ones have hardly been seen for long: until they have, a
// block fares there as it did when it was a little younger. (To take it for better would keep what
// is old for no other reason than that nothing is known of it.) But where a caller said when,
// something is known.
std::array<float, kAgeBuckets> SmoothAges(const ReuseCounts& counts, size_t family) {
  std::array<float, kAgeBuckets> smooth = counts.age_weights[family];
  for (uint8_t b = 1; b < kAgeBuckets; ++b) {
    float seen = 0;
    for (size_t level = 0; level < kScoreLevels; ++level) {
      const ReuseCell& cell = counts.cells[(family * kScoreLevels + level) * kAgeBuckets + b];
      seen += cell.reused + cell.outlived;
    }
    const float part = seen / (seen + kAgeSamples);
    const float other = family < kTimed ? smooth[b - 1] : Logit(FirstHazard(family, b));
    smooth[b] = part * smooth[b] + (1 - part) * other;
  }
  return smooth;
}

// For each bucket, the most hits per second of keeping a block from there on, if it is given up at
// the best time. A time to give up is best where what comes next brings less than what was so far:
// so from the last bucket back, each one takes in the runs behind it as long as they bring more.
std::array<double, kAgeBuckets> BestOfKeeping(const std::array<double, kAgeBuckets>& hazard,
                                              const std::array<double, kAgeBuckets>& seconds) {
  struct Run {  // Of who gets to its first bucket.
    double asked = 0;
    double held = 0;
    double outlived = 0;  // So many get beyond its last one.
  };
  std::array<double, kAgeBuckets> best;
  std::array<Run, kAgeBuckets> runs;  // Behind the bucket, the nearest last.
  size_t count = 0;
  for (uint8_t b = kAgeBuckets; b-- > 0;) {
    Run run{
        .asked = hazard[b], .held = seconds[b] * (1 - hazard[b] / 2), .outlived = 1 - hazard[b]};
    // No division: it takes the longest.
    while (count > 0 && runs[count - 1].asked * run.held > run.asked * runs[count - 1].held) {
      const Run& next = runs[--count];
      run.asked += run.outlived * next.asked;
      run.held += run.outlived * next.held;
      run.outlived *= next.outlived;
    }
    runs[count++] = run;
    best[b] = run.asked / run.held;
  }
  return best;
}

// The least first, and of equal ones the one of the lower number. Values are not negative, so that
// their bits are in their order, too: three passes over eleven of them each, faster than comparing.
void SortByValue(const std::array<float, kReuseCells>& values,
                 std::array<uint16_t, kReuseCells>* sorted) {
  constexpr uint32_t kBits = 11;
  constexpr uint32_t kDigits = 1 << kBits;
  std::array<uint16_t, kReuseCells> before;
  std::iota(sorted->begin(), sorted->end(), uint16_t{0});
  for (uint32_t shift = 0; shift < 32; shift += kBits) {
    const auto digit = [&](uint16_t cell) {
      return std::bit_cast<uint32_t>(values[cell]) >> shift & (kDigits - 1);
    };
    std::array<uint16_t, kDigits + 1> next{};  // Where the next one of a digit goes.
    for (uint16_t cell = 0; cell < kReuseCells; ++cell) ++next[digit(cell) + 1];
    for (uint32_t i = 1; i <= kDigits; ++i) next[i] = static_cast<uint16_t>(next[i] + next[i - 1]);
    before = *sorted;
    for (const uint16_t cell : before) (*sorted)[next[digit(cell)]++] = cell;
  }
}

}  // namespace

ReuseTable BuildReuseTable(const ReuseCounts& counts, uint8_t kept_buckets) {
  ReuseTable table;
  std::array<std::array<float, kAgeBuckets>, kBlockFamilies> ages{};
  for (size_t family = 0; family < kBlockFamilies; ++family)
    ages[family] = SmoothAges(counts, family);
  std::array<double, kAgeBuckets> seconds{};
  for (uint8_t b = 0; b < kAgeBuckets; ++b) seconds[b] = BucketSeconds(b);
  for (size_t c = 0; c < kBlockClasses; ++c) {
    const size_t family = c / kScoreLevels;
    const float level =
        static_cast<float>(static_cast<int>(c % kScoreLevels) - kMiddleLevel) * kLevelWidth;
    std::array<double, kAgeBuckets> hazard{};
    for (uint8_t b = 0; b < kAgeBuckets; ++b) {
      const ReuseCell& cell = counts.cells[c * kAgeBuckets + b];
      const double predicted = Sigmoid(ages[family][b] + level);
      hazard[b] =
          (cell.reused + kPriorSamples * predicted) / (cell.reused + cell.outlived + kPriorSamples);
    }
    double gone = 1;  // Not asked for from this bucket on, while it is kept.
    for (uint8_t from = kAgeBuckets; from-- > 0;) {
      if (from < kept_buckets) gone *= 1 - hazard[from];
      table.reuse[c * kAgeBuckets + from] = static_cast<float>(1 - gone);
    }
    const std::array<double, kAgeBuckets> best = BestOfKeeping(hazard, seconds);
    for (uint8_t b = 0; b < kAgeBuckets; ++b) {
      table.value[c * kAgeBuckets + b] = static_cast<float>(best[b]);
    }
  }
  SortByValue(table.value, &table.at_rank);
  for (size_t i = 0; i < kReuseCells; ++i) table.rank[table.at_rank[i]] = static_cast<uint16_t>(i);
  return table;
}

}  // namespace aquifer
