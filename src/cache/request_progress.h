// The implementations' door into a Request's progress.
#pragma once

#include <cstddef>

#include "aquifer/cache.h"

namespace aquifer {

class RequestProgress {
 public:
  static void Begin(Request* request) {
    request->status = Status();
    request->done_ = false;
    request->completed_ = 0;
  }
  static void Advance(Request* request, size_t completed, bool done) {
    request->completed_ = completed;
    request->done_ = done;
  }
};

}  // namespace aquifer
