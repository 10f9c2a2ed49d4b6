// A BlobStore in a directory, which may be on a file system that many nodes mount. A file for each
// blob, written and read past the page cache, straight from and into the request's memory.
//
// All that share the directory stay below one cap, without a coordinator and without clocks that
// agree: room is taken in grants, each a numbered folder of which there can be only so many, and
// given back by whole grants, least recently used first. docs/formats/posix.md has the layout, the
// rules by which bytes are counted, and what a crash leaves at each step.
//
// Has threads of its own: some that read, some that write, so that neither waits for the other; one
// that keeps the grants (the keeper, see posix_grants.h); and one that only ends requests whose
// time is over. on_done runs on any of them. Where the file system hangs, those threads hang with
// what they do, and so does the destructor; nobody else does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/blob_store.h"

namespace aquifer {

struct PosixStoreOptions {
  // Its last folder is made if it is missing, but not again once it was there: a file system that
  // was unmounted is waited for, not replaced by a folder on another disk.
  std::string directory;
  // It was there in an earlier life: it is waited for from the start.
  bool known = false;
  std::function<void()> on_there{};  // Once, when it can be used; on a thread of the store's.

  // Of all who share the directory, metadata included. Where nodes disagree the largest one holds.
  uint64_t capacity_bytes = 0;
  // Whoever makes the directory decides; others use what it says. 0: a 64th of the capacity, at
  // most 1 GiB, at least 128 MiB or an eighth. No blob can be larger.
  uint64_t grant_bytes = 0;

  // What a reclaimed blob leaves is written over by the next one, on file systems of this host and
  // without `sync`: disks are up to three times faster where they were written before.
  bool reuse_files = true;

  // A write is acknowledged when it would survive a power failure.
  bool sync = false;

  uint32_t read_threads = 16;  // So many are at the file system at once.
  uint32_t write_threads = 16;
  size_t most_queued = 4096;  // Requests under way; more are kBusy.

  // A process on another host that gave no sign for so long is dead (on this host the kernel says).
  int64_t dead_after_nanos = 30'000'000'000;
  int64_t beat_nanos = 2'000'000'000;  // How often we give one.

  Clock* clock = SystemClock();
  Random* random = SystemRandom();
};

// Does not touch the directory yet: a thread of the store's does, and again until it can be used;
// meanwhile requests are kUnavailable, with the reason. kInvalid: an option is wrong.
Result<std::unique_ptr<BlobStore>> NewPosixStore(PosixStoreOptions options);

}  // namespace aquifer
