// The implementations' door into a Request's progress. Begin() runs on the caller's thread, which
// also makes the room for the answers there: for a long chain that takes longer than a task of the
// owner may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "aquifer/cache.h"

namespace aquifer {

class RequestProgress {
 public:
  static void Begin(Request* request) {
    request->status = Status();
    request->done_ = false;
    request->cancelled_ = false;
    request->completed_ = 0;
    request->called_nanos_ = 0;
  }
  // When the call was made, by the cache's clock, where the cache hears of it later: timeouts are
  // counted from there. 0: just now.
  static void SetCalled(Request* request, int64_t nanos) { request->called_nanos_ = nanos; }
  static int64_t called_nanos(const Request& request) { return request.called_nanos_; }
  // False: it is over, or cancelled already.
  static bool BeginCancel(Request* request) {
    return !request->done_ && !std::exchange(request->cancelled_, true);
  }
  static void Begin(FetchRequest* request) { BeginWithOps(request); }
  static void Begin(ReserveRequest* request) { BeginWithOps(request); }
  static void Advance(Request* request, size_t completed, bool done) {
    request->completed_ = completed;
    request->done_ = done;
  }

 private:
  template <class R>
  static void BeginWithOps(R* request) {
    Begin(static_cast<Request*>(request));
    request->ops.clear();
    request->ops.resize(request->chain.keys.size());
  }
};

}  // namespace aquifer
