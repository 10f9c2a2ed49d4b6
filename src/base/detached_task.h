// Runs a task that may never end, such as opening a directory on a drive that hangs, on a thread
// of its own that nobody waits for. The task owns, or shares, everything that it touches.
#pragma once

#include <string>

#include "base/executor.h"

namespace aquifer {

// False: the system has no thread to give now; the task was not run.
[[nodiscard]] bool RunDetached(const std::string& thread_name, Task task);

}  // namespace aquifer
