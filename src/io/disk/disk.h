// One directory on one drive: numbered files of fixed size, read and written in whole pages past
// the page cache. It is the lowest thing that the simulator and the fault injector replace, so it
// knows nothing of what the bytes mean, and everything that can block is asynchronous.
//
// Requests come in groups. The caller owns the group and its buffers and leaves both untouched
// until `on_done`, which runs exactly once, on the executor that the disk was made with, and never
// from inside Submit(). Requests of one group, and of different groups, may run in any order and at
// the same time; those that are bulk take turns with all others. The queue is bounded: a group that
// does not fit completes with kBusy.
//
// A disk never gives up on a request by itself: a hanging drive is a group that does not complete.
// Deadlines are the business of whoever submits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

inline constexpr size_t kPageBytes = 4096;

constexpr uint64_t RoundUpToPage(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

enum class IoKind : uint8_t {
  kRead,
  kWrite,
  kSync,    // Everything completed before on this file reaches stable storage (fdatasync).
  kCreate,  // Makes file `file` and allocates `length` bytes for it, all or nothing; kNoSpace when
            // the file system is full. A file that exists is kept and grown or cut to `length`.
            // Once complete it survives power loss. New bytes read as zero.
  kRemove,  // Deletes the file, for good once complete; one that is not there is fine.
};

struct IoRequest {
  IoKind kind = IoKind::kRead;
  uint32_t file = 0;
  uint64_t offset = 0;        // A multiple of 4 KiB, as are `data.size()` and its address.
  std::span<std::byte> data;  // A write only reads it.
  uint64_t length = 0;        // kCreate.
  // Set before on_done. A read past the end of the file, or of a file that is not there, is
  // kNotFound; a write past the end is kInvalid: only kCreate changes a file's size; a failing
  // medium is kUnavailable; a full file system is kNoSpace.
  Status status;
};

// Every disk checks this before it looks at a file: misaligned or empty data is kInvalid.
Status CheckRequest(const IoRequest& request);

struct IoGroup {
  std::vector<IoRequest> requests;
  std::function<void(IoGroup&)> on_done;
  bool bulk = false;  // Others need not wait until all of it is done that waits.
};

struct DiskFile {
  uint32_t number = 0;
  uint64_t bytes = 0;
};

// Since the disk was opened. A request counts once it has completed, whatever its status.
struct DiskStats {
  uint64_t requests = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t submit_calls = 0;  // System calls made to hand requests over and to wait for them.
};

class Disk {
 public:
  virtual ~Disk() = default;

  virtual void Submit(IoGroup* group) = 0;

  // Memory that many requests will use (the DRAM extents), so that the kernel maps it once.
  // Best effort: requests work without. `Forget` before the memory is unmapped.
  virtual void Remember(std::span<std::byte> memory) = 0;
  virtual void Forget(std::span<std::byte> memory) = 0;

  // The files there are, by number. Synchronous: used at start only.
  virtual Result<std::vector<DiskFile>> List() = 0;

  // Where it is, for messages: "/var/lib/aquifer/nvme0 (io_uring)".
  virtual std::string Describe() const = 0;

  // Any thread may ask.
  virtual DiskStats stats() const = 0;
};

enum class DiskEngine : uint8_t { kAuto, kUring, kThreads };

struct DiskOptions {
  std::string directory;            // Made if missing. Locked: a second process gets kUnavailable.
  std::string prefix = "segment-";  // Files are named prefix + eight digits + ".aq".
  DiskEngine engine = DiskEngine::kAuto;
  uint32_t queue_depth = 64;   // Requests at the device at once.
  uint32_t max_queued = 4096;  // Requests waiting or at the device; more are kBusy.
};

class Executor;

// Completions run on `executor`, which outlives the disk. kUnavailable when the directory cannot be
// used (read-only, locked by another process, missing and not creatable), and says why and what to
// do. The destructor waits for requests at the device.
Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options, Executor* executor);

// Whether io_uring can be used here, and if not, why not.
Status ProbeUring();

}  // namespace aquifer
