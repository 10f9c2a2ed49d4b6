// A Session is one connection to a node, with the caller's requests that the node has. It ends with
// the connection; the next Poll() then completes its requests. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "client/link.h"
#include "client/liveness.h"
#include "net/protocol/local_protocol.h"

namespace aquifer {

struct SentRequest {
  bool open = false;  // The node has not answered all of the request.
  // The caller's request, touched on the caller's thread only. Null if it was completed without the
  // node.
  Request* request = nullptr;
  FrameKind kind = FrameKind::kMatch;
  // When to complete the request without the node, by the system clock.
  int64_t settle_nanos = INT64_MAX;
  uint32_t generation = 1;
  size_t received = 0;  // How many items were received.
};

class Session {
 public:
  explicit Session(std::unique_ptr<Link> link);

  Link* link() const { return link_.get(); }

  // Returns the request's number, or 0 if the node takes no more requests now.
  uint64_t Begin(Request* request, FrameKind kind, int64_t settle_nanos);
  // Returns null if no open request has that number.
  SentRequest* Find(uint64_t number);
  // Returns 0 if the request is not open here.
  uint64_t NumberOf(const Request* request) const;
  void End(SentRequest* sent);
  // The request is not completed by later answers.
  void Leave(SentRequest* sent) { sent->request = nullptr; }

  // No request is due to be completed without the node before this time.
  int64_t settle_nanos() const { return settle_nanos_; }
  void SettleBy(SentRequest* sent, int64_t nanos);
  // Looks through all requests again. Returns the first time after `nanos` at which one is due.
  int64_t FirstAfter(int64_t nanos) const;
  void UpdateSettle() { settle_nanos_ = FirstAfter(INT64_MIN); }

  Liveness* liveness() { return &liveness_; }

  std::vector<SentRequest>& sent() { return sent_; }
  bool idle() const { return free_.size() == sent_.size(); }  // Returns true if no request is open.
  // Returns true if the node has answered everything, or never will, and no request waits for an
  // answer.
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
  Liveness liveness_;
  bool settled_ = false;
};

}  // namespace aquifer
