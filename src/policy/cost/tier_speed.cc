#include "policy/cost/tier_speed.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aquifer {
namespace {

constexpr double kBytesPerMebibyte = 1 << 20;
constexpr double kNanosPerMs = 1e6;

// The prior is a line; as samples it is two points on it.
constexpr double kPriorMebibytes = 4;

// A sample counts for at most so many times what was expected of it. A tier that really became
// slower says so again and again, and each time moves the bound.
constexpr double kMaxSurprise = 4;

// A line through as many samples tells nothing of its own error.
constexpr double kExactSamples = 2;
// Sizes that differ by less than this part of their mean are one size.
constexpr double kOneSize = 1e-3;

}  // namespace

TierSpeed::TierSpeed(const TierSpeedOptions& options)
    : options_(options),
      prior_{static_cast<double>(options.prior_latency_nanos) / kNanosPerMs,
             kBytesPerMebibyte / options.prior_bytes_per_second * 1e3} {}

void TierSpeed::Submitted(int64_t now_nanos, uint64_t bytes, uint32_t ops) {
  if (queued_ops_ == 0) progress_nanos_ = now_nanos;
  queued_bytes_ += bytes;
  queued_ops_ += ops;
}

void TierSpeed::Completed(int64_t now_nanos, const SpeedSample& sample) {
  Learn(now_nanos, sample);
  progress_nanos_ = std::max(progress_nanos_, now_nanos);
  Dequeue(now_nanos, sample.bytes, sample.ops);
}

void TierSpeed::Failed(int64_t now_nanos, uint64_t bytes, uint32_t ops) {
  Dequeue(now_nanos, bytes, ops);
}

void TierSpeed::Late(int64_t now_nanos, const SpeedSample& sample) {
  const double expected_ms =
      Fit(now_nanos).At(Mebibytes(sample.bytes, sample.ops, sample.queued_bytes));
  if (static_cast<double>(sample.elapsed_nanos) / kNanosPerMs > expected_ms) {
    Learn(now_nanos, sample);
  }
  Dequeue(now_nanos, sample.bytes, sample.ops);
}

void TierSpeed::Learn(int64_t now_nanos, const SpeedSample& sample) {
  if (sample.elapsed_nanos <= 0) return;
  const double x = Mebibytes(sample.bytes, sample.ops, sample.queued_bytes);
  double y = static_cast<double>(sample.elapsed_nanos) / kNanosPerMs;
  // The first samples are all there is: they count in full.
  if (samples_ >= 4) y = std::min(y, kMaxSurprise * Fit(now_nanos).At(x));

  const double kept = WeightAt(now_nanos);
  sum_ = sum_ * kept + 1;
  sum_x_ = sum_x_ * kept + x;
  sum_y_ = sum_y_ * kept + y;
  sum_xx_ = sum_xx_ * kept + x * x;
  sum_xy_ = sum_xy_ * kept + x * y;
  sum_yy_ = sum_yy_ * kept + y * y;
  // The long run follows the first samples quickly, and later ones by the time they stand for.
  const double since = samples_ == 0 ? 0 : static_cast<double>(now_nanos - learned_nanos_);
  const double by_time =
      1 - std::exp2(-std::max(since, 0.0) / static_cast<double>(options_.slow_half_life_nanos));
  const double by_count = samples_ < 16 ? 1.0 / static_cast<double>(samples_ + 1) : 0;
  // A tier that has become slower has no such fast loads any more: they are forgotten as slowly.
  if (samples_ == 0) fastest_ms_per_mebibyte_ = std::numeric_limits<double>::infinity();
  fastest_ms_per_mebibyte_ =
      std::min(fastest_ms_per_mebibyte_ / (1 - by_time), y / std::max(x, 1 / kBytesPerMebibyte));
  slow_log_scale_ += std::max(by_time, by_count) * (std::log(y / prior_.At(x)) - slow_log_scale_);
  ++samples_;
  learned_nanos_ = std::max(learned_nanos_, now_nanos);
}

void TierSpeed::Dequeue(int64_t now_nanos, uint64_t bytes, uint32_t ops) {
  queued_bytes_ -= std::min(queued_bytes_, bytes);
  queued_ops_ -= std::min(queued_ops_, ops);
  if (queued_ops_ == 0) progress_nanos_ = std::max(progress_nanos_, now_nanos);
}

double TierSpeed::Mebibytes(uint64_t bytes, uint32_t ops, uint64_t queued_bytes) const {
  return (static_cast<double>(bytes) + static_cast<double>(queued_bytes) +
          static_cast<double>(ops) * static_cast<double>(options_.op_overhead_bytes)) /
         kBytesPerMebibyte;
}

// What is left of the weight that the samples had at learned_nanos_.
double TierSpeed::WeightAt(int64_t now_nanos) const {
  if (samples_ == 0 || now_nanos <= learned_nanos_) return 1;
  return std::exp2(-static_cast<double>(now_nanos - learned_nanos_) /
                   static_cast<double>(options_.half_life_nanos));
}

double TierSpeed::SlopeError(int64_t now_nanos) const {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  const double count = sum_ * WeightAt(now_nanos);
  if (count <= kExactSamples) return kNoLimit;
  const double mean_x = sum_x_ / sum_;
  const double mean_y = sum_y_ / sum_;
  const double variance_x = sum_xx_ / sum_ - mean_x * mean_x;
  if (variance_x <= std::pow(kOneSize * mean_x, 2)) return kNoLimit;
  const double covariance = sum_xy_ / sum_ - mean_x * mean_y;
  const double variance_y = sum_yy_ / sum_ - mean_y * mean_y;
  const double unexplained = std::max(0.0, variance_y - covariance * covariance / variance_x);
  return 2 * std::sqrt(unexplained / variance_x / (count - kExactSamples));
}

// How flat the line may be: as the fastest load, where the recent samples show no slope that is
// more than their noise; and ever flatter, the better they show it.
double TierSpeed::LeastMsPerMebibyte(int64_t now_nanos, double slope) const {
  const double error = SlopeError(now_nanos);
  const double unknown = error < slope ? std::pow(error / slope, 2) : 1;
  return unknown * fastest_ms_per_mebibyte_;
}

// A straight line by least squares through the recent samples and two points that stand for what
// was known before. Where it is too flat, it is turned around the mean of the samples.
TierSpeed::Line TierSpeed::Fit(int64_t now_nanos) const {
  const double kept = WeightAt(now_nanos);
  const double recent = sum_ * kept;
  // The prior keeps its shape and takes its height from recent samples, or without them from the
  // long run: samples of a single size then tell of other sizes too.
  double log_scale = slow_log_scale_;
  if (recent > 0) {
    const double recent_log_scale =
        std::log(sum_y_ / (prior_.latency_ms * sum_ + prior_.ms_per_mebibyte * sum_x_));
    log_scale += (recent_log_scale - slow_log_scale_) * recent / (recent + 0.25);
  }
  const double scale = std::exp(log_scale);
  const double half = options_.prior_weight / 2;
  const double near_ms = scale * prior_.At(0);
  const double far_ms = scale * prior_.At(kPriorMebibytes);
  const double s = recent + options_.prior_weight;
  const double sx = sum_x_ * kept + half * kPriorMebibytes;
  const double sy = sum_y_ * kept + half * (near_ms + far_ms);
  const double sxx = sum_xx_ * kept + half * kPriorMebibytes * kPriorMebibytes;
  const double sxy = sum_xy_ * kept + half * kPriorMebibytes * far_ms;

  Line line;
  const double spread = s * sxx - sx * sx;
  line.ms_per_mebibyte = spread > 0 ? (s * sxy - sx * sy) / spread : 0;
  line.latency_ms = (sy - line.ms_per_mebibyte * sx) / s;
  if (line.latency_ms < 0) {
    line.latency_ms = 0;
    line.ms_per_mebibyte = sxy / sxx;
  }
  const double least = LeastMsPerMebibyte(now_nanos, line.ms_per_mebibyte);
  if (line.ms_per_mebibyte < least) {
    const double mean = sum_x_ / sum_;
    line.latency_ms = std::max(0.0, line.At(mean) - least * mean);
    line.ms_per_mebibyte = least;
  }
  return line;
}

double TierSpeed::SilenceMs(int64_t now_nanos, const Line& line) const {
  if (queued_ops_ == 0) return 0;
  const double silent_ms = static_cast<double>(now_nanos - progress_nanos_) / kNanosPerMs;
  return std::max(0.0, silent_ms - line.At(Mebibytes(0, queued_ops_, queued_bytes_)));
}

int64_t TierSpeed::EstimateNanos(int64_t now_nanos, uint64_t bytes, uint32_t ops,
                                 uint64_t queued_bytes) const {
  const Line line = Fit(now_nanos);
  const double ms = line.At(Mebibytes(bytes, ops, queued_bytes)) + SilenceMs(now_nanos, line);
  return static_cast<int64_t>(std::min(ms * kNanosPerMs, 9e18));
}

TierCost TierSpeed::Cost(int64_t now_nanos) const {
  const Line line = Fit(now_nanos);
  TierCost cost;
  cost.latency_ms = line.At(Mebibytes(0, queued_ops_, queued_bytes_)) + SilenceMs(now_nanos, line);
  cost.ms_per_byte = line.ms_per_mebibyte / kBytesPerMebibyte;
  cost.ms_per_op = cost.ms_per_byte * static_cast<double>(options_.op_overhead_bytes);
  return cost;
}

int64_t TierSpeed::LatencyNanos(int64_t now_nanos) const {
  return samples_ == 0 ? 0 : static_cast<int64_t>(Fit(now_nanos).latency_ms * kNanosPerMs);
}

double TierSpeed::BytesPerSecond(int64_t now_nanos) const {
  return samples_ == 0 ? 0 : kBytesPerMebibyte / Fit(now_nanos).ms_per_mebibyte * 1e3;
}

}  // namespace aquifer
