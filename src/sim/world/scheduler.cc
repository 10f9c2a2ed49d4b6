#include "sim/world/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace aquifer {
namespace {

constexpr int64_t kUnixSecondsAtStart = 1'800'000'000;
constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kMicrosPerSecond = 1'000'000;

}  // namespace

Scheduler::Scheduler() { SetTime(kNanosPerSecond); }

void Scheduler::SetTime(int64_t nanos) {
  clock_.SetNanos(nanos);
  clock_.SetUnixMicros((kUnixSecondsAtStart + calendar_shift_seconds_) * kMicrosPerSecond +
                       nanos / (kNanosPerSecond / kMicrosPerSecond));
}

void Scheduler::At(int64_t nanos, Party party, Task task) {
  events_.push_back({.nanos = std::max(nanos, now()),
                     .order = next_order_++,
                     .party = party,
                     .task = std::move(task)});
  std::push_heap(events_.begin(), events_.end(), Later);
}

void Scheduler::Forget(Party party) {
  // What a task holds may, as it goes, ask for another event: so they go when the list is whole.
  const auto gone = std::partition(events_.begin(), events_.end(),
                                   [party](const Event& event) { return event.party != party; });
  std::vector<Event> forgotten(std::make_move_iterator(gone),
                               std::make_move_iterator(events_.end()));
  events_.erase(gone, events_.end());
  std::make_heap(events_.begin(), events_.end(), Later);
}

bool Scheduler::RunOne() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end(), Later);
  const Event event = std::move(events_.back());
  events_.pop_back();
  if (event.nanos > now()) SetTime(event.nanos);
  ++steps_;
  if (on_step) on_step();
  event.task();
  return true;
}

void Scheduler::Suspend(int64_t nanos) { SetTime(now() + nanos); }

void Scheduler::ShiftCalendar(int64_t seconds) {
  calendar_shift_seconds_ += seconds;
  SetTime(now());
}

}  // namespace aquifer
