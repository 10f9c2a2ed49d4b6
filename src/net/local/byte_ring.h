// Frames from one process to another, through memory that both have mapped. One side writes, one
// reads; nobody locks and nobody makes a system call while the other is awake. (io/disk/ring.h is
// another ring: the kernel's.)
//
// Neither side trusts the other. Both keep their own position in their own memory and look at the
// other's only to see how far it is; a position that cannot be makes the ring broken, for good. A
// frame is copied out before anyone reads it, so it cannot change while it is being read.
//
// To sleep, a side says so in the ring, looks once more, and waits for its descriptor; the other
// side sees it with its next Write() or Read() and wakes it. docs/formats/local.md has the bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

// The first page of a ring's memory; the data follows.
struct RingHeader {
  static constexpr uint64_t kMagic = 0x3152'4641'5141'0001;  // Changes with the format.

  uint64_t magic = 0;
  uint64_t data_bytes = 0;
  alignas(64) std::atomic<uint64_t> written{0};        // Bytes, ever.
  alignas(64) std::atomic<uint64_t> read{0};           // Bytes, ever.
  alignas(64) std::atomic<uint32_t> reader_sleeps{0};  // 1: wake it when there is something.
  alignas(64) std::atomic<uint32_t> writer_sleeps{0};  // 1: wake it when there is room.
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingHeader) <= 4096);
static_assert(offsetof(RingHeader, data_bytes) == 8 && offsetof(RingHeader, written) == 64 &&
              offsetof(RingHeader, read) == 128 && offsetof(RingHeader, reader_sleeps) == 192 &&
              offsetof(RingHeader, writer_sleeps) == 256);  // docs/formats/local.md.

inline constexpr size_t kRingHeaderBytes = 4096;
// `data_bytes` is a power of two, and at least two of the largest frames.
constexpr size_t RingBytes(size_t data_bytes) { return kRingHeaderBytes + data_bytes; }

// Makes a ring in fresh memory. Done once, by the node, before the other side has it.
void FormatRing(std::span<std::byte> memory, size_t data_bytes);

// Checks memory that another process formatted.
Status CheckRing(std::span<const std::byte> memory);

class RingWriter {
 public:
  // `memory` is formatted, checked, and outlives this.
  explicit RingWriter(std::span<std::byte> memory);

  // kBusy: there is no room for it now. kInvalid: the ring is broken.
  Status Write(std::span<const std::byte> frame);
  // After one or more Write(): whether the reader sleeps and must be woken. True once for each
  // time.
  bool MustWake();
  // Whether a reader that is not asleep will see the next frame without being woken.
  bool reader_awake() const;
  // True: there is still no room for `bytes`, and the reader wakes us when there is some.
  bool PrepareToSleep(size_t bytes);
  // A frame of so many bytes can be written now. Never in a broken ring.
  bool HasRoom(size_t bytes);
  bool broken() const { return broken_; }
  // What the reader says to have read, ever; and whether that is everything.
  uint64_t taken_bytes() const { return header_->read.load(std::memory_order_relaxed); }
  bool all_taken() const { return taken_bytes() == written_; }

 private:
  RingHeader* const header_;
  const std::span<std::byte> data_;
  uint64_t written_ = 0;
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(std::span<std::byte> memory);

  // Copies the next frame to `frame`. kNotFound: there is none now. kInvalid: the ring is broken.
  Status Read(std::vector<std::byte>* frame);
  // Whether Read() may find something; cheap enough to spin on.
  bool HasNews() const { return header_->written.load(std::memory_order_acquire) != read_; }
  // After one or more Read(): whether the writer waits for room and must be woken.
  bool MustWake();
  // True: there is still nothing to read, and the writer wakes us when there is something.
  bool PrepareToSleep();
  void WokeUp() { header_->reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  void CopyOut(uint64_t from, std::span<std::byte> to) const;

  RingHeader* const header_;
  const std::span<const std::byte> data_;
  uint64_t read_ = 0;
  bool broken_ = false;
};

}  // namespace aquifer
