// Keeps the promises about groups that both engines make: no more requests than the bound, and one
// on_done for each group, on the executor, after its last request. Any thread may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "io/disk/disk.h"

namespace aquifer {

class GroupLedger {
 public:
  GroupLedger(uint32_t max_queued, Executor* executor);

  // A group that is under way, on its way through the engine's queue. Not for two threads at once.
  class Active {
   public:
    // The next request to be done. After the last one has been taken the group may finish, and with
    // it this object, at any moment.
    IoRequest* Take();
    size_t remaining() const { return remaining_; }
    bool taken() const { return next_request_ == group_->requests.size(); }  // All of them.
    bool bulk() const { return group_->bulk; }

   private:
    friend class GroupLedger;
    friend class GroupQueue;
    void SkipInvalid();

    IoGroup* group_ = nullptr;
    size_t remaining_ = 0;     // Requests that have not finished.
    size_t next_request_ = 0;  // The first to be done that was not taken.
    Active* next_ = nullptr;   // In a GroupQueue, or among the free ones.
  };

  // Sets the status of what is not to be done. Null when there is nothing to do, because the group
  // did not fit or no request was valid; its on_done is then on its way.
  Active* Admit(IoGroup* group);

  // One request's status is final. After the last one the group is done, but on_done is on its way
  // only after Flush().
  void Finish(Active* active, const IoRequest& request);

  // Hands everything that is done to the executor, in one task.
  void Flush();

  void CountCalls(uint64_t calls) { calls_.fetch_add(calls, std::memory_order_relaxed); }
  DiskStats stats() const;

 private:
  // Shared with the task in the executor, which may run after the disk is gone.
  struct Done {
    Mutex mutex;
    std::vector<IoGroup*> groups AQ_GUARDED_BY(mutex);
    bool posted AQ_GUARDED_BY(mutex) = false;  // A task that will take `groups` is in the executor.
    std::vector<IoGroup*> running;             // Only that task touches it.

    void Run();
  };

  const uint32_t max_queued_;
  Executor* const executor_;
  const std::shared_ptr<Done> done_ = std::make_shared<Done>();

  mutable Mutex mutex_;
  uint64_t queued_ AQ_GUARDED_BY(mutex_) = 0;
  // Never shrinks, so that addresses hold and nothing is allocated.
  std::deque<Active> actives_ AQ_GUARDED_BY(mutex_);
  Active* free_ AQ_GUARDED_BY(mutex_) = nullptr;
  std::vector<IoGroup*> finished_ AQ_GUARDED_BY(mutex_);  // Since the last Flush().
  DiskStats stats_ AQ_GUARDED_BY(mutex_);

  std::atomic<uint64_t> calls_{0};
};

// Groups in the order they came, linked through themselves. One thread at a time.
class GroupQueue {
 public:
  void Push(GroupLedger::Active* active);

  // A request to be done and its group; {} when there is none.
  struct Next {
    GroupLedger::Active* active = nullptr;
    IoRequest* request = nullptr;
  };
  Next Pop();
  bool empty() const { return head_ == nullptr; }

 private:
  GroupLedger::Active* head_ = nullptr;
  GroupLedger::Active* tail_ = nullptr;
};

}  // namespace aquifer
