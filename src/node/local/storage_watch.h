// Tells the log what becomes of drives and durable tiers: which cannot be used, or written to, and
// why, what could not be read at the start, and when one is back. Looks once a second, on the
// owner.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "cache/core_snapshot.h"
#include "cache/running_core.h"

namespace aquifer {

// One line for each drive that differs from what was known of it.
std::vector<std::string> DriveChanges(const std::vector<DriveStats>& before,
                                      const std::vector<DriveStats>& now);

// One for each durable tier that left service or is back; for one that is back already, one too.
std::vector<std::string> TierChanges(const std::vector<DurableStats>& before,
                                     const std::vector<DurableStats>& now);

class StorageWatch {
 public:
  // The core outlives it, and its owner still runs when it is destroyed. `log` is called on the
  // owner.
  StorageWatch(RunningCore* running, std::function<void(const std::string&)> log);
  ~StorageWatch();
  StorageWatch(const StorageWatch&) = delete;
  StorageWatch& operator=(const StorageWatch&) = delete;

 private:
  void Look();

  RunningCore* const running_;
  const std::function<void(const std::string&)> log_;
  std::vector<DriveStats> known_drives_;
  std::vector<DurableStats> known_tiers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Guards tasks; the owner's.
};

}  // namespace aquifer
