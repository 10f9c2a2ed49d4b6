// One connection to a node, and the caller's requests that the node has. It ends with the
// connection; whoever polls then settles its requests. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "client/link.h"
#include "client/pulse.h"
#include "net/protocol/local_protocol.h"

namespace aquifer {

struct SentRequest {
  bool open = false;  // The node has not answered all of it.
  // The caller's: touched on the caller's thread only. Null: it was settled without the node.
  Request* request = nullptr;
  FrameKind kind = FrameKind::kMatch;
  int64_t settle_nanos = INT64_MAX;  // When to do that, by the system's clock.
  uint32_t generation = 1;
  size_t received = 0;  // Items.
};

class Session {
 public:
  explicit Session(std::unique_ptr<Link> link);

  Link* link() const { return link_.get(); }

  // The request's number; 0 when the node takes no more of them now.
  uint64_t Begin(Request* request, FrameKind kind, int64_t settle_nanos);
  // Null: no open request has that number.
  SentRequest* Find(uint64_t number);
  // 0: it is not among them.
  uint64_t NumberOf(const Request* request) const;
  void End(SentRequest* sent);
  // The caller is not told of its answers any more.
  void Leave(SentRequest* sent) { sent->request = nullptr; }

  // Not before then is there one to be settled without the node.
  int64_t settle_nanos() const { return settle_nanos_; }
  void SettleBy(SentRequest* sent, int64_t nanos);
  // Looks through all of them again: the first that is to be settled after `nanos`.
  int64_t FirstAfter(int64_t nanos) const;
  void UpdateSettle() { settle_nanos_ = FirstAfter(INT64_MIN); }

  Pulse* pulse() { return &pulse_; }

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
  int64_t settle_nanos_ = INT64_MAX;
  Pulse pulse_;
  bool settled_ = false;
};

}  // namespace aquifer
