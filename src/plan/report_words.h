// Numbers as all three reports write them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "base/text/size_text.h"

namespace aquifer {

inline std::string PercentText(double part) { return fmt::format("{:.1f} %", 100 * part); }
inline std::string BytesText(double bytes) { return SizeText(static_cast<uint64_t>(bytes)); }

// Three digits are enough for a decision: "31 ms", "1.24 s".
inline std::string TimeText(double ms) {
  if (ms < 10) return fmt::format("{:.1f} ms", ms);
  if (ms < 1000) return fmt::format("{:.0f} ms", ms);
  return fmt::format("{:.2f} s", ms / 1e3);
}

inline std::string MoneyText(double dollars) {
  const char* const sign = dollars < -0.005 ? "-" : "";
  const double amount = dollars < 0 ? -dollars : dollars;
  if (amount < 10) return fmt::format("{}${:.2f}", sign, amount);
  const std::string digits = fmt::format("{:.0f}", amount);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return fmt::format("{}${}", sign, grouped);
}

// "12.0 million", "3 451".
inline std::string CountText(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} billion", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.2f} million", count / 1e6);
  return fmt::format("{:.0f}", count);
}

inline std::string DurationText(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} minutes", seconds / 60);
  if (seconds < 2 * 86'400) return fmt::format("{:.1f} hours", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86'400);
}

}  // namespace aquifer
