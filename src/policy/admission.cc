#include "policy/admission.h"

namespace aquifer {

bool ShouldWriteDown(const WriteDownOptions& options, const BlockFeatures& features) {
  if (options.rule == WriteDownRule::kAlways) return true;
  if (options.rule == WriteDownRule::kNever) return false;
  if (features.session == SessionHint::kEnded) return false;
  return features.position < options.always_below_position || features.turns > 0;
}

}  // namespace aquifer
