#include "store/posix/posix_blob.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/disk/errno_status.h"
#include "store/posix/posix_paths.h"

namespace aquifer {
namespace {

struct alignas(kPageBytes) Page {
  std::array<std::byte, kPageBytes> bytes;
};

// What one call moves: several pieces of memory, one after the other in the file.
class Pieces {
 public:
  void Add(std::span<std::byte> memory) {
    if (!memory.empty()) vectors_.push_back({memory.data(), memory.size()});
  }

  // From `offset` on, until all is moved or the file ends. How much, or -errno.
  int64_t Read(int file, uint64_t offset) { return Move(file, offset, ::preadv); }
  int64_t Write(int file, uint64_t offset) { return Move(file, offset, ::pwritev); }

 private:
  template <class Call>
  int64_t Move(int file, uint64_t offset, Call call) {
    uint64_t done = 0;
    while (!vectors_.empty()) {
      const ssize_t moved = call(file, vectors_.data(), static_cast<int>(vectors_.size()),
                                 static_cast<off_t>(offset + done));
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EINVAL && LeaveDirect(file)) continue;
      if (moved < 0) return -errno;
      if (moved == 0) break;
      done += static_cast<uint64_t>(moved);
      Advance(static_cast<size_t>(moved));
    }
    return static_cast<int64_t>(done);
  }

  // A file system may take the flag and then not the call; a short transfer may end unaligned.
  static bool LeaveDirect(int file) {
    const int flags = ::fcntl(file, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0;
  }

  void Advance(size_t bytes) {
    while (bytes > 0) {
      iovec& first = vectors_.front();
      const size_t part = std::min(bytes, first.iov_len);
      first.iov_base = static_cast<std::byte*>(first.iov_base) + part;
      first.iov_len -= part;
      bytes -= part;
      if (first.iov_len == 0) vectors_.erase(vectors_.begin());
    }
  }

  std::vector<iovec> vectors_;
};

Status ReadFailed(int64_t result) {
  const int error = static_cast<int>(-result);
  return IsGone(error) ? Status(Code::kNotFound) : ErrnoStatus(error, "read", "a blob");
}

// What ended before its time was cut off by whoever removed it, or never was whole.
Status TooShort(const PosixBlob& blob) {
  struct stat stat = {};
  const bool removed = ::fstat(blob.file.get(), &stat) != 0 || stat.st_nlink < 2;
  return removed ? Status(Code::kNotFound)
                 : Status(Code::kCorrupt, "a blob's file is shorter than it was");
}

Result<BlobLabel> CheckLabel(const PosixBlob& blob, const Page& page, const std::string& name) {
  Result<BlobLabel> label = DecodeLabel(page.bytes);
  if (!label.ok()) return label;
  if (label->name != name || BlobFileBytes(label->blob_bytes) != blob.file_bytes) {
    return Status(Code::kCorrupt, fmt::format("the file of blob {} is another's, or cut", name));
  }
  return label;
}

// `head` first, then `body`: so much of them.
void AddBlob(std::span<std::byte> head, std::span<std::byte> body, uint64_t bytes, Pieces* pieces) {
  pieces->Add(head.first(std::min<uint64_t>(head.size(), bytes)));
  if (bytes > head.size()) pieces->Add(body.first(bytes - head.size()));
}

bool IsAligned(std::span<const std::byte> memory) {
  return (reinterpret_cast<uintptr_t>(memory.data()) | memory.size()) % kPageBytes == 0;
}

}  // namespace

bool IsAligned(const BlobRequest& request) {
  return IsAligned(request.head) && IsAligned(request.body);
}

Result<PosixBlob> OpenBlob(const std::string& path, bool direct) {
  PosixBlob blob;
  blob.file =
      Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (direct ? O_DIRECT : 0)));
  if (!blob.file.valid()) {
    return IsGone(errno) ? Status(Code::kNotFound) : ErrnoStatus(errno, "open", path);
  }
  const bool refused = ::flock(blob.file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  struct stat stat = {};
  if (refused || (::fstat(blob.file.get(), &stat) != 0 && IsGone(errno))) {
    return Status(Code::kNotFound);
  }
  // A blob has its name and its place in a grant; with one of them gone it is as good as removed.
  if (stat.st_nlink < 2) return Status(Code::kNotFound);
  blob.file_bytes = static_cast<uint64_t>(stat.st_size);
  blob.device = stat.st_dev;
  blob.inode = stat.st_ino;
  return blob;
}

Result<BlobLabel> ReadBlobLabel(const PosixBlob& blob, const std::string& name) {
  Page page;
  Pieces pieces;
  pieces.Add(page.bytes);
  const int64_t result = pieces.Read(blob.file.get(), 0);
  if (result < 0) return ReadFailed(result);
  if (result < int64_t{kPageBytes}) return TooShort(blob);
  return CheckLabel(blob, page, name);
}

Result<BlobLabel> ReadBlob(const PosixBlob& blob, BlobRequest* request) {
  if (blob.file_bytes < kPageBytes) return TooShort(blob);
  uint64_t bytes = blob.file_bytes - kPageBytes;
  if (!IsAligned(*request)) {  // Memory that may end where the blob does.
    AQ_ASSIGN_OR_RETURN(const BlobLabel label, ReadBlobLabel(blob, request->name));
    bytes = label.blob_bytes;
  }
  if (bytes > request->head.size() + request->body.size()) {
    return Status(Code::kCorrupt, fmt::format("blob {} is {} bytes long, more than was expected",
                                              request->name, bytes));
  }
  Page page;
  Pieces pieces;
  pieces.Add(page.bytes);
  AddBlob(request->head, request->body, bytes, &pieces);
  const int64_t result = pieces.Read(blob.file.get(), 0);
  if (result < 0) return ReadFailed(result);
  if (static_cast<uint64_t>(result) < kPageBytes + bytes) return TooShort(blob);
  Result<BlobLabel> label = CheckLabel(blob, page, request->name);
  if (label.ok()) request->blob_bytes = label->blob_bytes;
  return label;
}

Result<BlobLabel> LookAtBlob(const PosixBlob& blob, BlobRequest* request) {
  if (blob.file_bytes < kPageBytes) return TooShort(blob);
  Page page;
  Pieces pieces;
  pieces.Add(page.bytes);
  const uint64_t bytes = std::min<uint64_t>(request->head.size(), blob.file_bytes - kPageBytes);
  AddBlob(request->head, {}, bytes, &pieces);
  const int64_t result = pieces.Read(blob.file.get(), 0);
  if (result < 0) return ReadFailed(result);
  if (static_cast<uint64_t>(result) < kPageBytes + bytes) return TooShort(blob);
  Result<BlobLabel> label = CheckLabel(blob, page, request->name);
  if (label.ok()) request->blob_bytes = label->blob_bytes;
  return label;
}

Status WriteBlob(int file, const BlobLabel& label, const BlobRequest& request) {
  Page first;
  Page last;
  EncodeLabel(label, first.bytes);
  Pieces pieces;
  pieces.Add(first.bytes);
  pieces.Add(request.head);
  // What lies behind the blob's end in the caller's memory is nobody's business: the last page is
  // filled up with zeros, in memory of our own.
  const uint64_t pad = RoundUpToPage(label.blob_bytes) - label.blob_bytes;
  std::span<std::byte> body = request.body.first(request.body_bytes);
  std::fill(last.bytes.begin(), last.bytes.end(), std::byte{0});
  if (IsAligned(request)) {
    const std::span<std::byte> rest = body.last(body.size() % kPageBytes);
    std::copy(rest.begin(), rest.end(), last.bytes.begin());
    pieces.Add(body.first(body.size() - rest.size()));
    if (!rest.empty()) pieces.Add(last.bytes);
  } else {
    pieces.Add(body);
    pieces.Add(std::span(last.bytes).first(pad));
  }
  const int64_t result = pieces.Write(file, 0);
  if (result < 0) return ErrnoStatus(static_cast<int>(-result), "write", "a blob");
  if (static_cast<uint64_t>(result) != BlobFileBytes(label.blob_bytes)) {
    return Status(Code::kUnavailable, "a file system wrote less than it was given");
  }
  return Status();
}

}  // namespace aquifer
