// Simulated time, and everything that is going to happen in it. One event runs at a time, in the
// order of their times; between two events time jumps, so an idle hour costs nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/executor.h"
#include "testing/manual_clock.h"

namespace aquifer {

class Scheduler {
 public:
  // Whose an event is. What dies takes its events with it; 0 is nobody's.
  using Party = uint32_t;

  Scheduler();

  ManualClock* clock() { return &clock_; }
  int64_t now() const { return clock_.NowNanos(); }
  int64_t unix_seconds() const { return clock_.UnixSeconds(); }
  uint64_t steps() const { return steps_; }

  Party NewParty() { return ++parties_; }
  void At(int64_t nanos, Party party, Task task);
  void Forget(Party party);

  // Moves time to the next event and runs it; false when there is none.
  bool RunOne();
  // Called before each event, at its time; may be empty.
  std::function<void()> on_step;

  // The host sleeps: time passes and nothing runs, so what was due meanwhile is late.
  void Suspend(int64_t nanos);
  // The calendar is set, forwards or backwards. Only it notices.
  void ShiftCalendar(int64_t seconds);

 private:
  struct Event {
    int64_t nanos = 0;
    uint64_t order = 0;  // Of those at the same time, the first that was asked for comes first.
    Party party = 0;
    Task task;
  };
  // For the heap, whose top is its largest.
  static bool Later(const Event& a, const Event& b) {
    return a.nanos != b.nanos ? a.nanos > b.nanos : a.order > b.order;
  }
  void SetTime(int64_t nanos);

  ManualClock clock_;
  int64_t calendar_shift_seconds_ = 0;
  std::vector<Event> events_;
  uint64_t next_order_ = 0;
  Party parties_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace aquifer
