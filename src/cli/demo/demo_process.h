// A process that the demonstration starts, kills and starts again: the node, a replica. It dies
// with this program, however that ends. Its output is kept, and shown where that is asked for.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "base/mutex.h"

namespace aquifer {

class DemoProcess {
 public:
  // `words` follow the program's name; no program: this one. With `shown`, its lines go to standard
  // error, too.
  static Result<std::unique_ptr<DemoProcess>> Start(const std::string& program,
                                                    const std::vector<std::string>& words,
                                                    bool shown);
  ~DemoProcess();  // Kills it.
  DemoProcess(const DemoProcess&) = delete;
  DemoProcess& operator=(const DemoProcess&) = delete;

  // The first line with this in it. None: it has ended without one, or the time is over.
  std::optional<std::string> AwaitLine(std::string_view text, std::chrono::milliseconds limit);
  std::string LastLine() const;
  // It will say no more: it has ended, or is about to.
  bool silent() const {
    const MutexLock lock(&mutex_);
    return over_;
  }

  // Signals, and waits for the end. Returns the exit status; or minus the signal that ended it.
  int End(int signal);
  // The same without a signal, once the process has closed its output.
  int Wait() { return End(0); }

 private:
  DemoProcess(pid_t pid, Descriptor output, bool shown);
  void Read(bool shown);

  pid_t pid_;  // 0: it has ended.
  int status_ = 0;
  const Descriptor output_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<std::string> lines_ AQ_GUARDED_BY(mutex_);
  bool over_ AQ_GUARDED_BY(mutex_) = false;
  std::thread reader_;
};

}  // namespace aquifer
