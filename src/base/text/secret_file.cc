#include "base/text/secret_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>
#include <utility>

#include "base/crypto/secret_key.h"
#include "base/descriptor.h"

namespace aquifer {
namespace {

constexpr size_t kMaxFileBytes = 16384;

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

void Wipe(std::string* text) { WipeSecret(std::as_writable_bytes(std::span(*text))); }

}  // namespace

Status CheckSecretFileMode(const std::string& path, uid_t owner, mode_t mode, uid_t self) {
  if (owner != 0 && owner != self) {
    return Invalid(
        fmt::format("{} belongs to user {}, and holds a secret of user {}; run: chown "
                    "{} {}",
                    path, owner, self, self, path));
  }
  // Kubernetes and systemd give secrets that root has to a group.
  const mode_t forbidden =
      owner == 0 && owner != self ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((mode & forbidden) == 0) return Status();
  return Invalid(
      fmt::format("{} holds a secret and is open to others (mode {:o}); run: chmod {} "
                  "{}",
                  path, mode & 07777, owner == self ? "600" : "640", path));
}

Result<std::string> ReadSecretFile(const std::string& path, uid_t self) {
  const auto failed = [&path](const std::string& why) {
    return Invalid(fmt::format("{} cannot be read: {}", path, why));
  };
  // A pipe that nobody writes to would keep us in open().
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) {
    return failed(std::generic_category().message(errno));
  }
  if (!S_ISREG(info.st_mode)) return failed("it is no regular file");
  AQ_RETURN_IF_ERROR(CheckSecretFileMode(path, info.st_uid, info.st_mode, self));
  std::string text(kMaxFileBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(std::generic_category().message(errno));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  if (size > kMaxFileBytes) {
    Wipe(&text);
    return failed("it is larger than 16KiB");
  }
  text.resize(size);  // Moves nothing.
  return text;
}

Result<std::string> ReadSecretLine(const std::string& path, uid_t self) {
  AQ_ASSIGN_OR_RETURN(std::string text, ReadSecretFile(path, self));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (!text.empty() && text.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos) {
    return text;
  }
  Wipe(&text);
  return Invalid(fmt::format("{} is not a file with one line, the secret", path));
}

}  // namespace aquifer
