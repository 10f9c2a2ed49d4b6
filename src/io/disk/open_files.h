// The files of a disk that are open now. There may be more files than a process may have
// descriptors, so the least recently used are closed as others are needed. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "aquifer/status.h"
#include "io/disk/disk_directory.h"

namespace aquifer {

struct OpenFile {
  size_t slot = 0;  // Below max_open; no two open files have the same.
  uint32_t number = 0;
  Descriptor descriptor;
  uint64_t bytes = 0;
  uint32_t users = 0;
  uint64_t last_used = 0;
  bool dropped = false;  // Only those who have it still use it.
};

class OpenFiles {
 public:
  // `max_open` is more than are ever in use at once. `on_change`, if any, runs after a file was
  // opened and before it is closed (its descriptor is then still there).
  enum class Change : uint8_t { kOpened, kClosing };
  using OnChange = std::function<void(const OpenFile&, Change)>;

  OpenFiles(const DiskDirectory* directory, size_t max_open, OnChange on_change = nullptr);
  ~OpenFiles();

  // How many may be open for a disk of this depth, so that a few disks fit a process's limit.
  static size_t MaxOpen(uint32_t queue_depth);

  // The file stays open until Release(). kNotFound when it is not there.
  Result<OpenFile*> Acquire(uint32_t number);
  void Release(OpenFile* file);

  // It was removed or has another size: whoever acquires it next opens it anew.
  void Drop(uint32_t number);

  size_t open() const { return open_; }

 private:
  bool CloseOneIdle();
  void Close(OpenFile* file);

  const DiskDirectory* const directory_;
  const OnChange on_change_;
  std::vector<OpenFile> files_;
  std::map<uint32_t, OpenFile*> by_number_;
  size_t open_ = 0;
  uint64_t now_ = 0;  // Counts Acquire().
};

}  // namespace aquifer
