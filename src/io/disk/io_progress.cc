#include "io/disk/io_progress.h"

#include <fmt/format.h>

#include <cerrno>

#include "io/disk/errno_status.h"

namespace aquifer {
namespace {

const char* Verb(IoKind kind) {
  switch (kind) {
    case IoKind::kRead:
      return "read";
    case IoKind::kWrite:
      return "write";
    default:
      return "sync";
  }
}

}  // namespace

IoStep TakeResult(int64_t result, IoRequest* request, size_t* done,
                  const std::function<std::string(uint32_t)>& path_of) {
  if (result == -EINTR || result == -EAGAIN) return IoStep::kContinue;
  if (result < 0) {
    request->status =
        ErrnoStatus(static_cast<int>(-result), Verb(request->kind), path_of(request->file));
    return IoStep::kFinished;
  }
  if (request->kind == IoKind::kSync) return IoStep::kFinished;
  const auto moved = static_cast<size_t>(result);
  if (moved == request->data.size() - *done) {
    *done += moved;
    return IoStep::kFinished;
  }
  // The rest must start at a page. Only the end of a file (somebody cut it) leaves less than one.
  const size_t pages = moved / kPageBytes * kPageBytes;
  if (pages == moved && moved != 0) {
    *done += moved;
    return IoStep::kContinue;
  }
  if (request->kind == IoKind::kRead) {
    request->status = Status(Code::kNotFound);
  } else if (pages != 0) {
    *done += pages;
    return IoStep::kContinue;
  } else {
    request->status =
        Status(Code::kUnavailable, fmt::format("{}: wrote {} of {} bytes", path_of(request->file),
                                               *done + moved, request->data.size()));
  }
  return IoStep::kFinished;
}

Status CheckWithin(const IoRequest& request, uint64_t file_bytes,
                   const std::function<std::string(uint32_t)>& path_of) {
  if (request.offset <= file_bytes && request.data.size() <= file_bytes - request.offset) {
    return Status();
  }
  if (request.kind == IoKind::kRead) return Status(Code::kNotFound);
  return Status(Code::kInvalid,
                fmt::format("{} bytes at {} are past the end of {}", request.data.size(),
                            request.offset, path_of(request.file)));
}

}  // namespace aquifer
