// Fills one segment: payloads first, then the group pages that make them known, in order, then the
// footer. Payload goes from the caller's buffers to the drive uncopied.
//
// Several groups are in flight at once. A group's page is written when all payloads of it and of
// every group before it are on the drive, and its records count when the pages of all groups before
// it are there too; so a scan from the front meets everything that was ever acknowledged.
//
// A request for payload that fails costs the records whose payload is in it. A group page that
// fails breaks the segment: it is sealed with what is good. Records that were on such a page may or
// may not be on the drive; they are numbered and reported as dead, so that the deletion map covers
// them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "aquifer/status.h"
#include "block/block_meta.h"
#include "block/record.h"
#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_index.h"
#include "tier/nvme/nvme_io.h"

namespace aquifer {

// A block on its way to the log: a caller's, or one that reclaim moves.
struct AppendItem {
  virtual ~AppendItem() = default;

  // It left its queue: the drive will use `source` until OnPayloadDone().
  virtual void OnTaken() = 0;
  // Before OnAppended().
  virtual void OnPayloadDone() = 0;
  // Ok: it is in the index. Exactly once; the item may be freed in it.
  virtual void OnAppended(const Status& status) = 0;

  BlockMeta meta;
  std::span<const std::byte> source;                  // Whole pages.
  std::shared_ptr<const void> keep;                   // Has `source`, where it is not a caller's.
  NvmeIndex::EntryId moved_entry = NvmeIndex::kNone;  // For a move: whose place is to change.
  RecordPlace moved_from;

  bool replace = false;     // A record that is there gives way to this one.
  bool renews = false;      // Its caller knows of a record, and goes on counting on it.
  bool superseded = false;  // It was given up: its record does not count, whatever is there.
  static constexpr uint32_t kNoDrive = UINT32_MAX;
  uint32_t replaced_on = kNoDrive;  // Set when one did: whose map has yet to say so.
};

// The records of a segment in footer pages, gathered as they are committed.
class FooterBuilder {
 public:
  explicit FooterBuilder(const SegmentUse& use) : use_(use) {}

  void Add(std::span<const std::byte, kRecordBytes> record);
  uint32_t records() const { return records_; }
  // Finishes the pages and adds the requests that write them and the trailer behind them.
  void Finish(uint32_t file, uint64_t segment_bytes, SegmentTrailer trailer,
              std::vector<IoRequest>* pages, std::vector<IoRequest>* last);
  std::vector<PageBuffer> TakeBuffers() { return std::move(chunks_); }

 private:
  static constexpr uint32_t kChunkPages = 16;

  void FinishPage(uint32_t page);

  SegmentUse use_;
  std::vector<PageBuffer> chunks_;
  uint32_t records_ = 0;
};

class SegmentWriter {
 public:
  struct Group;

  // How far a segment was filled before a restart.
  struct Progress {
    uint64_t cursor = 0;
    uint32_t groups = 0;
    uint32_t records = 0;
    uint64_t last_page = 0;  // PageLink() of the last group page.
  };

  // Payload on its way; the drive decides when it is submitted. What a tenant has side by side in
  // memory is one request, since a drive's time for a small one is mostly its own.
  struct Chunk {
    struct Piece {
      uint32_t slot = 0;  // Whose payload it is.
      size_t request = 0;
    };

    SegmentWriter* writer = nullptr;
    Group* group = nullptr;
    std::vector<IoRequest> requests{};
    std::vector<Piece> pieces{};
    // What the requests may need for longer than the tier lives.
    std::vector<std::shared_ptr<const void>> keep{};
    uint64_t bytes = 0;
  };

  class Host {
   public:
    virtual ~Host() = default;
    virtual RecordAge NextAge(const AppendItem& item) = 0;
    virtual void EnqueueChunk(Chunk chunk) = 0;
    // Takes up record `record`. `item` is null when the record is dead from the start.
    virtual void OnRecord(SegmentWriter* writer, uint32_t record, const RecordAge& age,
                          uint64_t payload_offset, AppendItem* item) = 0;
    virtual void OnWriteError(const Status& status) = 0;
    // Nothing is left to do; the writer may be freed.
    virtual void OnSealed(SegmentWriter* writer) = 0;
  };

  struct Options {
    uint32_t segment = 0;  // The owner's number for it.
    uint32_t file = 0;
    uint64_t segment_bytes = 0;
    SegmentUse use;
    bool sync = false;
  };

  SegmentWriter(const Options& options, NvmeIo* io, Host* host);
  // Goes on where an earlier process stopped.
  SegmentWriter(const Options& options, const Progress& progress, FooterBuilder footer, NvmeIo* io,
                Host* host);
  ~SegmentWriter();

  const Options& options() const { return options_; }

  bool Fits(uint64_t block_bytes) const;
  // Whether Append() would make a whole group of it.
  static bool FillsGroup(const std::deque<AppendItem*>& queue);
  // Takes a group's worth of items from the front of `queue`; the first one fits.
  void Append(std::deque<AppendItem*>* queue);
  void OnChunkDone(const Chunk& chunk, std::span<const IoRequest> requests);
  // No more is appended. OnSealed() follows once everything before it is settled.
  void Seal();
  bool sealing() const { return sealing_; }

  uint64_t used_bytes() const { return cursor_ + FooterBytes(next_record_ + queued_records_); }

 private:
  // Behind what was added before, on the drive.
  void AddPayload(uint32_t slot, uint64_t offset, std::span<std::byte> data, Chunk* chunk) const;
  void Commit();
  void WritePages(size_t groups);
  void OnPagesDone(size_t groups, std::span<const IoRequest> requests);
  void Break(const Status& status);
  void MaybeWriteFooter();
  void Submit(std::vector<IoRequest> requests, NvmeIo::Done done, std::vector<PageBuffer> keep);

  const Options options_;
  NvmeIo* const io_;
  Host* const host_;

  uint64_t cursor_;
  uint32_t next_group_ = 0;
  uint32_t next_record_ = 0;
  uint32_t queued_records_ = 0;                // In groups without a record number yet.
  uint64_t last_page_ = 0;                     // PageLink() of the last group page.
  std::deque<std::unique_ptr<Group>> groups_;  // Not committed, in order.
  FooterBuilder footer_;
  bool committing_ = false;
  bool broken_ = false;
  Status broken_why_;
  bool sealing_ = false;
  bool footer_started_ = false;
};

// Writes, and then syncs the files written to if asked.
void SubmitDurably(NvmeIo* io, bool sync, std::vector<IoRequest> requests, NvmeIo::Done done,
                   std::vector<PageBuffer> keep);

}  // namespace aquifer
