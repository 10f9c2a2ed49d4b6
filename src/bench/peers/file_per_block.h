// A cache as many are: one file a block, written under a temporary name and renamed, through the
// page cache. A peer to compare with, made as well as it goes without becoming something else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aquifer/status.h"
#include "bench/peers/bench_memory.h"

namespace aquifer {

class FilePerBlock {
 public:
  struct Options {
    std::string directory;  // Made if missing.
    uint64_t block_bytes = 0;
    uint64_t blocks = 0;
    uint32_t threads = 8;
  };
  static Result<std::unique_ptr<FilePerBlock>> New(const Options& options);
  ~FilePerBlock();
  FilePerBlock(const FilePerBlock&) = delete;
  FilePerBlock& operator=(const FilePerBlock&) = delete;

  // Writes every block to its file, until the device has it; GB/s.
  Result<double> Write();
  // Reads every block, none of which is in the page cache; GB/s.
  Result<double> Read();

 private:
  FilePerBlock() = default;

  std::string PathOf(uint64_t block) const;
  Status WriteOne(uint64_t block, uint32_t thread) const;
  Status ReadOne(uint64_t block, uint32_t thread) const;
  void DropFromPageCache() const;
  Result<double> Run(Status (FilePerBlock::*one)(uint64_t, uint32_t) const) const;

  Options options_;
  BenchMemory buffers_;  // One block a thread.
};

}  // namespace aquifer
