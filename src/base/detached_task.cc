#include "base/detached_task.h"

#include <system_error>
#include <thread>
#include <utility>

#include "base/thread_name.h"

namespace aquifer {

bool RunDetached(const std::string& thread_name, Task task) {
  try {
    std::thread([thread_name, task = std::move(task)]() mutable {
      NameThisThread(thread_name);
      task();
      task = nullptr;
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

}  // namespace aquifer
