// One connection to a node, and the caller's requests that the node has. It ends with the
// connection; whoever polls then settles its requests. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "client/link.h"
#include "net/local_protocol.h"

namespace aquifer {

struct SentRequest {
  Request* request = nullptr;  // The caller's: touched on the caller's thread only. Null: free.
  FrameKind kind = FrameKind::kMatch;
  uint32_t generation = 1;
  size_t received = 0;  // Items.
};

class Session {
 public:
  explicit Session(std::unique_ptr<Link> link);

  Link* link() const { return link_.get(); }

  // The request's number; 0 when the node takes no more of them now.
  uint64_t Begin(Request* request, FrameKind kind);
  // Null: no open request has that number.
  SentRequest* Find(uint64_t number);
  // 0: it is not among them.
  uint64_t NumberOf(const Request* request) const;
  void End(SentRequest* sent);

  std::vector<SentRequest>& sent() { return sent_; }
  bool idle() const { return free_.size() == sent_.size(); }  // Nothing is open.
  // All that was sent has its answer or will never get one, and nobody waits for it.
  bool settled() const { return settled_; }
  void SetSettled() { settled_ = true; }

 private:
  uint64_t NumberAt(size_t place) const {
    return uint64_t{sent_[place].generation} << 32 | static_cast<uint32_t>(place);
  }

  std::unique_ptr<Link> link_;
  std::vector<SentRequest> sent_;
  std::vector<uint32_t> free_;
  bool settled_ = false;
};

}  // namespace aquifer
