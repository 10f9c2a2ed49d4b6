// A ring carries frames from one process to another, through memory that both have mapped. One side
// writes, one reads. Neither side locks, and neither makes a system call while the other is awake.
// (io/disk/ring.h is another ring: the kernel's.)
//
// Neither side trusts the other. Each side keeps its own position in its own memory, and reads the
// other's position only to see how far it is. An impossible position makes the ring broken, for
// good. A frame is copied out before anyone reads it, so it cannot change while it is being read.
//
// A side that wants to sleep sets a flag in the ring, looks once more, and waits for its
// descriptor. The other side sees the flag with its next Write() or Read() and wakes it.
// docs/formats/local.md has the bytes.
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
  alignas(64) std::atomic<uint64_t> written{0};        // Bytes written since the start.
  alignas(64) std::atomic<uint64_t> read{0};           // Bytes read since the start.
  alignas(64) std::atomic<uint32_t> reader_sleeps{0};  // 1: wake the reader when there is a frame.
  alignas(64) std::atomic<uint32_t> writer_sleeps{0};  // 1: wake the writer when there is room.
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingHeader) <= 4096);
static_assert(offsetof(RingHeader, data_bytes) == 8 && offsetof(RingHeader, written) == 64 &&
              offsetof(RingHeader, read) == 128 && offsetof(RingHeader, reader_sleeps) == 192 &&
              offsetof(RingHeader, writer_sleeps) == 256);  // As in docs/formats/local.md.

inline constexpr size_t kRingHeaderBytes = 4096;
// `data_bytes` is a power of two that holds at least two of the largest frames.
constexpr size_t RingBytes(size_t data_bytes) { return kRingHeaderBytes + data_bytes; }

// Makes a ring in fresh memory. The node does so once, before the other side has the memory.
void FormatRing(std::span<std::byte> memory, size_t data_bytes);

// Checks memory that another process formatted.
Status CheckRing(std::span<const std::byte> memory);

class RingWriter {
 public:
  // `memory` is formatted, checked, and outlives this object.
  explicit RingWriter(std::span<std::byte> memory);

  // Returns kBusy if there is no room now, kInvalid if the ring is broken.
  Status Write(std::span<const std::byte> frame);
  // Returns true if the reader sleeps and must be woken; call it after one or more Write(). It
  // returns true once for each sleep.
  bool MustWake();
  // Returns true if the reader is awake and will see the next frame by itself.
  bool reader_awake() const;
  // Returns true if there is still no room for `bytes`, and the reader will wake this side when
  // there is.
  bool PrepareToSleep(size_t bytes);
  // Returns true if a frame of `bytes` can be written now; never if the ring is broken.
  bool HasRoom(size_t bytes);
  bool broken() const { return broken_; }
  // How many bytes the reader claims to have read since the start, and whether that is everything.
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

  // Copies the next frame to `frame`. Returns kNotFound if there is none now, kInvalid if the ring
  // is broken.
  Status Read(std::vector<std::byte>* frame);
  // Returns true if Read() may find a frame; cheap enough to spin on.
  bool HasNews() const { return header_->written.load(std::memory_order_acquire) != read_; }
  // Returns true if the writer waits for room and must be woken; call it after one or more Read().
  bool MustWake();
  // Returns true if there is still nothing to read, and the writer will wake this side when there
  // is.
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
