#include "store/posix/posix_paths.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

#include "base/descriptor.h"
#include "io/disk/disk.h"
#include "io/disk/errno_status.h"

namespace aquifer {
namespace {

constexpr size_t kLongestPart = 200;  // File systems take 255.
// Neither has a character that names have, so nothing else can end in them.
constexpr char kCut = '_';
constexpr std::string_view kBlobEnding = "_blob";

}  // namespace

std::string PosixPaths::Grant(uint32_t number) const {
  return fmt::format("{}/{:08}", Grants(), number);
}

std::string PosixPaths::Process(uint32_t slot) const {
  return fmt::format("{}/{:03}", Processes(), slot);
}

std::string PosixPaths::Blob(std::string_view name) const {
  return Blobs() + "/" + EncodeBlobName(name);
}

std::string EncodeBlobName(std::string_view name) {
  std::string path;
  while (true) {
    const size_t slash = name.find('/');
    std::string_view part = name.substr(0, slash);
    for (; part.size() > kLongestPart; part.remove_prefix(kLongestPart)) {
      path.append(part.substr(0, kLongestPart)) += kCut;
      path += '/';
    }
    path += part;
    if (slash == std::string_view::npos) break;
    path += '/';
    name.remove_prefix(slash + 1);
  }
  return path.append(kBlobEnding);
}

std::string DecodeBlobName(std::string_view path) {
  if (!IsBlobFile(path)) return {};
  path.remove_suffix(kBlobEnding.size());
  std::string name;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool cut = path[i] == kCut && i + 1 < path.size() && path[i + 1] == '/';
    if (cut) {
      ++i;
    } else {
      name += path[i];
    }
  }
  return EncodeBlobName(name) == std::string(path).append(kBlobEnding) ? name : std::string();
}

bool IsBlobFile(std::string_view entry) { return entry.ends_with(kBlobEnding); }

bool ParseNumber(std::string_view digits, size_t length, uint32_t* number) {
  if (digits.size() != length) return false;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *number);
  return error == std::errc() && stop == digits.data() + digits.size();
}

bool ParseHex(std::string_view digits, uint64_t* value) {
  if (digits.size() != 16) return false;
  const auto [stop, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), *value, 16);
  return error == std::errc() && stop == digits.data() + digits.size();
}

uint64_t FoldersOf(std::string_view blob_name) {
  const std::string path = EncodeBlobName(blob_name);
  return static_cast<uint64_t>(std::count(path.begin(), path.end(), '/'));
}

uint64_t BlobFileBytes(uint64_t blob_bytes) { return kPageBytes + RoundUpToPage(blob_bytes); }

uint64_t BlobCharge(uint64_t file_bytes, uint64_t folders) {
  return RoundUpToPage(file_bytes) + (1 + folders) * kPosixEntryBytes;
}

std::string PathIn(std::string_view folder, std::string_view entry) {
  return fmt::format("{}/{}", folder, entry);
}

Result<std::vector<std::string>> ListFolder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(path.c_str()), ::closedir);
  if (stream == nullptr) return ErrnoStatus(errno == ESTALE ? ENOENT : errno, "list", path);
  std::vector<std::string> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return ErrnoStatus(errno == ESTALE ? ENOENT : errno, "list", path);
  std::sort(entries.begin(), entries.end());
  return entries;
}

Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0770) == 0 || errno == EEXIST) return Status();
  return ErrnoStatus(errno, "make the folder", path);
}

Status MakeBlobFolders(const PosixPaths& paths, std::string_view blob_name, bool sync) {
  const std::string path = EncodeBlobName(blob_name);
  std::string parent = paths.Blobs();
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    std::string folder = PathIn(paths.Blobs(), path.substr(0, slash));
    AQ_RETURN_IF_ERROR(MakeFolder(folder));
    if (sync) AQ_RETURN_IF_ERROR(SyncFolder(parent));
    parent = std::move(folder);
  }
  return Status();
}

void RemoveEmptyBlobFolders(const PosixPaths& paths, std::string_view blob_name) {
  std::string path = EncodeBlobName(blob_name);
  for (size_t slash = path.rfind('/'); slash != std::string::npos; slash = path.rfind('/')) {
    path.resize(slash);
    if (::rmdir(PathIn(paths.Blobs(), path).c_str()) != 0 && errno != ENOENT) return;
  }
}

bool IsOnThisHost(const std::string& path) {
  constexpr long kXfs = 0x58465342;
  struct statfs kind = {};
  if (::statfs(path.c_str(), &kind) != 0) return false;
  return kind.f_type == EXT4_SUPER_MAGIC || kind.f_type == kXfs;
}

Status SyncFolder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::fsync(folder.get()) != 0) return ErrnoStatus(errno, "sync", path);
  return Status();
}

Status Unusable(const std::string& root, std::string_view why, std::string_view next_step) {
  return Status(Code::kUnavailable, fmt::format("{}: {}; next step: {}", root, why, next_step));
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

bool IsGone(int error) { return error == ENOENT || error == ESTALE; }

}  // namespace aquifer
