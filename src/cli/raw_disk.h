// One file, read or written block by block past the page cache at a fixed depth, and nothing else:
// the limit of everything that an NVMe tier can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "cli/bench_memory.h"

namespace aquifer {

struct RawTransfer {
  int descriptor = -1;
  bool write = false;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;           // From the file's beginning on, in order.
  uint32_t depth = 0;            // Blocks under way at once.
  std::span<std::byte> buffers;  // `depth` blocks, page-aligned.
};

// Does the same transfer again and again.
class RawEngine {
 public:
  virtual ~RawEngine() = default;
  virtual Status Run() = 0;
  virtual std::string_view name() const = 0;  // "io_uring", "pread/pwrite threads"
};

// kUnavailable where there is no io_uring, in this build or on this host.
Result<std::unique_ptr<RawEngine>> NewUringRawEngine(const RawTransfer& transfer);
std::unique_ptr<RawEngine> NewThreadRawEngine(const RawTransfer& transfer);

// A file that is allocated and written once, so that its state is that of a log that has been
// around its segments before. Gone with the object.
class RawDisk {
 public:
  struct Options {
    std::string directory;
    uint64_t block_bytes = 0;
    uint64_t blocks = 0;
    uint32_t depth = 0;
    bool write = false;
  };
  static Result<std::unique_ptr<RawDisk>> New(const Options& options);
  ~RawDisk();
  RawDisk(const RawDisk&) = delete;
  RawDisk& operator=(const RawDisk&) = delete;

  // Transfers every block once; GB/s.
  Result<double> Run();
  std::string_view engine_name() const { return engine_->name(); }

 private:
  RawDisk() = default;

  Options options_;
  std::string path_;
  int descriptor_ = -1;
  BenchMemory buffers_;
  std::unique_ptr<RawEngine> engine_;
};

}  // namespace aquifer
