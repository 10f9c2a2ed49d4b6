#include "tenant/keys/mounted_keys.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/mutex.h"

namespace aquifer {
namespace {

class MountedKeys final : public KeyStore {
 public:
  MountedKeys(std::string directory, std::string proof)
      : directory_(std::move(directory)), proof_(std::move(proof)) {}

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override {
    AQ_ASSIGN_OR_RETURN(const Opened store, Open());
    return store->Create(name, value);
  }

  Result<std::vector<std::byte>> Read(const std::string& name) override {
    AQ_ASSIGN_OR_RETURN(const Opened store, Open());
    Result<std::vector<std::byte>> found = store->Read(name);
    if (found.ok() || found.status().code() != Code::kNotFound) return found;
    // The store may have been unmounted in between.
    AQ_ASSIGN_OR_RETURN(const Opened now, Open());
    return now == store ? std::move(found) : now->Read(name);
  }

  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override {
    AQ_ASSIGN_OR_RETURN(const Opened store, Open());
    return store->Replace(name, expected, value);
  }

  Status Delete(const std::string& name) override {
    AQ_ASSIGN_OR_RETURN(const Opened store, Open());
    return store->Delete(name);
  }

  Result<std::vector<std::string>> List() override {
    AQ_ASSIGN_OR_RETURN(const Opened store, Open());
    return store->List();
  }

 private:
  // Shared, because calls may be under way when the store is exchanged.
  using Opened = std::shared_ptr<KeyStore>;

  Result<Opened> Open() AQ_EXCLUDES(mutex_) {
    if (::access(proof_.c_str(), F_OK) != 0) {
      return Status(Code::kUnavailable,
                    fmt::format("the key store {} is not there: {} is missing; is its file system "
                                "mounted?",
                                directory_, proof_));
    }
    struct stat info{};
    const bool there = ::stat(directory_.c_str(), &info) == 0;
    const MutexLock lock(&mutex_);
    if (store_ != nullptr && there && info.st_dev == device_ && info.st_ino == number_) {
      return store_;
    }
    store_.reset();
    AQ_ASSIGN_OR_RETURN(store_, OpenKeyDirectory(directory_));
    if (::stat(directory_.c_str(), &info) == 0) {
      device_ = info.st_dev;
      number_ = info.st_ino;
    }
    return store_;
  }

  const std::string directory_;
  const std::string proof_;
  Mutex mutex_;
  Opened store_ AQ_GUARDED_BY(mutex_);
  dev_t device_ AQ_GUARDED_BY(mutex_) = 0;  // The device of the open directory.
  ino_t number_ AQ_GUARDED_BY(mutex_) = 0;  // Its inode on that device.
};

}  // namespace

std::unique_ptr<KeyStore> NewMountedKeys(std::string directory, std::string proof) {
  return std::make_unique<MountedKeys>(std::move(directory), std::move(proof));
}

}  // namespace aquifer
