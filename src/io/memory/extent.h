// A piece of the DRAM pool: one memfd, 64 MiB by default, in huge pages (from their pool where
// there is one, else made by the kernel where it can), sealed against resizing. It can be mapped by
// other processes through its descriptor. It belongs to one tenant for its whole life, because a
// mapping cannot be revoked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "aquifer/status.h"

namespace aquifer {

class Extent {
 public:
  virtual ~Extent() = default;  // Punches the memory out, unmaps and closes.
  // It will not be punched out: another process may be reading it.
  virtual void KeepContents() = 0;

  virtual std::span<std::byte> bytes() = 0;
  virtual int descriptor() const = 0;   // -1 where the memory is not shareable (tests, simulator).
  virtual bool huge_pages() const = 0;  // All of it.
};

// Where extents come from. New() faults every page in (it takes ~10 ms for 64 MiB), so it runs on a
// worker, and fails with kNoSpace, never with a signal, when memory is short. Any thread may call.
class ExtentSource {
 public:
  virtual ~ExtentSource() = default;

  virtual Result<std::unique_ptr<Extent>> New(uint64_t bytes) = 0;

  // How many bytes this process could still take without pushing the host or its own cgroup into
  // reclaim: the least of MemAvailable and each enclosing cgroup's (max - current, page cache that
  // can be dropped not counted as used).
  virtual uint64_t AvailableBytes() = 0;
};

// memfds. Lives for ever.
ExtentSource* SystemExtentSource();

}  // namespace aquifer
