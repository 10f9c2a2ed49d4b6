#include "net/local/byte_ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/bytes.h"
#include "base/check.h"
#include "net/protocol/frame.h"

namespace aquifer {
namespace {

RingHeader* HeaderOf(std::span<std::byte> memory) {
  return reinterpret_cast<RingHeader*>(memory.data());
}

Status Broken() {
  return Status(Code::kInvalid, "the other process left the ring in an impossible state");
}

}  // namespace

void FormatRing(std::span<std::byte> memory, size_t data_bytes) {
  AQ_CHECK(std::has_single_bit(data_bytes) && data_bytes >= 2 * kMaxFrameBytes);
  AQ_CHECK(memory.size() == RingBytes(data_bytes));
  auto* const header = new (memory.data()) RingHeader;
  header->magic = RingHeader::kMagic;
  header->data_bytes = data_bytes;
}

Status CheckRing(std::span<const std::byte> memory) {
  if (memory.size() < kRingHeaderBytes) return Status(Code::kInvalid, "a ring without its header");
  uint64_t magic = 0;
  uint64_t data_bytes = 0;
  std::memcpy(&magic, memory.data() + offsetof(RingHeader, magic), sizeof(magic));
  std::memcpy(&data_bytes, memory.data() + offsetof(RingHeader, data_bytes), sizeof(data_bytes));
  if (magic != RingHeader::kMagic) return Status(Code::kInvalid, "memory that is not a ring");
  if (data_bytes != memory.size() - kRingHeaderBytes || !std::has_single_bit(data_bytes) ||
      data_bytes < 2 * kMaxFrameBytes) {
    return Status(Code::kInvalid, "a ring of an impossible size");
  }
  return Status();
}

// ---- Writing ----

RingWriter::RingWriter(std::span<std::byte> memory)
    : header_(HeaderOf(memory)), data_(memory.subspan(kRingHeaderBytes)) {}

bool RingWriter::HasRoom(size_t bytes) {
  const uint64_t in_use = written_ - header_->read.load(std::memory_order_seq_cst);
  // The reader claims to have read bytes that were never written, or half a frame.
  if (in_use > data_.size() || in_use % kFrameAlignment != 0) broken_ = true;
  return !broken_ && data_.size() - in_use >= bytes;
}

Status RingWriter::Write(std::span<const std::byte> frame) {
  AQ_CHECK(IsFrameLength(frame.size()));
  if (!HasRoom(frame.size())) return broken_ ? Broken() : Status(Code::kBusy);
  const size_t at = written_ % data_.size();
  const size_t first = std::min(frame.size(), data_.size() - at);
  std::memcpy(data_.data() + at, frame.data(), first);
  std::memcpy(data_.data(), frame.data() + first, frame.size() - first);
  written_ += frame.size();
  // Sequentially consistent with reader_sleeps: either the writer sees that the reader sleeps, or
  // the reader sees this.
  header_->written.store(written_, std::memory_order_seq_cst);
  return Status();
}

bool RingWriter::MustWake() {
  return header_->reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
         header_->reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingWriter::reader_awake() const {
  return header_->reader_sleeps.load(std::memory_order_relaxed) == 0;
}

bool RingWriter::PrepareToSleep(size_t bytes) {
  header_->writer_sleeps.store(1, std::memory_order_seq_cst);
  if (!HasRoom(bytes) && !broken_) return true;
  header_->writer_sleeps.store(0, std::memory_order_relaxed);
  return false;
}

// ---- Reading ----

RingReader::RingReader(std::span<std::byte> memory)
    : header_(HeaderOf(memory)), data_(memory.subspan(kRingHeaderBytes)) {}

void RingReader::CopyOut(uint64_t from, std::span<std::byte> to) const {
  const size_t at = from % data_.size();
  const size_t first = std::min(to.size(), data_.size() - at);
  std::memcpy(to.data(), data_.data() + at, first);
  std::memcpy(to.data() + first, data_.data(), to.size() - first);
}

Status RingReader::Read(std::vector<std::byte>* frame) {
  if (broken_) return Broken();
  const uint64_t ready = header_->written.load(std::memory_order_seq_cst) - read_;
  if (ready == 0) return Status(Code::kNotFound);
  std::byte length[sizeof(uint32_t)];
  CopyOut(read_, length);
  const uint32_t bytes = GetU32(length);
  if (ready > data_.size() || ready % kFrameAlignment != 0 || !IsFrameLength(bytes) ||
      bytes > ready) {
    broken_ = true;
    return Broken();
  }
  frame->resize(bytes);
  CopyOut(read_, *frame);
  PutU32(frame->data(), bytes);  // The writer may have changed it since.
  read_ += bytes;
  header_->read.store(read_, std::memory_order_seq_cst);
  return Status();
}

bool RingReader::MustWake() {
  return header_->writer_sleeps.load(std::memory_order_seq_cst) != 0 &&
         header_->writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingReader::PrepareToSleep() {
  header_->reader_sleeps.store(1, std::memory_order_seq_cst);
  if (!broken_ && header_->written.load(std::memory_order_seq_cst) == read_) return true;
  WokeUp();
  return false;
}

}  // namespace aquifer
