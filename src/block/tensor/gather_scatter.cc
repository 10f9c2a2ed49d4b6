#include "block/tensor/gather_scatter.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "block/tensor/block_pages.h"

namespace aquifer {
namespace {

// Runs of at least this length are copied and summed from place to place. Shorter ones pass through
// a buffer in the first-level cache, because a call of the summing copy has a price: of a memcpy's
// speed, runs of 256 bytes reach 0.68 through the buffer and 0.41 without, those of 1 KiB on their
// way to pages 0.56 through it and 0.85 without (AMD EPYC, gather_scatter_bench).
constexpr uint64_t kDirectBytes = 1024;

// Runs shorter than kLongBytes are asked for this far ahead: too short, and too far from each
// other, for the processor to see the pattern. Without it runs of 256 bytes reach 0.52, not 0.68;
// runs of 4 KiB in cross-layer pages lose a fifth by it.
constexpr uint64_t kAheadBytes = 2048;
constexpr uint64_t kLongBytes = 4096;
constexpr uint64_t kLineBytes = 64;

bool IsDirect(const EngineMap& map, const Piece& piece) {
  return piece.run_bytes >= kDirectBytes && piece.run_bytes % kChecksumUnitBytes == 0 &&
         !map.ragged;
}

// The places of a piece's runs in the engine, in the block's order.
class RunCursor {
 public:
  RunCursor(const Piece& piece, const BlockPages& pages)
      : piece_(piece), pages_(pages), base_(piece.base + pages.cut * piece.cut_stride) {
    StartPage();
  }

  // Null after the last one.
  std::byte* run() const { return run_; }

  void Next() {
    run_ += piece_.run_stride;
    if (++index_ < piece_.runs) return;
    index_ = 0;
    if (++page_ == pages_.numbers.size()) {
      page_ = 0;
      if (++head_ == piece_.heads) {
        run_ = nullptr;
        return;
      }
    }
    StartPage();
  }

 private:
  void StartPage() {
    run_ = base_ + pages_.numbers[page_] * piece_.page_stride + head_ * piece_.head_stride;
  }

  const Piece& piece_;
  const BlockPages& pages_;
  std::byte* const base_;
  std::byte* run_ = nullptr;
  uint32_t index_ = 0;
  uint32_t page_ = 0;
  uint32_t head_ = 0;
};

// Calls `visit` with each run of the piece. `write` says what it will do with the run's lines.
template <bool write, class Visit>
void ForEachRun(const Piece& piece, const BlockPages& pages, const Visit& visit) {
  RunCursor ahead(piece, pages);
  const bool is_short = piece.run_bytes < kLongBytes;
  const auto ask = [&] {
    if (!is_short || ahead.run() == nullptr) return;
    for (uint64_t line = 0; line < piece.run_bytes; line += kLineBytes) {
      __builtin_prefetch(ahead.run() + line, write ? 1 : 0);
    }
    ahead.Next();
  };
  for (uint64_t bytes = 0; bytes < kAheadBytes; bytes += piece.run_bytes) ask();
  for (RunCursor cursor(piece, pages); cursor.run() != nullptr; cursor.Next()) {
    ask();
    visit(cursor.run());
  }
}

// Writes a block from its beginning to its end, with gaps where other ranks' heads are.
class BlockWriter {
 public:
  explicit BlockWriter(std::byte* slot) : slot_(slot) {}

  // Continues at `offset`. The bytes appended so far end a checksum unit, unless they end here.
  void Seek(uint64_t offset) {
    if (offset == offset_ + filled_) return;
    Flush();
    offset_ = offset;
  }

  void Append(const std::byte* from, size_t bytes) {
    while (bytes > 0) {
      const size_t part = std::min(bytes, sizeof(buffer_) - filled_);
      std::memcpy(buffer_ + filled_, from, part);
      filled_ += part;
      from += part;
      bytes -= part;
      if (filled_ == sizeof(buffer_)) Flush();
    }
  }

  void AppendDirect(const std::byte* from, size_t bytes) {
    Flush();
    sums_ = sums_ + CopyAndSumLanes({from, bytes}, offset_, slot_ + offset_);
    offset_ += bytes;
  }

  LaneSums Finish() {
    Flush();
    return sums_;
  }

 private:
  void Flush() {
    if (filled_ == 0) return;
    sums_ = sums_ + CopyAndSumLanes({buffer_, filled_}, offset_, slot_ + offset_);
    offset_ += filled_;
    filled_ = 0;
  }

  std::byte* const slot_;
  uint64_t offset_ = 0;  // Where the buffer's first byte goes.
  size_t filled_ = 0;
  LaneSums sums_;
  // From 16 KiB on the summing copy writes around the caches: a slot is not read again soon.
  alignas(64) std::byte buffer_[16 << 10];
};

// Reads a block in the same order. It sums the bytes that it hands out after they left the slot.
class BlockReader {
 public:
  explicit BlockReader(const std::byte* slot) : slot_(slot) {}

  // Continues at `offset`; up to `end` it may read ahead.
  void Seek(uint64_t offset, uint64_t end) {
    end_ = end;
    if (offset == offset_ - (filled_ - taken_)) return;
    AQ_CHECK(taken_ == filled_);
    offset_ = offset;
  }

  void Take(std::byte* to, size_t bytes) {
    while (bytes > 0) {
      if (taken_ == filled_) Fill();
      const size_t part = std::min(bytes, filled_ - taken_);
      std::memcpy(to, buffer_ + taken_, part);
      taken_ += part;
      to += part;
      bytes -= part;
    }
  }

  void TakeDirect(std::byte* to, size_t bytes) {
    AQ_CHECK(taken_ == filled_);
    sums_ = sums_ + CopyAndSumLanes({slot_ + offset_, bytes}, offset_, to);
    offset_ += bytes;
  }

  LaneSums sums() const { return sums_; }

 private:
  void Fill() {
    filled_ = std::min<uint64_t>(sizeof(buffer_), end_ - offset_);
    taken_ = 0;
    AQ_CHECK(filled_ > 0);
    sums_ = sums_ + CopyAndSumLanes({slot_ + offset_, filled_}, offset_, buffer_);
    offset_ += filled_;
  }

  const std::byte* const slot_;
  uint64_t offset_ = 0;  // Of the first byte that is not yet in the buffer.
  uint64_t end_ = 0;
  size_t filled_ = 0;
  size_t taken_ = 0;
  LaneSums sums_;
  alignas(64) std::byte buffer_[8 << 10];  // Short of 16 KiB, so that it is written to the cache.
};

LaneSums GatherBlock(const EngineMap& map, const BlockPages& pages, std::byte* slot) {
  BlockWriter writer(slot);
  for (const Piece& piece : map.pieces) {
    writer.Seek(piece.block_offset);
    if (IsDirect(map, piece)) {
      ForEachRun<false>(piece, pages,
                        [&](std::byte* run) { writer.AppendDirect(run, piece.run_bytes); });
    } else {
      ForEachRun<false>(piece, pages, [&](std::byte* run) { writer.Append(run, piece.run_bytes); });
    }
  }
  return writer.Finish();
}

LaneSums ScatterBlock(const EngineMap& map, const BlockPages& pages, const std::byte* slot) {
  BlockReader reader(slot);
  for (const Piece& piece : map.pieces) {
    reader.Seek(piece.block_offset,
                map.ragged ? map.block_bytes : piece.block_offset + piece.block_bytes);
    if (IsDirect(map, piece)) {
      ForEachRun<true>(piece, pages,
                       [&](std::byte* run) { reader.TakeDirect(run, piece.run_bytes); });
    } else {
      ForEachRun<true>(piece, pages, [&](std::byte* run) { reader.Take(run, piece.run_bytes); });
    }
  }
  return reader.sums();
}

// The sums of the heads that are not in the map.
LaneSums SumOthers(const EngineMap& map, std::span<const std::byte> block) {
  LaneSums sums;
  uint64_t at = 0;
  const auto add_up_to = [&](uint64_t end) {
    if (at < end) sums = sums + SumLanes(block.subspan(at, end - at), at);
  };
  for (const Piece& piece : map.pieces) {
    add_up_to(piece.block_offset);
    at = piece.block_offset + piece.block_bytes;
  }
  add_up_to(block.size());
  return sums;
}

Status ScatterOne(const EngineMap& map, Verify verify, ScatterOp* op) {
  AQ_ASSIGN_OR_RETURN(const BlockPages pages, FindPages(map, op->place, op->slot.size()));
  if (verify == Verify::kFirst && ChecksumOf(op->slot) != op->checksum) {
    return Status(Code::kCorrupt);
  }
  op->sums = ScatterBlock(map, pages, op->slot.data());
  if (verify != Verify::kWhileCopying) return Status();
  const LaneSums all = op->sums + SumOthers(map, op->slot);
  return FinishChecksum(all, map.block_bytes) == op->checksum ? Status() : Status(Code::kCorrupt);
}

}  // namespace

void Gather(const EngineMap& map, std::span<GatherOp> ops) {
  for (GatherOp& op : ops) {
    op.sums = {};
    Result<BlockPages> pages = FindPages(map, op.place, op.slot.size());
    op.status = pages.status();
    if (pages.ok()) op.sums = GatherBlock(map, *pages, op.slot.data());
  }
}

void Scatter(const EngineMap& map, Verify verify, std::span<ScatterOp> ops) {
  for (ScatterOp& op : ops) {
    op.sums = {};
    op.status = ScatterOne(map, verify, &op);
  }
}

}  // namespace aquifer
