// The tenants' data keys for those who may not wait: what is not known yet is read, or made, on a
// thread of the service's own, which also reads all known keys again every 20 seconds. A key that
// is gone from the store, or another one, is forgotten, and whoever was told of it drops what it
// sealed. Until that is done the tenant has no other key here: what is erased meanwhile, by names
// in which the key's id stands, must not be what the next one sealed.
//
// A key store that cannot be reached changes nothing for keys that are known; those that are
// wanted are asked for again, each after a pause of its own that grows to ten seconds. Where the
// store hangs, so does the thread, and with it the destructor.
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
  // Somebody else destroyed a tenant's key: what it sealed is to be dropped, and then `on_dropped`
  // called, on any thread while the service is there. On the thread that found out.
  std::function<void(const TenantId&, std::function<void()> on_dropped)> on_forgotten{};
  std::function<void(const std::string&)> log{};  // Any thread; may be empty.
  Clock* clock = SystemClock();
  Random* random = SystemRandom();
};

struct KeyFigures {
  size_t known = 0;
  size_t wanted = 0;  // Asked for, and not there yet.
  uint64_t forgotten = 0;
  uint64_t failures = 0;       // Keys that could not be read or made, and refreshes that failed.
  int64_t refreshed_unix = 0;  // When all were last read again; 0: not yet.
  std::string trouble{};       // What the last one failed of; empty: nothing since.
};

class KeyService final : public KeySource {
 public:
  // `masters`: the current one first.
  static Result<std::unique_ptr<KeyService>> Start(std::unique_ptr<KeyStore> store,
                                                   std::span<const SecretKey> masters,
                                                   const KeyServiceOptions& options);
  // With a wrapper of the caller's own, such as a key service's. It is called on several threads,
  // and where it waits for a network those wait who may: see above.
  static std::unique_ptr<KeyService> Start(std::unique_ptr<KeyStore> store,
                                           std::unique_ptr<KeyWrapper> wrapper,
                                           const KeyServiceOptions& options);
  ~KeyService() override;

  SharedDataKey KeyOf(const TenantId& tenant) override;
  SharedDataKey Known(const TenantId& tenant) override;
  std::optional<std::vector<DataKeyId>> Generations(const TenantId& tenant) override;
  bool IsDestroyed(const DataKeyId& id) override { return keys_.IsDestroyed(id); }
  std::vector<DataKeyId> Destroyed() override { return keys_.Destroyed(); }

  // From now on these wrap and unwrap.
  Status SetMasters(std::span<const SecretKey> masters);
  void SetWrapper(std::unique_ptr<KeyWrapper> wrapper);

  // These wait for the key store. See DataKeys.
  // `drop` runs before it returns, whatever became of the key; if it is destroyed, the tenant has
  // no key here until then.
  Status Destroy(const TenantId& tenant, const std::function<void()>& drop = {});
  Result<size_t> Rewrap() { return keys_.Rewrap(); }
  // Reads all known keys again now.
  Status Refresh();

  KeyFigures figures() const;

 private:
  // A wrapper that can be exchanged while others use it.
  class Masters;

  KeyService(std::unique_ptr<KeyStore> store, std::unique_ptr<Masters> masters,
             const KeyServiceOptions& options);

  void Run();
  // A key that somebody asked for. One that cannot be read keeps no other one waiting.
  struct Wanted {
    bool make = false;        // Where there is none.
    int64_t pause_nanos = 0;  // Before it is tried again.
    int64_t try_at = 0;
  };
  using AllWanted = std::map<TenantId, Wanted>;

  void Want(const TenantId& tenant, bool make) AQ_EXCLUDES(mutex_);
  // What to do next; waits for it. Empty, and false: read all again. True: end.
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
  std::map<TenantId, int64_t> absent_ AQ_GUARDED_BY(mutex_);  // They have no key; until when.
  int64_t refresh_at_ AQ_GUARDED_BY(mutex_) = 0;
  int64_t read_marks_at_ AQ_GUARDED_BY(mutex_) = 0;
  KeyFigures figures_ AQ_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace aquifer
