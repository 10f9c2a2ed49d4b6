// KeyService gives tenants' data keys to callers that may not wait. A thread of the service reads
// or makes the keys that are not known yet. It also reads all known keys again every 20 seconds. A
// key that is gone from the store, or was replaced, is forgotten, and `on_forgotten` tells the node
// to drop the blocks that it sealed. The tenant has no other key here until that is done. Blocks
// are erased by names that contain the key's id, so an erasure must never meet a block of the next
// key.
//
// If the key store cannot be reached, known keys stay as they are. Wanted keys are asked for again,
// each after a pause of its own that grows to ten seconds. If the store hangs, the thread hangs,
// and the destructor with it.
//
// Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/crypto/secret_key.h"
#include "base/mutex.h"
#include "block/key_source.h"
#include "tenant/keys/data_keys.h"
#include "tenant/keys/key_store.h"
#include "tenant/keys/key_wrapper.h"

namespace aquifer {

struct KeyServiceOptions {
  int64_t refresh_nanos = 20'000'000'000;
  // Another node destroyed a tenant's key. The receiver drops the blocks that the key sealed, and
  // then calls `on_dropped`, on any thread while the service lives. Runs on the thread that found
  // out.
  std::function<void(const TenantId&, std::function<void()> on_dropped)> on_forgotten{};
  std::function<void(const std::string&)> log{};  // Any thread; may be empty.
  // A store that this node has not used before may be on its way. For so long after the start what
  // fails is shown by figures() and not logged.
  int64_t patience_nanos = 0;
  Clock* clock = SystemClock();
  Random* random = SystemRandom();
};

struct KeyFigures {
  size_t known = 0;
  size_t wanted = 0;  // Keys that were asked for and are not known yet.
  uint64_t forgotten = 0;
  uint64_t failures = 0;       // Keys that could not be read or made, and refreshes that failed.
  int64_t refreshed_unix = 0;  // When all keys were last read again; 0: not yet.
  std::string trouble{};       // The last error; empty if all went well since.
};

class KeyService final : public KeySource {
 public:
  // `masters`: the current one first.
  static Result<std::unique_ptr<KeyService>> Start(std::unique_ptr<KeyStore> store,
                                                   std::span<const SecretKey> masters,
                                                   const KeyServiceOptions& options);
  // With a wrapper of the caller's own, such as a key service's. It is called on several threads.
  // If it waits for a network, only callers that may wait do so.
  static std::unique_ptr<KeyService> Start(std::unique_ptr<KeyStore> store,
                                           std::unique_ptr<KeyWrapper> wrapper,
                                           const KeyServiceOptions& options);
  ~KeyService() override;

  SharedDataKey KeyOf(const TenantId& tenant) override;
  SharedDataKey Known(const TenantId& tenant) override;
  std::optional<std::vector<DataKeyId>> Generations(const TenantId& tenant) override;
  bool Missing(const TenantId& tenant) override;
  bool IsDestroyed(const DataKeyId& id) override { return keys_.IsDestroyed(id); }
  std::vector<DataKeyId> Destroyed() override { return keys_.Destroyed(); }

  // From now on these master keys wrap and unwrap.
  Status SetMasters(std::span<const SecretKey> masters);
  void SetWrapper(std::unique_ptr<KeyWrapper> wrapper);

  // These functions wait for the key store; see DataKeys. `drop` runs before Destroy() returns,
  // even if that failed. If the key was destroyed, the tenant has no key here until `drop` has run.
  Status Destroy(const TenantId& tenant, const std::function<void()>& drop = {});
  Result<size_t> Rewrap() { return keys_.Rewrap(); }
  // Returns false if the key store has no key of the tenant. Waits for the store, and returns true
  // where that cannot be told.
  bool MayHaveKey(const TenantId& tenant) {
    return keys_.Get(tenant).status().code() != Code::kNotFound;
  }
  // Reads all known keys again now.
  Status Refresh();

  KeyFigures figures() const;

 private:
  // A wrapper that can be exchanged while others use it.
  class Masters;

  KeyService(std::unique_ptr<KeyStore> store, std::unique_ptr<Masters> masters,
             const KeyServiceOptions& options);

  void Run();
  // A key that a caller asked for. A key that cannot be read does not delay the others.
  struct Wanted {
    bool make = false;  // Make one if there is none.
    int64_t since_nanos = 0;
    int64_t pause_nanos = 0;  // How long to wait before the next try; 0: it has not failed yet.
    int64_t try_at = 0;
  };
  using AllWanted = std::map<TenantId, Wanted>;

  void Want(const TenantId& tenant, bool make) AQ_EXCLUDES(mutex_);
  // Waits for work. Returns true if the thread is to end. With `wanted` empty, read all known keys
  // again.
  bool Await(AllWanted* wanted) AQ_EXCLUDES(mutex_);
  void Find(const AllWanted& tenants) AQ_EXCLUDES(mutex_);
  void Found(const TenantId& tenant, bool made, const Status& status) AQ_EXCLUDES(mutex_);
  Status ReadMarks() AQ_EXCLUDES(mutex_);
  void Forget(const TenantId& tenant) AQ_EXCLUDES(mutex_);
  void Release(const TenantId& tenant) AQ_EXCLUDES(mutex_);
  void Heard(const Status& status) AQ_EXCLUDES(mutex_);

  const KeyServiceOptions options_;
  const std::unique_ptr<KeyStore> store_;
  const std::unique_ptr<Masters> masters_;
  DataKeys keys_;

  mutable Mutex mutex_;
  Condition changed_;
  bool ending_ AQ_GUARDED_BY(mutex_) = false;
  AllWanted wanted_ AQ_GUARDED_BY(mutex_);
  // Tenants without a key, and until when that is believed.
  std::map<TenantId, int64_t> absent_ AQ_GUARDED_BY(mutex_);
  int64_t refresh_at_ AQ_GUARDED_BY(mutex_) = 0;
  int64_t read_marks_at_ AQ_GUARDED_BY(mutex_) = 0;
  KeyFigures figures_ AQ_GUARDED_BY(mutex_);
  const int64_t log_from_;                    // Failures before are not logged.
  std::string logged_ AQ_GUARDED_BY(mutex_);  // The last trouble that was.
  std::thread thread_;
};

}  // namespace aquifer
