#include "policy/admission.h"

namespace aquifer {
namespace {

constexpr double kBytesPerMebibyte = 1 << 20;

bool IsWorthWriting(const WriteDownOptions& options, const WriteDownCase& block) {
  if (!block.recompute_ms.has_value() || !block.load_ms.has_value()) return true;
  const double saved_ms = *block.recompute_ms - *block.load_ms;
  const double mebibytes = static_cast<double>(block.features.bytes) / kBytesPerMebibyte;
  return saved_ms > 0 && saved_ms >= options.min_saved_ms_per_mebibyte * mebibytes;
}

}  // namespace

bool ShouldWriteDown(const WriteDownOptions& options, const WriteDownCase& block) {
  if (block.durable_wanted) return true;
  if (options.rule == WriteDownRule::kAlways) return true;
  if (options.rule == WriteDownRule::kNever) return false;
  if (block.features.session == SessionHint::kEnded) return false;
  if (block.features.position < options.always_below_position) return true;
  return options.rule == WriteDownRule::kSecondTouch ? block.features.turns > 0
                                                     : IsWorthWriting(options, block);
}

bool ShouldKeepInDram(const RechargeOptions& options, const BlockFeatures& features,
                      bool room_is_free) {
  switch (options.rule) {
    case RechargeRule::kAlways:
      return true;
    case RechargeRule::kNever:
      return false;
    case RechargeRule::kSecondTouch:
      // The fetch itself was the first use.
      return room_is_free || features.turns > 1;
  }
  return true;
}

}  // namespace aquifer
