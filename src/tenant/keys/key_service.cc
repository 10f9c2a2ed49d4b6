#include "tenant/keys/key_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/thread_name.h"

namespace aquifer {
namespace {

constexpr int64_t kFirstPauseNanos = 200'000'000;
constexpr int64_t kMostPauseNanos = 10'000'000'000;
// A tenant without a key may get one on another node.
constexpr int64_t kAbsentNanos = 10'000'000'000;
constexpr int64_t kPatienceNanos = 200'000'000;  // A key store usually answers sooner.
constexpr int64_t kReadMarksNanos = 600'000'000'000;
constexpr size_t kMaxWanted = 65536;  // Requests beyond this are dropped; their callers ask again.

}  // namespace

// Shared, because a wrapper that was replaced may still be in use.
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
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<KeyWrapper> wrapper,
                      NewMasterKeyWrapper(masters, options.random));
  return Start(std::move(store), std::move(wrapper), options);
}

std::unique_ptr<KeyService> KeyService::Start(std::unique_ptr<KeyStore> store,
                                              std::unique_ptr<KeyWrapper> wrapper,
                                              const KeyServiceOptions& options) {
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
      log_from_(options.clock->NowNanos() + options.patience_nanos),
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
  Want(tenant, true);
  return nullptr;
}

SharedDataKey KeyService::Known(const TenantId& tenant) {
  if (SharedDataKey known = keys_.Known(tenant)) return known;
  Want(tenant, false);
  return nullptr;
}

std::optional<std::vector<DataKeyId>> KeyService::Generations(const TenantId& tenant) {
  std::vector<DataKeyId> all = keys_.Past(tenant);
  if (const SharedDataKey known = Known(tenant)) {
    all.push_back(known->id);
    return all;
  }
  if (keys_.held(tenant)) return all;
  const MutexLock lock(&mutex_);
  const auto absent = absent_.find(tenant);
  const bool sure = absent != absent_.end() && options_.clock->NowNanos() < absent->second;
  return sure ? std::optional(std::move(all)) : std::nullopt;
}

bool KeyService::Missing(const TenantId& tenant) {
  if (keys_.Known(tenant) != nullptr) return false;
  const int64_t now = options_.clock->NowNanos();
  const MutexLock lock(&mutex_);
  const auto found = wanted_.find(tenant);
  if (found == wanted_.end()) return false;
  return found->second.pause_nanos > 0 || now - found->second.since_nanos >= kPatienceNanos;
}

void KeyService::Want(const TenantId& tenant, bool make) {
  if (keys_.held(tenant)) return;  // The caller asks again.
  const MutexLock lock(&mutex_);
  if (!make) {
    const auto absent = absent_.find(tenant);
    if (absent != absent_.end() && options_.clock->NowNanos() < absent->second) return;
  }
  const auto found = wanted_.find(tenant);
  if (found != wanted_.end()) {
    found->second.make = found->second.make || make;
  } else if (wanted_.size() < kMaxWanted) {
    wanted_[tenant] = {.make = make, .since_nanos = options_.clock->NowNanos()};
    changed_.NotifyAll();
  }
}

Status KeyService::SetMasters(std::span<const SecretKey> masters) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<KeyWrapper> wrapper,
                      NewMasterKeyWrapper(masters, options_.random));
  SetWrapper(std::move(wrapper));
  return Status();
}

void KeyService::SetWrapper(std::unique_ptr<KeyWrapper> wrapper) {
  masters_->Set(std::move(wrapper));
  const MutexLock lock(&mutex_);
  // Keys that an unknown master key had wrapped may be readable now.
  for (auto& [tenant, wanted] : wanted_) wanted.try_at = 0;
  changed_.NotifyAll();
}

Status KeyService::Destroy(const TenantId& tenant, const std::function<void()>& drop) {
  Status destroyed = keys_.Destroy(tenant);
  if (destroyed.ok()) {
    const MutexLock lock(&mutex_);
    ++figures_.forgotten;
  }
  if (drop) drop();
  if (destroyed.ok()) Release(tenant);
  return destroyed;
}

Status KeyService::Refresh() {
  const DataKeys::Refreshed refreshed = keys_.Refresh();
  for (const TenantId& tenant : refreshed.forgotten) Forget(tenant);
  Status status = refreshed.status;
  if (status.ok()) status = ReadMarks();
  Heard(status);
  if (!status.ok()) return status;
  const MutexLock lock(&mutex_);
  figures_.refreshed_unix = options_.clock->UnixSeconds();
  return Status();
}

// Read rarely: only the sweeps of stores need the marks.
Status KeyService::ReadMarks() {
  const int64_t now = options_.clock->NowNanos();
  {
    const MutexLock lock(&mutex_);
    if (now < read_marks_at_) return Status();
  }
  AQ_RETURN_IF_ERROR(keys_.ReadMarks());
  const MutexLock lock(&mutex_);
  read_marks_at_ = now + kReadMarksNanos;
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
  // Keys destroyed before this process began may still have objects to sweep from stores.
  if (const Status read = ReadMarks(); !read.ok()) Heard(read);
  AllWanted wanted;
  while (!Await(&wanted)) {
    if (!wanted.empty()) {
      Find(wanted);
    } else {
      [[maybe_unused]] const Status told = Refresh();  // Refresh() has passed it to Heard().
    }
  }
}

bool KeyService::Await(AllWanted* wanted) {
  const MutexLock lock(&mutex_);
  while (!ending_) {
    const int64_t now = options_.clock->NowNanos();
    int64_t until = refresh_at_;
    wanted->clear();
    for (const auto& one : wanted_) {
      if (now >= one.second.try_at) wanted->insert(one);
      until = std::min(until, one.second.try_at);
    }
    if (!wanted->empty()) return false;
    if (now >= refresh_at_) {
      refresh_at_ = now + options_.refresh_nanos;
      std::erase_if(absent_, [now](const auto& one) { return now >= one.second; });
      return false;
    }
    changed_.WaitFor(&mutex_, until - now);
  }
  return true;
}

void KeyService::Find(const AllWanted& tenants) {
  Status trouble;
  for (const auto& [tenant, wanted] : tenants) {
    const Status status = (wanted.make ? keys_.GetOrMake(tenant) : keys_.Get(tenant)).status();
    const bool none = !wanted.make && status.code() == Code::kNotFound;
    const bool later = status.code() == Code::kBusy;  // kBusy is not the store's failure.
    if (!status.ok() && !none && !later && trouble.ok()) trouble = status;
    Found(tenant, wanted.make, status);
    const MutexLock lock(&mutex_);
    if (ending_) return;
  }
  Heard(trouble);
}

void KeyService::Found(const TenantId& tenant, bool made, const Status& status) {
  const MutexLock lock(&mutex_);
  const int64_t now = options_.clock->NowNanos();
  const bool none = !made && status.code() == Code::kNotFound;
  if (none) absent_[tenant] = now + kAbsentNanos;
  if (status.ok()) absent_.erase(tenant);
  const auto found = wanted_.find(tenant);
  // A key that was only looked for may have to be made by now.
  if (status.ok() || (none && !found->second.make)) {
    wanted_.erase(found);
  } else if (!none) {
    Wanted& wanted = found->second;
    wanted.pause_nanos = std::clamp(2 * wanted.pause_nanos, kFirstPauseNanos, kMostPauseNanos);
    wanted.try_at = now + wanted.pause_nanos;
  }
}

void KeyService::Forget(const TenantId& tenant) {
  {
    const MutexLock lock(&mutex_);
    ++figures_.forgotten;
  }
  if (!options_.on_forgotten) return Release(tenant);
  options_.on_forgotten(tenant, [this, tenant] { Release(tenant); });
}

void KeyService::Release(const TenantId& tenant) {
  keys_.Release(tenant);
  const MutexLock lock(&mutex_);
  absent_.erase(tenant);  // Another node may have made one meanwhile.
  if (const auto found = wanted_.find(tenant); found != wanted_.end()) found->second.try_at = 0;
  changed_.NotifyAll();
}

// Only a new error is logged.
void KeyService::Heard(const Status& status) {
  std::string line;
  {
    const MutexLock lock(&mutex_);
    const auto fails = [](const auto& one) { return one.second.pause_nanos > 0; };
    if (status.ok() && std::ranges::any_of(wanted_, fails)) return;
    if (!status.ok()) ++figures_.failures;
    figures_.trouble = status.message();
    if (logged_ == status.message() || options_.clock->NowNanos() < log_from_) return;
    logged_ = status.message();
    line = status.ok() ? "data keys can be read again"
                       : fmt::format("data keys cannot be read: {}", status.message());
  }
  if (options_.log) options_.log(line);
}

}  // namespace aquifer
