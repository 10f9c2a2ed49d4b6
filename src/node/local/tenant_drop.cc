#include "node/local/tenant_drop.h"

#include <fmt/format.h>

#include <utility>

namespace aquifer {
namespace {

// Meanwhile the tenant has no key. What is gone from memory by then is most of it; drives and
// stores may go on.
constexpr int64_t kDropNanos = 60'000'000'000;

}  // namespace

TenantDrop::TenantDrop(std::function<void(const std::string&)> log)
    : log_(std::move(log)), thread_(NewThreadWorkerPool(1, "aq-drop")) {}

TenantDrop::~TenantDrop() { Stop(); }

void TenantDrop::AddTenants(const std::vector<std::string>& names) {
  const MutexLock lock(&mutex_);
  for (const std::string& name : names) names_.emplace(TenantIdOf(name), name);
}

void TenantDrop::Serve(RunningCore* running) {
  const MutexLock lock(&mutex_);
  running_ = running;
}

void TenantDrop::Stop() {
  {
    const MutexLock lock(&mutex_);
    running_ = nullptr;
    if (dropping_ != nullptr) dropping_->Cancel();
  }
  thread_.reset();
}

void TenantDrop::Drop(const TenantId& tenant, std::function<void()> on_dropped) {
  {
    const MutexLock lock(&mutex_);
    const auto found = names_.find(tenant);
    if (running_ != nullptr && found != names_.end()) {
      return thread_->Run(
          [this, running = running_, name = found->second, on_dropped = std::move(on_dropped)] {
            DropNow(running, name);
            on_dropped();
          });
    }
  }
  on_dropped();
}

void TenantDrop::DropNow(RunningCore* running, const std::string& name) {
  {
    const MutexLock lock(&mutex_);
    if (running_ == nullptr) return;
  }
  Result<std::unique_ptr<Insider>> insider = Insider::New(running, {.tenant = name});
  if (!insider.ok()) return log_("cannot drop a tenant's blocks: " + insider.status().message());
  {
    const MutexLock lock(&mutex_);
    if (running_ == nullptr) return;
    dropping_ = insider->get();
  }
  EvictRequest request;
  request.everything = true;
  (*insider)->EvictWithin(kDropNanos, &request);
  {
    const MutexLock lock(&mutex_);
    dropping_ = nullptr;
  }
  // What could not be dropped cannot be read either.
  log_(fmt::format("the data key of tenant {} is gone: {} of its blocks here were dropped", name,
                   request.evicted));
}

}  // namespace aquifer
