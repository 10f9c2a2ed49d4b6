// Lines for a log, from threads that must not wait: writing to a pipe that nobody reads takes for
// ever. They are queued, and a thread of the log's own writes them. Lines that the queue has no
// room for, or that one user causes faster than anyone would read, are left out and counted; the
// log says how many they were. Nobody can keep out the lines of others, nor the process's own.
//
// Any thread may write. The thread may outlast the log, stuck in a write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"

namespace aquifer {

struct LineLogOptions {
  int descriptor = 2;              // Stays the caller's.
  size_t max_queued_lines = 1024;  // Half of them can be others' lines.
  // Of each who causes lines: so many at once, and then so many a second.
  uint32_t burst_lines = 60;
  uint32_t lines_per_second = 1;
  int64_t goodbye_nanos = 1'000'000'000;  // That the destructor waits for the last lines.
  // The line that tells how many were left out; empty: plain text. It may be called when the log is
  // gone.
  std::function<std::string(uint64_t count)> left_out_line{};
};

class LineLog {
 public:
  LineLog(const LineLogOptions& options, Clock* clock);
  ~LineLog();

  // Without its end of line.
  void Write(std::string line);
  // One that somebody caused who may cause as many as they like: a user of the host.
  void WriteFor(uint32_t user, std::string line);

 private:
  class Queue;

  const std::shared_ptr<Queue> queue_;  // Shared with the thread.
};

}  // namespace aquifer
