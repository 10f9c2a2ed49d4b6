// What a tier will take for a load, learned from what it took in the last seconds. A batch of b
// bytes in o operations behind q queued bytes takes
//
//   latency + (q + b + o * op_overhead_bytes) / bandwidth
//
// and the two unknowns are fitted by least squares whose weights halve every `half_life`. What was
// seen over the last minutes, and before that a prior, stands in where recent samples are few: a
// tier that was slow and is therefore not asked any more looks normal again after a while, and is
// tried again. One wild sample moves the fit little, a lasting change quickly.
//
// Loads of one size do not tell latency from bandwidth, and noise makes that worse. As far as the
// samples leave the bandwidth open, it is taken to be no more than the fastest load had: its bytes,
// with those queued before it, divided by its time.
//
// A tier that stops answering looks slower with every moment of silence, so that loads stop going
// there before any deadline tells.
#pragma once

#include <cstdint>

namespace aquifer {

struct TierSpeedOptions {
  int64_t prior_latency_nanos = 200'000;
  double prior_bytes_per_second = 2e9;
  double prior_weight = 0.25;  // In samples. It does not decay.
  int64_t half_life_nanos = 3'000'000'000;
  // How slowly the picture of the last minutes, which replaces the prior, changes.
  int64_t slow_half_life_nanos = 600'000'000'000;
  uint64_t op_overhead_bytes = 16 << 10;  // What one more operation costs, as bytes.
};

struct SpeedSample {
  uint64_t bytes = 0;
  uint32_t ops = 1;
  uint64_t queued_bytes = 0;  // queued_bytes() just before it was submitted.
  int64_t elapsed_nanos = 0;
};

// One tier's cost as a straight line: what worth.h calculates with.
struct TierCost {
  double latency_ms = 0;  // Once for each load, with the queue and any silence.
  double ms_per_byte = 0;
  double ms_per_op = 0;
};

class TierSpeed {
 public:
  explicit TierSpeed(const TierSpeedOptions& options);

  void Submitted(int64_t now_nanos, uint64_t bytes, uint32_t ops);
  void Completed(int64_t now_nanos, const SpeedSample& sample);
  // Came back with an error: it says nothing of speed, and leaves the queue.
  void Failed(int64_t now_nanos, uint64_t bytes, uint32_t ops);
  // Was given up at its deadline: it takes at least as long as that.
  void Late(int64_t now_nanos, const SpeedSample& sample);

  // How long a load submitted now behind `queued_bytes` would take.
  int64_t EstimateNanos(int64_t now_nanos, uint64_t bytes, uint32_t ops,
                        uint64_t queued_bytes) const;
  // The same as coefficients, behind what is queued now.
  TierCost Cost(int64_t now_nanos) const;

  uint64_t queued_bytes() const { return queued_bytes_; }
  uint32_t queued_ops() const { return queued_ops_; }
  // As far as it was seen; 0: nothing was yet.
  int64_t LatencyNanos(int64_t now_nanos) const;
  double BytesPerSecond(int64_t now_nanos) const;

 private:
  struct Line {
    double latency_ms = 0;
    double ms_per_mebibyte = 0;
    double At(double mebibytes) const { return latency_ms + ms_per_mebibyte * mebibytes; }
  };

  void Learn(int64_t now_nanos, const SpeedSample& sample);
  void Dequeue(int64_t now_nanos, uint64_t bytes, uint32_t ops);
  double Mebibytes(uint64_t bytes, uint32_t ops, uint64_t queued_bytes) const;
  double WeightAt(int64_t now_nanos) const;
  Line Fit(int64_t now_nanos) const;
  // How far the slope of a line through the recent samples may be off: twice its standard error.
  double SlopeError(int64_t now_nanos) const;
  double LeastMsPerMebibyte(int64_t now_nanos, double slope) const;
  // How long the tier has been silent beyond what it had to do.
  double SilenceMs(int64_t now_nanos, const Line& line) const;

  const TierSpeedOptions options_;
  const Line prior_;
  // Sums over the recent samples as of learned_nanos_: of 1, x, y, x*x, x*y, y*y, weighted. x is in
  // MiB and y in milliseconds.
  double sum_ = 0;
  double sum_x_ = 0;
  double sum_y_ = 0;
  double sum_xx_ = 0;
  double sum_xy_ = 0;
  double sum_yy_ = 0;
  double fastest_ms_per_mebibyte_ = 0;  // The least y / x.
  int64_t learned_nanos_ = 0;           // The last sample; meaningless before the first.
  uint64_t samples_ = 0;
  double slow_log_scale_ = 0;  // The logarithm of how many times slower than the prior, for long.
  uint64_t queued_bytes_ = 0;
  uint32_t queued_ops_ = 0;
  int64_t progress_nanos_ = 0;  // The last completion, or when the queue was last empty.
};

}  // namespace aquifer
