// All that is wrong with a configuration: its author hears of everything at once, not of one
// mistake at each start.
#pragma once

#include <cstddef>
#include <string>

#include "aquifer/status.h"

namespace aquifer {

class Mistakes {
 public:
  static constexpr size_t kMostLines = 20;  // Further ones are counted.

  // A status that is ok adds nothing. A message of several lines adds each of them.
  void Add(const Status& status);
  bool none() const { return lines_ == 0; }
  // Ok, or a line for each mistake, with the code of the first.
  Status All() const;

 private:
  Code code_ = Code::kOk;
  std::string text_;
  size_t lines_ = 0;
};

}  // namespace aquifer
