// A BlobStore keeps named bytes outside of this host: in a directory that many nodes mount, in
// Redis, in an S3 bucket. It knows nothing of blocks and decides nothing.
// tier/durable/durable_tier.h makes a Tier of it; what a blob is made of and how it is called is
// said there.
//
// A blob is written whole and once, and read whole: nobody ever sees a part of it under its name.
// Any number of processes use one store at the same time.
//
// Every request is asynchronous and stands alone. The caller owns it and its memory and leaves both
// untouched until `on_done`, which runs exactly once, on any thread, possibly inside Submit(), and
// is not in the request any more when it runs. It must not block, and may destroy the request.
// After it the store uses none of the request's memory.
//
// A store ends a request by itself soon after its deadline or Cancel(), unless a device holds its
// buffer (a hanging file system): then the request completes when that lets go, however late. Who
// cannot wait settles with its own caller first. Queues are bounded: what does not fit is kBusy at
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

enum class BlobKind : uint8_t {
  kRead,    // All of it: `head` is filled first, then `body`.
  kLook,    // Whether it is there, and how long it is; with `head`, its beginning too.
  kWrite,   // `head`, then `body`.
  kRemove,  // What is not there is removed already: kNotFound, and harmless.
};

struct BlobRequest {
  BlobKind kind = BlobKind::kRead;
  // 1 to 512 of the characters a-z 0-9 - . and /, with a letter or a digit at both ends; "/" stands
  // for folders where a store has them, and "..", "//" and "./" are in no name.
  std::string name{};
  // Both are multiples of 4 KiB long and so aligned, but for kLook, which may have no head, and but
  // for what does not go to a device: a store that needs alignment copies what lacks it.
  std::span<std::byte> head{};  // A write only reads both.
  std::span<std::byte> body{};  // kRead: may be longer than what there is.
  // kWrite: how much of `body` is the blob's, which is then head.size() + body_bytes long.
  uint64_t body_bytes = 0;
  // kWrite: a blob of that name stays as it is, and `existed` says so, with an ok status.
  bool if_absent = false;
  // kWrite: the store may forget it then, by itself, if it can; 0: never. Unix seconds.
  int64_t expiry_unix_seconds = 0;
  int64_t deadline_nanos = INT64_MAX;  // In the clock that the store was made with.
  // Which of the blobs that had this name: set by kLook; bytes that mean something to the store
  // alone. kRemove, where it is not empty: only that one is removed, and another one stays
  // (kNotFound).
  std::string version{};

  // Set before on_done.
  //   kNotFound     there is no such blob. Also where a file went stale or a piece is missing.
  //   kCorrupt      it is there and not whole, or does not fit into head and body.
  //   kNoSpace      the store is full: its own limit, or our cap.
  //   kBusy         its queue is full, or the server asks to slow down. Try again later.
  //   kLate         the deadline passed, or it was cancelled.
  //   kUnavailable  it cannot be reached, refuses us, or failed. The message says what to do.
  Status status{};
  bool existed = false;
  uint64_t blob_bytes = 0;  // kRead, kLook: of the whole blob.
  std::function<void(BlobRequest&)> on_done{};
};

struct BlobUsage {
  uint64_t capacity_bytes = 0;  // 0: the store has no cap that we know of.
  uint64_t used_bytes = 0;      // As far as known, of all who share it.
  uint64_t queued = 0;          // Requests under way here.
};

struct BlobName {
  std::string name;
  uint64_t bytes = 0;
};

class BlobStore {
 public:
  // Ends what is under way: every on_done has run when it returns.
  virtual ~BlobStore() = default;

  // Any thread.
  virtual void Submit(BlobRequest* request) = 0;

  // Any thread; the request completes soon, as kLate unless it was already done. One whose on_done
  // runs or has run meanwhile is left alone; the caller makes sure that it still exists.
  virtual void Cancel(BlobRequest* request) = 0;

  // Up to `max` names that begin with `prefix` and come after `after`, in an order of the store's
  // that does not change; `on_done` on any thread. For sweeps: it may be slow, and blobs that come
  // or go meanwhile may be in it or not. Empty: that was all.
  using Names = std::vector<BlobName>;
  virtual void List(std::string_view prefix, std::string_view after, size_t max,
                    std::function<void(Result<Names>)> on_done) = 0;

  // The same for names that begin with one of `prefixes`, none of which begins with another; as
  // many of them as prefixes_at_once() at most. A store that has to go through all of its names
  // whatever the prefix does so once for all.
  virtual void ListAny(std::vector<std::string> prefixes, std::string_view after, size_t max,
                       std::function<void(Result<Names>)> on_done);
  virtual size_t prefixes_at_once() const { return 1; }

  virtual BlobUsage Usage() const = 0;

  // How many seconds the store's own clock is ahead of this host's, as of the last that was heard
  // of it; 0 where that is not known. All who share the store have that one in common.
  virtual int64_t ClockAheadSeconds() const { return 0; }

  // Where it is, for people, without secrets: "s3://kv-cache at https://10.0.0.7:9000".
  virtual std::string Describe() const = 0;

  // Counters by name, for metrics and tests, in a fixed order: those of blob_counters.h, and what
  // is the store's own.
  virtual std::vector<std::pair<std::string, uint64_t>> Counters() const = 0;
};

// How every store ends a request.
void Complete(BlobRequest* request, Status status);

// kInvalid for a name that no store takes.
Status CheckBlobName(std::string_view name);

}  // namespace aquifer
