#include "tenant/key_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/thread_name.h"

namespace aquifer {
namespace {

constexpr int64_t kFirstPauseNanos = 200'000'000;
constexpr int64_t kMostPauseNanos = 10'000'000'000;
constexpr size_t kMaxWanted = 65536;  // Whoever asks when there are more asks again.

}  // namespace

// Shared, because one that was exchanged may still be wrapping.
class KeyService::Masters final : public KeyWrapper {
 public:
  explicit Masters(std::shared_ptr<KeyWrapper> wrapper) : wrapper_(std::move(wrapper)) {}

  void Set(std::shared_ptr<KeyWrapper> wrapper) {
    const MutexLock lock(&mutex_);
    wrapper_ = std::move(wrapper);
  }

  MasterKeyId current() const override { return Now()->current(); }
  Result<std::vector<std::byte>> Wrap(const SecretKey& key,
                                      std::span<const std::byte> associated) override {
    return Now()->Wrap(key, associated);
  }
  Result<SecretKey> Unwrap(const MasterKeyId& master, std::span<const std::byte> wrapped,
                           std::span<const std::byte> associated) override {
    return Now()->Unwrap(master, wrapped, associated);
  }

 private:
  std::shared_ptr<KeyWrapper> Now() const {
    const MutexLock lock(&mutex_);
    return wrapper_;
  }

  mutable Mutex mutex_;
  std::shared_ptr<KeyWrapper> wrapper_ AQ_GUARDED_BY(mutex_);
};

Result<std::unique_ptr<KeyService>> KeyService::Start(std::unique_ptr<KeyStore> store,
                                                      std::span<const SecretKey> masters,
                                                      const KeyServiceOptions& options) {
  AQ_ASSIGN_OR_RETURN(std::shared_ptr<KeyWrapper> wrapper,
                      NewMasterKeyWrapper(masters, options.random));
  return std::unique_ptr<KeyService>(
      new KeyService(std::move(store), std::make_unique<Masters>(std::move(wrapper)), options));
}

KeyService::KeyService(std::unique_ptr<KeyStore> store, std::unique_ptr<Masters> masters,
                       const KeyServiceOptions& options)
    : options_(options),
      store_(std::move(store)),
      masters_(std::move(masters)),
      keys_(store_.get(), masters_.get(), options.random),
      refresh_at_(options.clock->NowNanos() + options.refresh_nanos),
      thread_([this] { Run(); }) {}

KeyService::~KeyService() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

SharedDataKey KeyService::KeyOf(const TenantId& tenant) {
  if (SharedDataKey known = keys_.Known(tenant)) return known;
  const MutexLock lock(&mutex_);
  if (wanted_.size() < kMaxWanted && wanted_.insert(tenant).second) changed_.NotifyAll();
  return nullptr;
}

Status KeyService::SetMasters(std::span<const SecretKey> masters) {
  AQ_ASSIGN_OR_RETURN(std::shared_ptr<KeyWrapper> wrapper,
                      NewMasterKeyWrapper(masters, options_.random));
  masters_->Set(std::move(wrapper));
  const MutexLock lock(&mutex_);
  try_at_ = 0;  // What was wrapped by one that was not known may be by one of these.
  changed_.NotifyAll();
  return Status();
}

Status KeyService::Destroy(const TenantId& tenant) {
  AQ_RETURN_IF_ERROR(keys_.Destroy(tenant));
  const MutexLock lock(&mutex_);
  ++figures_.forgotten;
  return Status();
}

Status KeyService::Refresh() {
  const DataKeys::Refreshed refreshed = keys_.Refresh();
  for (const TenantId& tenant : refreshed.forgotten) {
    if (options_.log) {
      options_.log(
          fmt::format("the data key of a tenant is gone from the key store: all that was "
                      "sealed with it is dropped"));
    }
    Forget(tenant);
  }
  Heard(refreshed.status);
  if (!refreshed.status.ok()) return refreshed.status;
  const MutexLock lock(&mutex_);
  figures_.refreshed_unix = options_.clock->UnixSeconds();
  return Status();
}

KeyFigures KeyService::figures() const {
  const size_t known = keys_.known();
  const MutexLock lock(&mutex_);
  KeyFigures figures = figures_;
  figures.known = known;
  figures.wanted = wanted_.size();
  return figures;
}

void KeyService::Run() {
  NameThisThread("aq-keys");
  std::set<TenantId> wanted;
  while (!Await(&wanted)) {
    if (!wanted.empty()) {
      Find(wanted);
    } else {
      [[maybe_unused]] const Status told = Refresh();  // Heard() has it.
    }
  }
}

bool KeyService::Await(std::set<TenantId>* wanted) {
  const MutexLock lock(&mutex_);
  while (!ending_) {
    const int64_t now = options_.clock->NowNanos();
    if (!wanted_.empty() && now >= try_at_) {
      *wanted = wanted_;
      return false;
    }
    if (now >= refresh_at_) {
      refresh_at_ = now + options_.refresh_nanos;
      wanted->clear();
      return false;
    }
    const int64_t until = wanted_.empty() ? refresh_at_ : std::min(refresh_at_, try_at_);
    changed_.WaitFor(&mutex_, until - now);
  }
  return true;
}

void KeyService::Find(const std::set<TenantId>& tenants) {
  Status trouble;
  for (const TenantId& tenant : tenants) {
    const Result<SharedDataKey> found = keys_.GetOrMake(tenant);
    if (!found.ok()) {
      if (trouble.ok()) trouble = found.status();
      continue;
    }
    const MutexLock lock(&mutex_);
    wanted_.erase(tenant);
    if (ending_) return;
  }
  Heard(trouble);
  const MutexLock lock(&mutex_);
  pause_nanos_ = trouble.ok() ? 0 : std::clamp(2 * pause_nanos_, kFirstPauseNanos, kMostPauseNanos);
  try_at_ = trouble.ok() ? 0 : options_.clock->NowNanos() + pause_nanos_;
}

void KeyService::Forget(const TenantId& tenant) {
  {
    const MutexLock lock(&mutex_);
    ++figures_.forgotten;
  }
  if (options_.on_forgotten) options_.on_forgotten(tenant);
}

// Only what is new is worth a line.
void KeyService::Heard(const Status& status) {
  std::string line;
  {
    const MutexLock lock(&mutex_);
    if (!status.ok()) ++figures_.failures;
    if (figures_.trouble == status.message()) return;
    figures_.trouble = status.message();
    line = status.ok() ? "data keys can be read again"
                       : fmt::format("data keys cannot be read: {}", status.message());
  }
  if (options_.log) options_.log(line);
}

}  // namespace aquifer
