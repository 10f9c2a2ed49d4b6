#include "client/session.h"

#include <algorithm>
#include <utility>

namespace aquifer {

Session::Session(std::unique_ptr<Link> link)
    : link_(std::move(link)), sent_(link_->max_requests()) {
  for (uint32_t i = 0; i < sent_.size(); ++i) free_.push_back(i);
}

uint64_t Session::Begin(Request* request, FrameKind kind, int64_t settle_nanos) {
  if (free_.empty()) return 0;
  const uint32_t place = free_.back();
  free_.pop_back();
  sent_[place].open = true;
  sent_[place].request = request;
  sent_[place].kind = kind;
  sent_[place].received = 0;
  sent_[place].settle_nanos = INT64_MAX;
  SettleBy(&sent_[place], settle_nanos);
  return NumberAt(place);
}

SentRequest* Session::Find(uint64_t number) {
  const auto place = static_cast<uint32_t>(number);
  if (place >= sent_.size() || !sent_[place].open) return nullptr;
  return NumberAt(place) == number ? &sent_[place] : nullptr;
}

uint64_t Session::NumberOf(const Request* request) const {
  const auto found = std::find_if(sent_.begin(), sent_.end(), [request](const SentRequest& sent) {
    return sent.request == request;
  });
  return found == sent_.end() ? 0 : NumberAt(static_cast<size_t>(found - sent_.begin()));
}

void Session::End(SentRequest* sent) {
  sent->open = false;
  sent->request = nullptr;
  ++sent->generation;
  free_.push_back(static_cast<uint32_t>(sent - sent_.data()));
}

void Session::SettleBy(SentRequest* sent, int64_t nanos) {
  sent->settle_nanos = std::min(sent->settle_nanos, nanos);
  settle_nanos_ = std::min(settle_nanos_, sent->settle_nanos);
}

int64_t Session::FirstAfter(int64_t nanos) const {
  int64_t first = INT64_MAX;
  for (const SentRequest& sent : sent_) {
    if (sent.request != nullptr && sent.settle_nanos > nanos) {
      first = std::min(first, sent.settle_nanos);
    }
  }
  return first;
}

}  // namespace aquifer
