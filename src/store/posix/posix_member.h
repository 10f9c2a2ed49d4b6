// A process among those that share a directory: it has a folder there with a file that it holds a
// lock on and writes to now and then. Who dies leaves both, and others can tell: on the same host
// by the lock, which the kernel takes back; from another host because what the file says no longer
// changes while they watch it, by their own clock. No two clocks have to agree.
//
// For one thread, the keeper's. Everything here may block.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/descriptor.h"
#include "store/posix/posix_paths.h"

namespace aquifer {

class PosixMember {
 public:
  struct Options {
    std::string root;
    int64_t dead_after_nanos = 0;
    Clock* clock = nullptr;
    Random* random = nullptr;
  };
  explicit PosixMember(const Options& options);
  ~PosixMember() { Leave(); }

  // kUnavailable: the directory cannot be written to, lacks something that we need, or has no place
  // left.
  Status Join();
  bool joined() const { return file_.valid(); }
  // Whether the file system has locks.
  bool locked() const { return locked_; }
  // The next sign of life. kNotFound: others have given us up, or the directory is gone; we are no
  // member any more.
  Status Beat();
  void Leave();

  // The file system's clock, which others see too, against ours: by the last sign of life.
  int64_t clock_ahead_seconds() const { return clock_ahead_seconds_; }

  // "017-8c34a1f00b6d2e95"; of another life, another one.
  const std::string& name() const { return name_; }
  std::string folder() const { return paths_.Process(slot_); }
  std::string alive_file() const { return folder() + "/alive"; }

  bool IsDead(std::string_view member);
  // Of a link to the file that a member holds. Kept apart from one that is not there: kNotFound.
  Result<bool> HolderIsDead(const std::string& alive_file);
  // The folders of the dead, and what is in them; how many.
  uint64_t RemoveTheDead();

 private:
  struct Sign {
    uint64_t beat = 0;
    int64_t since_nanos = 0;
  };

  Status JoinAt(uint32_t slot, bool* taken);
  Status CheckLinks() const;
  Status WriteSign();
  bool Watch(const std::string& id, uint64_t beat);
  static void RemoveFolder(const std::string& folder);

  const PosixPaths paths_;
  const int64_t dead_after_nanos_;
  Clock* const clock_;
  Random* const random_;
  const std::string boot_;  // Which run of which kernel this is.

  Descriptor file_;  // Ours, locked; not valid: no member.
  bool locked_ = false;
  uint32_t slot_ = 0;
  std::string id_;
  std::string name_;
  uint64_t beat_ = 0;
  int64_t clock_ahead_seconds_ = 0;
  // Of members elsewhere, by id, or by path where that cannot be read yet.
  std::map<std::string, Sign> signs_;
};

}  // namespace aquifer
