// Tells the log what becomes of the drives: which cannot be used, or written to, and why, what
// could not be read at the start, and when one is back. Looks once a second, on the owner.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "cache/running_core.h"

namespace aquifer {

// One line for each drive that differs from what was known of it.
std::vector<std::string> DriveChanges(const std::vector<DriveStats>& before,
                                      const std::vector<DriveStats>& now);

class DriveWatch {
 public:
  // The core outlives it, and its owner still runs when it is destroyed. `log` is called on the
  // owner.
  DriveWatch(RunningCore* running, std::function<void(const std::string&)> log);
  ~DriveWatch();
  DriveWatch(const DriveWatch&) = delete;
  DriveWatch& operator=(const DriveWatch&) = delete;

 private:
  void Look();

  RunningCore* const running_;
  const std::function<void(const std::string&)> log_;
  std::vector<DriveStats> known_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Guards tasks; the owner's.
};

}  // namespace aquifer
