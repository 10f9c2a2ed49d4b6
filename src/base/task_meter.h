// How much the tasks of one executor do, in entries looked at: what a task's time grows with, and
// the same on every machine. Tables count; whoever runs the tasks says when one has ended.
//
// Runs on that executor.
#pragma once

#include <algorithm>
#include <cstdint>

namespace aquifer {

class TaskMeter {
 public:
  void Count(uint64_t entries = 1) { running_ += entries; }

  void EndTask() {
    most_ = std::max(most_, running_);
    running_ = 0;
  }

  // By any one task since the last ResetMost().
  uint64_t most() const { return most_; }
  void ResetMost() { most_ = 0; }

 private:
  uint64_t running_ = 0;
  uint64_t most_ = 0;
};

}  // namespace aquifer
