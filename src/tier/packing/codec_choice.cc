#include "tier/packing/codec_choice.h"

#include <algorithm>

namespace aquifer {

bool LosslessPays(const CodecPace& pace) {
  constexpr double kLeastGain = 1.05;
  constexpr double kUsualRatio = 0.68;  // Of bf16 KV, until there is a measured one.
  const double store = pace.store_bytes_per_second;
  if (store <= 0) return true;
  const double ratio = pace.ratio > 0 ? pace.ratio : kUsualRatio;
  double together = store / ratio;  // In raw bytes.
  if (pace.encode_bytes_per_second > 0) {
    together = std::min(together, pace.encode_bytes_per_second);
  }
  if (pace.decode_bytes_per_second > 0) {
    together = std::min(together, pace.decode_bytes_per_second);
  }
  return together >= kLeastGain * store;
}

bool CpuBudget::MaySpend(int64_t now_nanos) {
  const double most = kMostSavedNanos * cores_;
  if (last_nanos_ == INT64_MIN) {
    credit_nanos_ += most;
  } else {
    const double earned = static_cast<double>(now_nanos - last_nanos_) * cores_;
    credit_nanos_ = std::min(most, credit_nanos_ + earned);
  }
  last_nanos_ = now_nanos;
  return credit_nanos_ > 0;
}

}  // namespace aquifer
