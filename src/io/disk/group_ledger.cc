#include "io/disk/group_ledger.h"

#include <utility>

namespace aquifer {

GroupLedger::GroupLedger(uint32_t max_queued, Executor* executor)
    : max_queued_(max_queued), executor_(executor) {}

GroupLedger::Active* GroupLedger::Admit(IoGroup* group) {
  size_t valid = 0;
  for (IoRequest& request : group->requests) {
    request.status = CheckRequest(request);
    if (request.status.ok()) ++valid;
  }
  {
    const MutexLock lock(&mutex_);
    if (queued_ + valid > max_queued_) {
      for (IoRequest& request : group->requests) request.status = Status(Code::kBusy);
    } else if (valid > 0) {
      queued_ += valid;
      if (free_ == nullptr) free_ = &actives_.emplace_back();
      Active* active = std::exchange(free_, free_->next_);
      active->group_ = group;
      active->remaining_ = valid;
      active->next_request_ = 0;
      active->next_ = nullptr;
      active->SkipInvalid();
      return active;
    }
    finished_.push_back(group);
  }
  Flush();
  return nullptr;
}

void GroupLedger::Finish(Active* active, const IoRequest& request) {
  const MutexLock lock(&mutex_);
  ++stats_.requests;
  if (request.status.ok()) {
    if (request.kind == IoKind::kRead) stats_.bytes_read += request.data.size();
    if (request.kind == IoKind::kWrite) stats_.bytes_written += request.data.size();
  }
  --queued_;
  if (--active->remaining_ > 0) return;
  finished_.push_back(active->group_);
  active->next_ = free_;
  free_ = active;
}

void GroupLedger::Flush() {
  bool post = false;
  {
    const MutexLock lock(&mutex_);
    const MutexLock done_lock(&done_->mutex);
    if (finished_.empty()) return;
    done_->groups.insert(done_->groups.end(), finished_.begin(), finished_.end());
    finished_.clear();
    post = !std::exchange(done_->posted, true);
  }
  if (post) executor_->Post([done = done_] { done->Run(); });
}

void GroupLedger::Done::Run() {
  {
    const MutexLock lock(&mutex);
    posted = false;
    std::swap(groups, running);
  }
  for (IoGroup* group : running) group->on_done(*group);
  running.clear();
}

IoRequest* GroupLedger::Active::Take() {
  IoRequest* request = &group_->requests[next_request_++];
  SkipInvalid();
  return request;
}

// Those still to come have not been touched: what is not ok was refused by Admit().
void GroupLedger::Active::SkipInvalid() {
  while (!taken() && !group_->requests[next_request_].status.ok()) ++next_request_;
}

void GroupQueue::Push(GroupLedger::Active* active) {
  (head_ == nullptr ? head_ : tail_->next_) = active;
  tail_ = active;
}

GroupQueue::Next GroupQueue::Pop() {
  if (head_ == nullptr) return {};
  GroupLedger::Active* active = head_;
  IoRequest* request = active->Take();
  if (active->taken()) head_ = active->next_;
  return {.active = active, .request = request};
}

DiskStats GroupLedger::stats() const {
  const MutexLock lock(&mutex_);
  DiskStats stats = stats_;
  stats.submit_calls = calls_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace aquifer
