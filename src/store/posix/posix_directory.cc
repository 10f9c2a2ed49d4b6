#include "store/posix/posix_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>

#include "base/descriptor.h"
#include "io/disk/errno_status.h"

namespace aquifer {
namespace {

constexpr std::string_view kFirstLine = "aquifer posix store 1\n";
constexpr std::string_view kGrantLine = "grant_bytes ";

}  // namespace

Status PosixDirectory::Open() {
  AQ_RETURN_IF_ERROR(CheckDevice());
  Status status = ReadMarker();
  if (status.code() == Code::kNotFound && known_ && !device_) {
    return Unusable(paths_.root(), "was there before and is empty now: is its file system mounted?",
                    "mount it; or, to begin with an empty one, take its line out of posix-tiers in "
                    "the node's state directory and restart the node");
  }
  if (status.code() == Code::kNotFound) {
    AQ_RETURN_IF_ERROR(MakeMarker());
    status = ReadMarker();
  }
  AQ_RETURN_IF_ERROR(status);
  struct stat stat = {};
  if (::stat(paths_.root().c_str(), &stat) == 0) device_ = stat.st_dev;
  // On a read-only file system they are there or nothing is, and reading needs no more.
  for (const std::string& folder : {paths_.Blobs(), paths_.Grants(), paths_.Processes()}) {
    const Status made = MakeFolder(folder);
    if (!made.ok() && ::access(paths_.Blobs().c_str(), R_OK | X_OK) != 0) {
      return Unusable(paths_.root(), made.message(), "make it writable for this user");
    }
  }
  return Status();
}

// Makes the directory where it may be made.
Status PosixDirectory::CheckDevice() {
  const std::string& root = paths_.root();
  struct stat stat = {};
  if (::stat(root.c_str(), &stat) == 0) {
    if (!S_ISDIR(stat.st_mode)) return Unusable(root, "is no directory", "choose another one");
    const bool known = !device_ || *device_ == stat.st_dev;
    if (known || ::access(paths_.Marker().c_str(), F_OK) == 0) return Status();
    return Unusable(root, "its file system is not mounted any more", "mount it again");
  }
  if (!IsGone(errno)) {
    return Unusable(root, fmt::format("cannot be looked at: {}", ErrnoText(errno)),
                    "give this user access or choose another directory");
  }
  if (device_ || known_)
    return Unusable(root, "is gone", "mount its file system, or make it again");
  if (::mkdir(root.c_str(), 0770) == 0 || errno == EEXIST) return Status();
  return Unusable(root, fmt::format("cannot be made: {}", ErrnoText(errno)),
                  "make it, or choose another directory");
}

Status PosixDirectory::ReadMarker() {
  const std::string path = paths_.Marker();
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && IsGone(errno)) return Status(Code::kNotFound);
  std::array<char, 256> buffer{};
  const ssize_t length = file.valid() ? ::pread(file.get(), buffer.data(), buffer.size(), 0) : -1;
  if (length < 0) {
    return Unusable(paths_.root(), fmt::format("cannot be read: {}", ErrnoText(errno)),
                    "give this user access or choose another directory");
  }
  std::string_view text(buffer.data(), static_cast<size_t>(length));
  const size_t at = text.find(kGrantLine);
  if (!text.starts_with(kFirstLine) || at == std::string_view::npos) {
    return Unusable(paths_.root(), "is in a format that this program does not know",
                    "use a newer one, or another directory");
  }
  text.remove_prefix(at + kGrantLine.size());
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), grant_bytes_);
  if (error == std::errc() && stop != text.data() + text.size()) return Status();
  return Unusable(paths_.root(), "its file aquifer-store is damaged",
                  "remove what is in the directory");
}

// The first one wins: link() does not replace.
Status PosixDirectory::MakeMarker() {
  const std::string path = paths_.Marker();
  const std::string beside = fmt::format("{}.{:016x}", path, random_->Next64());
  const std::string text = fmt::format("{}{}{}\n", kFirstLine, kGrantLine, wanted_grant_bytes_);
  const Descriptor file(
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0660));
  const bool written =
      file.valid() &&
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.get()) == 0;
  const int error = errno;
  const bool linked = written && (::link(beside.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int link_error = errno;
  ::unlink(beside.c_str());
  if (linked) return Status();
  return Unusable(paths_.root(),
                  fmt::format("cannot be written to: {}", ErrnoText(written ? link_error : error)),
                  "make it writable for this user, or free some space");
}

bool PosixDirectory::TakesDirect() const {
  return Descriptor(::open(paths_.Marker().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)).valid();
}

}  // namespace aquifer
