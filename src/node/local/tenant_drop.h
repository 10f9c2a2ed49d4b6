// Drops all that a tenant has here when its data key is gone: nothing of it could be read again,
// and what is erased for it must be the old key's alone, so that the tenant has no other key until
// then.
// On a thread of its own, because it may take a while; any thread may ask.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "block/block_id.h"
#include "cache/running_core.h"
#include "node/local/insider.h"

namespace aquifer {

class TenantDrop {
 public:
  explicit TenantDrop(std::function<void(const std::string&)> log);
  ~TenantDrop();
  TenantDrop(const TenantDrop&) = delete;
  TenantDrop& operator=(const TenantDrop&) = delete;

  // Whose blocks there may be, besides those named before: tenants that are gone from the file may
  // still have some.
  void AddTenants(const std::vector<std::string>& names) AQ_EXCLUDES(mutex_);
  // Until then nothing is dropped, for there is nothing. The core outlives Stop().
  void Serve(RunningCore* running) AQ_EXCLUDES(mutex_);
  // Ends what is under way.
  void Stop() AQ_EXCLUDES(mutex_);

  // `on_dropped` when what was there is gone, or was given up, and at once where there is nothing;
  // on any thread, and not after Stop().
  void Drop(const TenantId& tenant, std::function<void()> on_dropped) AQ_EXCLUDES(mutex_);

 private:
  void DropNow(RunningCore* running, const std::string& name) AQ_EXCLUDES(mutex_);

  const std::function<void(const std::string&)> log_;
  Mutex mutex_;
  std::map<TenantId, std::string> names_ AQ_GUARDED_BY(mutex_);
  RunningCore* running_ AQ_GUARDED_BY(mutex_) = nullptr;
  Insider* dropping_ AQ_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<WorkerPool> thread_;
};

}  // namespace aquifer
