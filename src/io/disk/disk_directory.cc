#include "io/disk/disk_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/disk/errno_status.h"

namespace aquifer {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr std::string_view kSuffix = ".aq";

std::string ErrnoText(int error) { return std::generic_category().message(error); }

// Whatever the reason is, a directory that cannot be used is kUnavailable.
Status Unusable(std::string_view directory, std::string_view why, std::string_view advice) {
  return Status(Code::kUnavailable, fmt::format("{}: {}; {}", directory, why, advice));
}

Status InUse(const std::string& directory, int lock) {
  char text[32] = {};
  const ssize_t length = ::pread(lock, text, sizeof(text) - 1, 0);
  int pid = 0;
  if (length > 0) std::from_chars(text, text + length, pid);
  std::string holder = "another process";
  if (pid == ::getpid()) {
    holder = "this process";
  } else if (pid != 0) {
    holder = fmt::format("process {}", pid);
  }
  return Unusable(directory, fmt::format("in use by {}", holder),
                  "stop it or choose another directory");
}

Status WritePid(const std::string& directory, int lock) {
  const std::string text = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock, 0) != 0 ||
      ::pwrite(lock, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return Unusable(directory, fmt::format("cannot write its lock file: {}", ErrnoText(errno)),
                    "free some space or choose another directory");
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<DiskDirectory>> DiskDirectory::Open(const DiskOptions& options) {
  const std::string& path = options.directory;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::error_code ignored;
  if (error && !std::filesystem::is_directory(path, ignored)) {
    return Unusable(path, fmt::format("cannot be made: {}", error.message()),
                    "make it, or choose another directory");
  }
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) {
    return Unusable(path, fmt::format("cannot be opened: {}", ErrnoText(errno)),
                    "give this user access or choose another directory");
  }
  Descriptor lock(
      ::openat(directory.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  // The lock file may be there from a time when the directory was still writable.
  if (!lock.valid() || ::faccessat(directory.get(), ".", W_OK, AT_EACCESS) != 0) {
    return Unusable(path, fmt::format("cannot be written to: {}", ErrnoText(errno)),
                    "make it writable for this user or choose another directory");
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return InUse(path, lock.get());
    return Unusable(path, fmt::format("cannot be locked: {}", ErrnoText(errno)),
                    "choose a directory on a local file system");
  }
  AQ_RETURN_IF_ERROR(WritePid(path, lock.get()));
  const bool direct =
      Descriptor(::openat(directory.get(), kLockName, O_RDWR | O_DIRECT | O_CLOEXEC)).valid();
  return std::unique_ptr<DiskDirectory>(
      new DiskDirectory(options, std::move(directory), std::move(lock), direct));
}

Result<DiskDirectory::File> DiskDirectory::OpenFile(uint32_t number) const {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (direct_ ? O_DIRECT : 0);
  File file{.descriptor = Descriptor(::openat(directory_.get(), NameOf(number).c_str(), flags)),
            .bytes = 0};
  struct stat stat = {};
  if (!file.descriptor.valid() || ::fstat(file.descriptor.get(), &stat) != 0) {
    return ErrnoStatus(errno, "open", PathOf(number));
  }
  file.bytes = static_cast<uint64_t>(stat.st_size);
  return file;
}

Status DiskDirectory::CreateFile(uint32_t number, uint64_t bytes) const {
  const std::string name = NameOf(number);
  // Not O_DIRECT: where the file system cannot allocate, the C library writes a byte to each block.
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  bool made = false;
  Descriptor file(::openat(directory_.get(), name.c_str(), flags));
  if (!file.valid() && errno == ENOENT) {
    file = Descriptor(::openat(directory_.get(), name.c_str(), flags | O_CREAT | O_EXCL, 0600));
    made = true;
  }
  if (!file.valid()) return ErrnoStatus(errno, "make", PathOf(number));
  Status status = Resize(file.get(), number, bytes);
  if (status.ok() && made && ::fsync(directory_.get()) != 0) {
    status = ErrnoStatus(errno, "sync", path_);
  }
  if (!status.ok() && made) ::unlinkat(directory_.get(), name.c_str(), 0);
  return status;
}

Status DiskDirectory::Resize(int fd, uint32_t number, uint64_t bytes) const {
  struct stat before = {};
  if (::fstat(fd, &before) != 0) return ErrnoStatus(errno, "look at", PathOf(number));
  const auto length = static_cast<off_t>(bytes);
  if (length < before.st_size && ::ftruncate(fd, length) != 0) {
    return ErrnoStatus(errno, "shorten", PathOf(number));
  }
  int error = 0;
  if (length > 0) {
    do {
      error = ::posix_fallocate(fd, 0, length);
    } while (error == EINTR);
  }
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (error == 0) return Status();
  // All or nothing. Should this fail too, the first error still says more than the second.
  if (length > before.st_size && ::ftruncate(fd, before.st_size) != 0) {
    return ErrnoStatus(error, "allocate (nor give back what was)", PathOf(number));
  }
  return ErrnoStatus(error, fmt::format("allocate {} bytes for", bytes), PathOf(number));
}

Status DiskDirectory::RemoveFile(uint32_t number) const {
  if (::unlinkat(directory_.get(), NameOf(number).c_str(), 0) != 0) {
    return errno == ENOENT ? Status() : ErrnoStatus(errno, "remove", PathOf(number));
  }
  if (::fsync(directory_.get()) != 0) return ErrnoStatus(errno, "sync", path_);
  return Status();
}

Result<std::vector<DiskFile>> DiskDirectory::List() const {
  // A fresh descriptor, because reading a directory moves its offset.
  Descriptor fresh(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* stream = fresh.valid() ? ::fdopendir(fresh.get()) : nullptr;
  if (stream == nullptr) return ErrnoStatus(errno, "list", path_);
  fresh.Take();  // The stream owns it now.
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(stream, ::closedir);

  std::vector<DiskFile> files;
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    std::string_view digits = entry->d_name;
    if (!digits.starts_with(prefix_) || !digits.ends_with(kSuffix)) continue;
    digits = digits.substr(prefix_.size(), digits.size() - prefix_.size() - kSuffix.size());
    DiskFile file;
    std::from_chars(digits.data(), digits.data() + digits.size(), file.number);
    if (NameOf(file.number) != entry->d_name) continue;  // Not a name that we would give.
    struct stat stat = {};
    if (::fstatat(directory_.get(), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoStatus(errno, "look at", PathOf(file.number));
    }
    if (!S_ISREG(stat.st_mode)) continue;
    file.bytes = static_cast<uint64_t>(stat.st_size);
    files.push_back(file);
  }
  if (errno != 0) return ErrnoStatus(errno, "list", path_);
  std::sort(files.begin(), files.end(),
            [](const DiskFile& a, const DiskFile& b) { return a.number < b.number; });
  return files;
}

std::string DiskDirectory::NameOf(uint32_t number) const {
  return fmt::format("{}{:08}{}", prefix_, number, kSuffix);
}

std::string DiskDirectory::PathOf(uint32_t number) const {
  return fmt::format("{}/{}", path_, NameOf(number));
}

std::string DiskDirectory::Describe(const std::string& engine) const {
  return fmt::format("{} ({}{})", path_, engine,
                     direct_ ? "" : ", through the page cache: no O_DIRECT on this file system");
}

}  // namespace aquifer
