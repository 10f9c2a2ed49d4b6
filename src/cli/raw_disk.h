// One file, read or written block by block past the page cache at a fixed depth, and nothing else:
// the limit of everything that an NVMe tier can do.
//
// Where the bytes come from and go to matters as much as the drive: memory in small pages makes it
// work through up to 512 pieces for 2 MiB. The limit is therefore measured on the cache's own
// slots; beside it, the same transfer on private memory in huge pages shows what a host gains that
// gives the cache huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "cli/bench_memory.h"

namespace aquifer {

struct RawTransfer {
  int descriptor = -1;
  bool write = false;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;                       // From the file's beginning on, in order.
  uint32_t depth = 0;                        // Blocks under way at once.
  std::vector<std::span<std::byte>> memory;  // Used block by block, all of it in turn.
};

// The places for blocks in a transfer's memory.
std::vector<std::byte*> PlacesIn(const RawTransfer& transfer);

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

  // Transfers every block once, to and from `slots`, which are more than `depth`; GB/s.
  Result<double> Run(std::vector<std::span<std::byte>> slots) const;
  Result<double> RunInHugePages() const;
  std::string_view engine_name() const { return huge_engine_->name(); }

 private:
  RawDisk() = default;
  RawTransfer TransferOn(std::vector<std::span<std::byte>> memory) const;
  Result<double> Run(RawEngine* engine) const;

  Options options_;
  std::string path_;
  int descriptor_ = -1;
  BenchMemory huge_memory_;
  std::unique_ptr<RawEngine> huge_engine_;
};

}  // namespace aquifer
