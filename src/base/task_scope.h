// Posts tasks for one object, and drops them when the object goes: a task that is still queued by
// then does nothing. The scope is a member of the object, and its tasks may touch the object
// freely.
//
// Runs on the executor, and is destroyed there or when the executor runs no more.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/executor.h"

namespace aquifer {

class TaskScope {
 public:
  explicit TaskScope(Executor* executor) : executor_(executor) {}
  ~TaskScope() { Close(); }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  // Drops all tasks from now on, for an object that has more to do before it goes.
  void Close() { *alive_ = false; }

  template <class F>
  void Post(F task) {
    executor_->Post([task = std::move(task), alive = alive_]() mutable {
      if (*alive) task();
    });
  }
  template <class F>
  void PostAt(int64_t at_nanos, F task) {
    executor_->PostAt(at_nanos, [task = std::move(task), alive = alive_]() mutable {
      if (*alive) task();
    });
  }
  // For a callback that may come after the object is gone: it does nothing then.
  template <class F>
  auto Guard(F callback) const {
    return [callback = std::move(callback), alive = alive_](auto&&... arguments) {
      if (*alive) callback(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // A task that is queued at most once: asked for again before it has begun, it runs once for all.
  // It is a member of the object too, behind its scope.
  class Once {
   public:
    // Posts `task`, unless one that was posted here is still to begin.
    template <class F>
    void Post(TaskScope* scope, F task) {
      if (std::exchange(posted_, true)) return;
      scope->Post([this, task = std::move(task)]() mutable {
        posted_ = false;
        task();
      });
    }
    template <class F>
    void PostAt(TaskScope* scope, int64_t at_nanos, F task) {
      if (std::exchange(posted_, true)) return;
      scope->PostAt(at_nanos, [this, task = std::move(task)]() mutable {
        posted_ = false;
        task();
      });
    }
    // Returns true if a task is queued.
    bool posted() const { return posted_; }

   private:
    bool posted_ = false;
  };

 private:
  Executor* const executor_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
