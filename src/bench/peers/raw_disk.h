// Files, read or written block by block past the page cache at a fixed depth, and nothing else: the
// limit of everything that an NVMe tier can do.
//
// Which files they are matters: a drive may be twice as fast in one place as in another (30 files
// of 64 MiB on a virtual one took 5.4 to 10.5 GB/s, each the same again and again). The limit of a
// log is therefore measured on the log's own segments.
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
#include "base/descriptor.h"
#include "bench/peers/bench_memory.h"

namespace aquifer {

struct RawPlace {
  int descriptor = -1;
  uint64_t offset = 0;
};

struct RawTransfer {
  bool write = false;
  uint64_t block_bytes = 0;
  std::vector<RawPlace> blocks;              // Where they are on the drive, in order.
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

// Files that are written once first, so that their state is that of a log that has been around its
// segments before.
class RawDisk {
 public:
  struct Options {
    uint64_t block_bytes = 0;
    uint32_t depth = 0;
    bool write = false;
  };
  // One file of so many blocks, which is gone with the object.
  static Result<std::unique_ptr<RawDisk>> New(const std::string& directory, uint64_t blocks,
                                              const Options& options);
  // Files that there are already, but for the first and the last `margin` bytes of each.
  static Result<std::unique_ptr<RawDisk>> Over(const std::vector<std::string>& paths,
                                               uint64_t margin, const Options& options);
  ~RawDisk();
  RawDisk(const RawDisk&) = delete;
  RawDisk& operator=(const RawDisk&) = delete;

  // Transfers every block once, to and from `slots`, which are more than `depth`; GB/s.
  Result<double> Run(std::vector<std::span<std::byte>> slots) const;
  Result<double> RunInHugePages() const;
  std::string_view engine_name() const { return huge_engine_->name(); }

 private:
  explicit RawDisk(const Options& options) : options_(options) {}
  Status Open(const std::string& path, int flags);
  void AddBlocks(uint64_t from, uint64_t to);  // Of the file that was opened last.
  Status Init();
  RawTransfer TransferOn(std::vector<std::span<std::byte>> memory) const;
  Result<double> Run(RawEngine* engine) const;

  const Options options_;
  std::string own_file_;
  std::vector<Descriptor> files_;
  std::vector<RawPlace> blocks_;
  BenchMemory huge_memory_;
  std::unique_ptr<RawEngine> huge_engine_;
};

}  // namespace aquifer
