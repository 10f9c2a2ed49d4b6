#include "aquifer/status.h"

namespace aquifer {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kNotFound:
      return "not found";
    case Code::kBusy:
      return "busy";
    case Code::kNoSpace:
      return "no space";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kLate:
      return "late";
    case Code::kInvalid:
      return "invalid";
  }
  return "unknown";
}

std::string Status::ToString() const {
  std::string text(CodeName(code_));
  if (!message_.empty()) text.append(": ").append(message_);
  return text;
}

}  // namespace aquifer
