// `aquifer serve` as a process of its own, for tests of the program and of what outlives it. It
// dies with this process.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "testing/child_process.h"

namespace aquifer {

class ServedNode {
 public:
  // `arguments` follow "serve"; `wrapper`, if any, is a command that runs the program. Returns at
  // once.
  ServedNode(const std::string& program, const std::vector<std::string>& arguments,
             const std::vector<std::string>& wrapper = {});

  // Returns true if it serves, soon. Its output until then is in said().
  bool AwaitReady();
  // Reads on until the node's log has a line with this in it; false when none comes.
  bool AwaitLine(const std::string& text);
  const std::string& said() const { return said_; }

  pid_t pid() const { return process_->pid(); }
  void Signal(int signal) { process_->Signal(signal); }
  void Kill() { process_->Kill(); }
  int Wait() { return process_->Wait(); }

 private:
  std::unique_ptr<ChildProcess> process_;
  std::string said_;
};

}  // namespace aquifer
