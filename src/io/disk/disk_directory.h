// The directory beneath a disk, as both engines see it: locked, with numbered files in it. Every
// method is a system call or several, and may block. Any thread may call any of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "io/disk/disk.h"

namespace aquifer {

class DiskDirectory {
 public:
  // Makes the directory if it is missing and locks it until this object dies. The lock is the
  // kernel's, so a process that was killed leaves none behind.
  static Result<std::unique_ptr<DiskDirectory>> Open(const DiskOptions& options);

  // For reads and writes. `bytes` is its size now.
  struct File {
    Descriptor descriptor;
    uint64_t bytes = 0;
  };
  Result<File> OpenFile(uint32_t number) const;

  // As IoKind::kCreate and kRemove say.
  Status CreateFile(uint32_t number, uint64_t bytes) const;
  Status RemoveFile(uint32_t number) const;

  Result<std::vector<DiskFile>> List() const;

  std::string PathOf(uint32_t number) const;

  // "/var/lib/aquifer/nvme0 (io_uring)", with a note where the page cache cannot be bypassed.
  std::string Describe(const std::string& engine) const;

 private:
  DiskDirectory(const DiskOptions& options, Descriptor directory, Descriptor lock, bool direct)
      : path_(options.directory),
        prefix_(options.prefix),
        directory_(std::move(directory)),
        lock_(std::move(lock)),
        direct_(direct) {}

  std::string NameOf(uint32_t number) const;
  Status Resize(int fd, uint32_t number, uint64_t bytes) const;

  const std::string path_;
  const std::string prefix_;
  const Descriptor directory_;
  const Descriptor lock_;
  const bool direct_;  // The file system takes O_DIRECT.
};

}  // namespace aquifer
