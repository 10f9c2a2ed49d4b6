// A file for each value. It is written beside its place and then linked to it. link() refuses to
// replace a file, so the first of many writers wins, even on a filesystem whose locks do not reach
// all of them. Every change also holds the directory's lock file. A leftover beside a value was
// therefore written by a process that died, or by one that no lock reaches, which then begins
// again.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/crypto/random.h"
#include "base/descriptor.h"
#include "tenant/keys/key_store.h"

namespace aquifer {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxValueBytes = 64 << 10;
constexpr const char* kLockName = ".lock";
// Suffixes behind ".<name>": a value that is being written, and a value that was deleted.
constexpr std::string_view kNewSuffix = ".new";
constexpr std::string_view kGoneSuffix = ".gone";

class KeyDirectory final : public KeyStore {
 public:
  KeyDirectory(std::string path, Descriptor directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}

  Status Open() {
    AQ_ASSIGN_OR_RETURN(const Held held, Lock());
    return SweepLeftovers("");
  }

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    AQ_ASSIGN_OR_RETURN(const Held held, Lock());
    AQ_ASSIGN_OR_RETURN(const std::string beside, WriteBeside(name, value));
    const bool made = LinkOrMove(beside, name);
    const int error = errno;
    unlinkat(directory_.get(), beside.c_str(), 0);
    if (!made && error == EEXIST) return false;
    if (!made) return Failed("link", name, error);
    AQ_RETURN_IF_ERROR(SyncDirectory());
    return true;
  }

  Result<std::vector<std::byte>> Read(const std::string& name) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    const Descriptor file(
        openat(directory_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    // ESTALE: on a network filesystem, the file was deleted between look-up and opening.
    if (!file.valid() && (errno == ENOENT || errno == ESTALE)) return Status(Code::kNotFound);
    if (!file.valid()) return Failed("open", name, errno);
    std::vector<std::byte> value(kMaxValueBytes + 1);
    size_t size = 0;
    while (size < value.size()) {
      const ssize_t count = read(file.get(), value.data() + size, value.size() - size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == ESTALE) return Status(Code::kNotFound);
      if (count < 0) return Failed("read", name, errno);
      if (count == 0) break;
      size += static_cast<size_t>(count);
    }
    if (size > kMaxValueBytes) return Status(Code::kCorrupt, name + " is too long to be a key");
    value.resize(size);
    return value;
  }

  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override {
    AQ_ASSIGN_OR_RETURN(const Held held, Lock());
    if (!held.excludes()) {
      return Status(Code::kUnavailable,
                    fmt::format("{} is on a file system without locks (flock), where a key that is "
                                "deleted meanwhile would come back; mount it with locks first",
                                path_));
    }
    const auto found = Read(name);
    if (found.status().code() == Code::kNotFound) return false;
    if (!found.ok()) return found.status();
    if (!std::equal(found->begin(), found->end(), expected.begin(), expected.end())) return false;
    const Descriptor old(openat(directory_.get(), name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!old.valid()) return Failed("open", name, errno);
    AQ_ASSIGN_OR_RETURN(const std::string beside, WriteBeside(name, value));
    if (renameat(directory_.get(), beside.c_str(), directory_.get(), name.c_str()) != 0) {
      return Failed("rename", name, errno);
    }
    AQ_RETURN_IF_ERROR(SyncDirectory());
    AQ_RETURN_IF_ERROR(WipeFile(old.get(), name));  // Wiped as in Delete(), for the same reason.
    return true;
  }

  // The file is renamed first, so that nobody reads it half wiped. It is then overwritten, because
  // an unlinked file can be found on the disk.
  Status Delete(const std::string& name) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    AQ_ASSIGN_OR_RETURN(const Held held, Lock());
    const std::string gone = Beside(name, kGoneSuffix);
    if (renameat(directory_.get(), name.c_str(), directory_.get(), gone.c_str()) != 0 &&
        errno != ENOENT) {
      return Failed("rename", name, errno);
    }
    AQ_RETURN_IF_ERROR(SyncDirectory());
    return SweepLeftovers(name);
  }

  Result<std::vector<std::string>> List() override {
    AQ_ASSIGN_OR_RETURN(std::vector<std::string> names, AllNames());
    std::erase_if(names, [](const std::string& name) { return !CheckKeyStoreName(name).ok(); });
    return names;
  }

 private:
  // Holds the directory's lock while it lives.
  class Held {
   public:
    Held(Descriptor file, bool excludes) : file_(std::move(file)), excludes_(excludes) {}

    bool excludes() const { return excludes_; }  // Returns false if the file system has no locks.

   private:
    Descriptor file_;
    bool excludes_ = false;
  };

  // Opens the lock file anew for each lock: a lock belongs to an opening, so threads exclude each
  // other too.
  Result<Held> Lock() {
    Descriptor file(
        openat(directory_.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return Failed("open", kLockName, errno);
    while (flock(file.get(), LOCK_EX) != 0) {
      // Without locks at all, link() still decides who was first.
      if (errno == ENOTSUP || errno == ENOSYS || errno == ENOLCK) {
        return Held(std::move(file), false);
      }
      if (errno != EINTR) return Failed("lock", kLockName, errno);
    }
    return Held(std::move(file), true);
  }

  static std::string Beside(const std::string& name, std::string_view suffix) {
    return fmt::format(".{}{}", name, suffix);
  }

  Status Failed(const char* what, const std::string& name, int error) const {
    return Status(Code::kUnavailable, fmt::format("cannot {} {} in the key store {}: {}", what,
                                                  name, path_, std::strerror(error)));
  }

  Status SyncDirectory() const {
    return fsync(directory_.get()) == 0 ? Status() : Failed("sync", ".", errno);
  }

  // Writes the value under a temporary name of its own, and returns that. Locks may not reach all
  // writers, so no writer may link a file that another one is still writing.
  Result<std::string> WriteBeside(const std::string& name, std::span<const std::byte> value) {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    if (value.size() > kMaxValueBytes) return Status(Code::kInvalid, "too long for a key store");
    const std::string beside =
        Beside(name, fmt::format(".{:016x}{}", SystemRandom()->Next64(), kNewSuffix));
    const Descriptor file(openat(directory_.get(), beside.c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return Failed("create", beside, errno);
    Status written = WriteAll(file.get(), value, beside);
    if (written.ok() && fsync(file.get()) != 0) written = Failed("sync", beside, errno);
    if (written.ok()) return beside;
    unlinkat(directory_.get(), beside.c_str(), 0);
    return written;
  }

  Status WriteAll(int file, std::span<const std::byte> value, const std::string& name) const {
    while (!value.empty()) {
      const ssize_t count = write(file, value.data(), value.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed("write", name, errno);
      value = value.subspan(static_cast<size_t>(count));
    }
    return Status();
  }

  // Returns true if `from` became `to`, which was not there. A filesystem without second names for
  // a file may still refuse to replace one.
  bool LinkOrMove(const std::string& from, const std::string& to) const {
    const int directory = directory_.get();
    if (linkat(directory, from.c_str(), directory, to.c_str(), 0) == 0) return true;
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS) return false;
    return renameat2(directory, from.c_str(), directory, to.c_str(), RENAME_NOREPLACE) == 0;
  }

  // Removes deleted values of `name`, or of all names if it is empty. Also removes files of dead
  // writers, which may be a second name of a value that is deleted now.
  Status SweepLeftovers(const std::string& name) {
    AQ_ASSIGN_OR_RETURN(const std::vector<std::string> names, AllNames());
    for (const std::string& found : names) {
      const bool gone = found.starts_with('.') && found.ends_with(kGoneSuffix);
      const bool unfinished = found.starts_with('.') && found.ends_with(kNewSuffix);
      if (!gone && !unfinished) continue;
      if (!name.empty() && !found.starts_with(Beside(name, "."))) continue;
      if (gone || IsOnlyName(found)) AQ_RETURN_IF_ERROR(Wipe(found));
      if (unlinkat(directory_.get(), found.c_str(), 0) != 0 && errno != ENOENT) {
        return Failed("delete", found, errno);
      }
    }
    return SyncDirectory();
  }

  Status Wipe(const std::string& name) const {
    const Descriptor file(
        openat(directory_.get(), name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
    return file.valid() ? WipeFile(file.get(), name) : Failed("open", name, errno);
  }
  Status WipeFile(int file, const std::string& name) const {
    struct stat facts{};
    if (fstat(file, &facts) != 0) return Failed("look at", name, errno);
    const size_t bytes = std::min<size_t>(static_cast<size_t>(facts.st_size), kMaxValueBytes);
    AQ_RETURN_IF_ERROR(WriteAll(file, std::vector<std::byte>(bytes), name));
    return fsync(file) == 0 ? Status() : Failed("sync", name, errno);
  }
  // Returns false if the file has a second name: a dead writer's leftover may be one of its value.
  bool IsOnlyName(const std::string& name) const {
    struct stat facts{};
    return fstatat(directory_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
           facts.st_nlink == 1;
  }

  Result<std::vector<std::string>> AllNames() const {
    const int again = openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const entries = again < 0 ? nullptr : fdopendir(again);
    if (entries == nullptr) {
      const int error = errno;
      if (again >= 0) close(again);
      return Failed("list", ".", error);
    }
    std::vector<std::string> names;
    while (const dirent* entry = readdir(entries)) names.emplace_back(entry->d_name);
    closedir(entries);
    std::sort(names.begin(), names.end());
    return names;
  }

  const std::string path_;
  const Descriptor directory_;
};

Status CannotOpen(const std::string& path) {
  return Status(Code::kUnavailable,
                fmt::format("cannot open the key store {}: {}", path, std::strerror(errno)));
}

}  // namespace

Status CheckKeyStoreName(std::string_view name) {
  const bool allowed = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
  });
  if (allowed && !name.empty() && name.size() <= kMaxNameBytes) return Status();
  return Status(Code::kInvalid, "this is no name for a key store");
}

Result<std::unique_ptr<KeyStore>> OpenKeyDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return CannotOpen(path);
  Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return CannotOpen(path);
  auto store = std::make_unique<KeyDirectory>(path, std::move(directory));
  AQ_RETURN_IF_ERROR(store->Open());
  return std::unique_ptr<KeyStore>(std::move(store));
}

}  // namespace aquifer
