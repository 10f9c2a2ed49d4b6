// While it lives, interrupts whatever the thread that made it waits for in the kernel, again and
// again: a close() that lingers, or a read() of a terminal. A call that the kernel does not allow
// to be interrupted still waits.
//
// Takes the first real-time signal of the process, for whose arrival nothing is done.
#pragma once

#include <cstdint>
#include <ctime>

namespace aquifer {

class Interruption {
 public:
  explicit Interruption(int64_t interval_nanos);
  ~Interruption();  // On the same thread.
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

 private:
  timer_t timer_{};
  bool set_ = false;  // False: the system had no timer to give, and nothing is interrupted.
};

}  // namespace aquifer
