#include "base/text/mistakes.h"

#include <string_view>

namespace aquifer {

void Mistakes::Add(const Status& status) {
  if (status.ok()) return;
  if (none()) code_ = status.code();
  std::string_view left = status.message();
  while (true) {
    const std::string_view line = left.substr(0, left.find('\n'));
    if (++lines_ <= kMostLines) {
      if (lines_ > 1) text_ += '\n';
      text_ += line;
    }
    if (line.size() == left.size()) return;
    left.remove_prefix(line.size() + 1);
  }
}

Status Mistakes::All() const {
  if (none()) return Status();
  if (lines_ <= kMostLines) return Status(code_, text_);
  return Status(code_, text_ + "\nand " + std::to_string(lines_ - kMostLines) + " more");
}

}  // namespace aquifer
