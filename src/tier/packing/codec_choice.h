// Whether making blocks smaller pays for a store, and how much processor time it may take. Numbers
// in, decisions out: no clock, no I/O, no lock.
#pragma once

#include <cstdint>

namespace aquifer {

enum class LosslessUse : uint8_t { kNever, kWherePays, kAlways };

struct CodecPace {
  double store_bytes_per_second = 0;   // What the store moves at its best; 0: not measured.
  double encode_bytes_per_second = 0;  // Of raw bytes, on one core; 0: not measured.
  double decode_bytes_per_second = 0;
  double ratio = 0;  // Of stored to raw bytes; 0: not measured.
};

// Blocks are encoded while others are written and decoded while others are read, so the slowest of
// the three decides: it pays where codec and store together move more raw bytes a second than the
// store alone, by a twentieth at least. What is not measured speaks for it: the first blocks
// measure it.
bool LosslessPays(const CodecPace& pace);

// Processor time that comes at a fixed rate. It is spent after the fact, so one block may overdraw
// it; the next ones then wait until that is paid.
class CpuBudget {
 public:
  explicit CpuBudget(double cores) : cores_(cores) {}

  bool MaySpend(int64_t now_nanos);
  void Spend(int64_t nanos) { credit_nanos_ -= static_cast<double>(nanos); }

 private:
  static constexpr double kMostSavedNanos = 100'000'000;  // Of each core.

  const double cores_;
  double credit_nanos_ = 0;
  int64_t last_nanos_ = INT64_MIN;  // When it was last asked; the first time it is full.
};

}  // namespace aquifer
