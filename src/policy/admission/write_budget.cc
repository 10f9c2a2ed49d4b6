#include "policy/admission/write_budget.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

}  // namespace

WriteBudget::WriteBudget(const WriteBudgetOptions& options)
    : options_(options), tokens_(static_cast<Tokens>(options.burst_bytes) * kNanosPerSecond) {}

WriteBudget::Tokens WriteBudget::At(int64_t now_nanos) const {
  // Time that seems to run backwards adds nothing.
  if (settled_nanos_ == INT64_MIN || now_nanos <= settled_nanos_) return tokens_;
  const Tokens elapsed = static_cast<Tokens>(now_nanos) - settled_nanos_;
  const Tokens full = static_cast<Tokens>(options_.burst_bytes) * kNanosPerSecond;
  const Tokens rate = options_.bytes_per_second;
  // Divided, because the product of a long time and a high rate would not fit.
  return elapsed > (full - tokens_) / rate ? full : tokens_ + elapsed * rate;
}

void WriteBudget::Settle(int64_t now_nanos) {
  tokens_ = At(now_nanos);
  settled_nanos_ = std::max(settled_nanos_, now_nanos);
}

WriteBudget::Tokens WriteBudget::Needed(uint64_t bytes) const {
  return static_cast<Tokens>(std::min(bytes, options_.burst_bytes)) * kNanosPerSecond;
}

bool WriteBudget::TakeBytes(int64_t now_nanos, uint64_t bytes) {
  if (unlimited()) return true;
  Settle(now_nanos);
  if (tokens_ < Needed(bytes)) return false;
  tokens_ -= static_cast<Tokens>(bytes) * kNanosPerSecond;
  return true;
}

void WriteBudget::ChargeBytes(int64_t now_nanos, uint64_t bytes) {
  if (unlimited()) return;
  Settle(now_nanos);
  tokens_ -= static_cast<Tokens>(bytes) * kNanosPerSecond;
}

void WriteBudget::RefundBytes(int64_t now_nanos, uint64_t bytes) {
  if (unlimited()) return;
  Settle(now_nanos);
  tokens_ = std::min(tokens_ + static_cast<Tokens>(bytes) * kNanosPerSecond,
                     static_cast<Tokens>(options_.burst_bytes) * kNanosPerSecond);
}

int64_t WriteBudget::NextAt(int64_t now_nanos, uint64_t bytes) const {
  if (unlimited()) return now_nanos;
  const Tokens missing = Needed(bytes) - At(now_nanos);
  if (missing <= 0) return now_nanos;
  const Tokens rate = options_.bytes_per_second;
  const Tokens at = std::max(now_nanos, settled_nanos_) + (missing + rate - 1) / rate;
  return static_cast<int64_t>(std::min<Tokens>(at, INT64_MAX));
}

int64_t WriteBudget::AvailableBytes(int64_t now_nanos) const {
  if (unlimited()) return INT64_MAX;
  const Tokens tokens = At(now_nanos);
  // Rounded down, towards less, in debt too.
  const Tokens whole = tokens / kNanosPerSecond - (tokens % kNanosPerSecond < 0 ? 1 : 0);
  return static_cast<int64_t>(std::clamp<Tokens>(whole, INT64_MIN, INT64_MAX));
}

}  // namespace aquifer
