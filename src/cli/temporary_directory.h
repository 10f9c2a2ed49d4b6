// A directory that is gone when its owner is, also when the program is interrupted: Ctrl-C, a
// hangup or a plain kill removes it before the program ends. A program that could not even do that
// (kill -9) leaves its directory to the next one, which removes it: a directory is locked for as
// long as its owner lives.
#pragma once

#include <memory>
#include <string>

#include "aquifer/status.h"

namespace aquifer {

class TemporaryDirectory {
 public:
  // Makes "<parent>/<prefix>XXXXXX", and removes those of this user whose owner is dead. An empty
  // parent: a place on a disk that is meant for such things (/var/tmp, else the system's temporary
  // directory).
  static Result<std::unique_ptr<TemporaryDirectory>> New(const std::string& parent,
                                                         const std::string& prefix);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  TemporaryDirectory(std::string path, int lock);

  const std::string path_;
  const int lock_;  // The directory itself, locked; -1 where that cannot be.
};

// Call at the start of main(), before there are threads: from then on the signals that end a
// program are taken by a thread of their own, which removes the temporary directories first.
void RemoveTemporariesOnSignals();

// The next SIGINT sets `*asked`, for a command that ends by itself then; the one after it ends the
// program as ever. `asked` lives as long as the program.
void SetOnNextInterrupt(std::atomic<bool>* asked);

// Bytes that an ordinary user can still write there.
uint64_t FreeDiskBytes(const std::string& directory);

}  // namespace aquifer
