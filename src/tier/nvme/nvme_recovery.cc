#include "tier/nvme/nvme_recovery.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/planted_bug.h"
#include "fmt/format.h"

namespace aquifer {
namespace {

constexpr size_t kFilesAtOnce = 32;
constexpr uint32_t kPagesPerTask = 24;  // Of records; a task stays under 100 us.
constexpr uint64_t kScanWindow = uint64_t{64} << 10;
constexpr size_t kMostMessages = 100;

// How much is read from the end of a file in the hope that it is the whole footer: enough for
// blocks of 1.3 MiB, a page for every 4 MiB of segment, and never under 64 KiB.
uint64_t TailBytes(uint64_t segment_bytes) {
  const uint64_t wanted =
      std::clamp(RoundUpToPage(segment_bytes / 4096), uint64_t{64} << 10, uint64_t{256} << 10);
  return std::min(wanted, segment_bytes - DataOffset(segment_bytes));
}

std::span<const std::byte, kPageBytes> PageAt(std::span<const std::byte> bytes, uint64_t offset) {
  return bytes.subspan(offset).first<kPageBytes>();
}

}  // namespace

struct DriveRecovery::Job {
  uint32_t segment = 0;
  SegmentUse use;
  uint64_t bytes = 0;          // Of the file.
  uint64_t segment_bytes = 0;  // By its header.
  PageBuffer maps;
  std::span<const std::byte> deleted;  // The bitmap of the map that counts.
  uint32_t mapped_records = 0;         // How many records it knew of.
  PageBuffer tail;
  PageBuffer footer;  // All of it, where the tail is not enough.
  bool has_trailer = false;
  SegmentTrailer trailer;
  std::span<const std::byte> footer_pages;
  uint32_t next_page = 0;
  bool footer_damaged = false;
  bool scanned = false;
  PageBuffer window;
  uint64_t window_offset = 0;
  uint64_t window_bytes = 0;
  uint64_t offset = 0;  // Of the next group page.
  uint32_t groups = 0;
  uint32_t records = 0;  // Found by the scan.
  uint64_t last_page = 0;
  bool ends_clean = false;  // The scan met the end of the log, and nothing damaged.
  std::vector<bool> seen;
  std::unique_ptr<FooterBuilder> builder;  // For a segment that was never sealed.

  bool Deleted(size_t record) const {
    return record / 8 < deleted.size() &&
           (deleted[record / 8] >> record % 8 & std::byte{1}) != std::byte{0};
  }
};

void DriveRecovery::Say(uint32_t segment, const std::string& what) {
  const std::string message =
      fmt::format("{}, file {}: {}", drive_->Name(), drive_->segments_[segment].file, what);
  for (std::vector<std::string>* list : {&shared_->recovery.messages, &drive_->skipped_}) {
    if (list->size() < kMostMessages) list->push_back(message);
  }
}

void DriveRecovery::Skip(uint32_t segment, NvmeDrive::State state, const std::string& why) {
  ++shared_->recovery.segments_skipped;
  drive_->segments_[segment].state = state;
  Say(segment, why);
}

void DriveRecovery::Read(uint32_t segment,
                         const std::vector<std::pair<uint64_t, std::span<std::byte>>>& pieces,
                         std::shared_ptr<void> keep, NvmeIo::Done done) {
  std::vector<IoRequest> requests;
  for (const auto& [offset, data] : pieces) {
    requests.push_back({.kind = IoKind::kRead,
                        .file = drive_->segments_[segment].file,
                        .offset = offset,
                        .data = data,
                        .status = {}});
    shared_->recovery.bytes_read += data.size();
  }
  drive_->io_.Submit(std::move(requests),
                     [done = std::move(done), keep = std::move(keep)](
                         std::vector<IoRequest>& finished) { done(finished); });
}

// ---- Headers ----

void DriveRecovery::Start() {
  Result<std::vector<DiskFile>> files = drive_->io_.disk()->List();
  drive_->segments_.clear();
  drive_->file_bytes_ = 0;
  drive_->unread_ = false;  // Of an earlier try.
  if (!files.ok()) {
    // Not from inside the caller's call.
    shared_->Post([this, status = files.status()] { drive_->OnRecovered(status); });
    return;
  }
  std::sort(files->begin(), files->end(),
            [](const DiskFile& a, const DiskFile& b) { return a.number < b.number; });
  for (const DiskFile& file : *files) {
    drive_->segments_.emplace_back();
    drive_->segments_.back().file = file.number;
    drive_->segments_.back().bytes = file.bytes;
    drive_->segments_.back().state = NvmeDrive::State::kBarred;
    drive_->file_bytes_ += file.bytes;
  }
  headers_.resize(drive_->segments_.size());
  has_header_.resize(drive_->segments_.size());
  shared_->Post([this] { ReadHeaders(); });
}

void DriveRecovery::ReadHeaders() {
  while (running_ < kFilesAtOnce && next_file_ < headers_.size()) {
    const auto segment = static_cast<uint32_t>(next_file_++);
    const uint64_t bytes = drive_->segments_[segment].bytes;
    if (bytes == 0) {  // Its creation was cut short.
      removed_.push_back(segment);
      continue;
    }
    if (bytes < kPageBytes) {
      Skip(segment, NvmeDrive::State::kBarred,
           fmt::format("{} bytes are too short for a segment; it is left alone", bytes));
      continue;
    }
    ++running_;
    SyncAndReadHeader(segment);
  }
  if (running_ > 0 || next_file_ < headers_.size()) return;
  const bool nothing = !headers_.empty() && unreadable_headers_ == headers_.size();
  if (nothing || unsynced_) return drive_->OnRecovered(last_error_);
  ChooseDriveId();
  next_file_ = 0;
  shared_->Post([this] { StartJobs(); });
}

// What a process wrote before it died may be read now, and still be lost with the power; and
// others rely on what is found. Without a sync the drive is not used, and is tried again.
void DriveRecovery::SyncAndReadHeader(uint32_t segment) {
  std::vector<IoRequest> sync;
  if (shared_->options.sync) {
    sync.push_back(
        {.kind = IoKind::kSync, .file = drive_->segments_[segment].file, .data = {}, .status = {}});
  }
  const auto read = [this, segment](std::vector<IoRequest>& synced) {
    if (const Status status = FirstError(synced); !status.ok()) {
      unsynced_ = true;
      last_error_ = status;
    }
    auto page = std::make_shared<PageBuffer>(kPageBytes);
    Read(segment, {{0, page->span()}}, page, [this, segment, page](std::vector<IoRequest>& done) {
      --running_;
      OnHeader(segment, done[0].status, page->page(0));
      ReadHeaders();
    });
  };
  if (sync.empty()) return read(sync);
  drive_->io_.Submit(std::move(sync), read);
}

void DriveRecovery::OnHeader(uint32_t segment, const Status& status,
                             std::span<const std::byte, kPageBytes> page) {
  if (!status.ok()) {
    ++unreadable_headers_;
    last_error_ = status;
    drive_->unread_ = true;
    return Skip(segment, NvmeDrive::State::kBarred,
                fmt::format("its header cannot be read ({}); it is left alone", status.ToString()));
  }
  SegmentHeader& header = headers_[segment];
  switch (DecodeHeader(page, &header)) {
    case HeaderVerdict::kOk:
      has_header_[segment] = true;
      return;
    case HeaderVerdict::kUnused:
      drive_->segments_[segment].state = NvmeDrive::State::kFree;
      return;
    case HeaderVerdict::kDamaged:
      return Skip(segment, NvmeDrive::State::kFree,
                  "its header is damaged; what it held is lost and it will be used again");
    case HeaderVerdict::kNewerVersion:
      return Skip(segment, NvmeDrive::State::kBarred,
                  "it was written by a later version; it is left alone. Remove it, or upgrade");
    case HeaderVerdict::kForeign:
      return Skip(segment, NvmeDrive::State::kBarred,
                  "it is not a segment of ours; it is left alone. Remove it to get the space back");
  }
}

// The directory's own files are those of the identity that most of them have.
void DriveRecovery::ChooseDriveId() {
  std::map<DriveId, size_t> votes;
  for (size_t i = 0; i < headers_.size(); ++i) {
    if (has_header_[i]) ++votes[headers_[i].drive_id];
  }
  size_t most = 0;
  for (size_t i = 0; i < headers_.size(); ++i) {
    if (!has_header_[i] || votes[headers_[i].drive_id] <= most) continue;
    most = votes[headers_[i].drive_id];
    drive_->drive_id_ = headers_[i].drive_id;
    drive_->has_drive_id_ = true;
  }
  for (uint32_t i = 0; i < headers_.size(); ++i) {
    if (!has_header_[i]) continue;
    const SegmentHeader& header = headers_[i];
    NvmeDrive::Segment& segment = drive_->segments_[i];
    if (header.drive_id != drive_->drive_id_) {
      has_header_[i] = false;
      Skip(i, NvmeDrive::State::kBarred,
           "it belongs to another drive; it is left alone. Remove it to get the space back");
      continue;
    }
    drive_->next_generation_ = std::max(drive_->next_generation_, header.use.generation + 1);
    if (header.file != segment.file) {
      has_header_[i] = false;
      Skip(i, NvmeDrive::State::kBarred,
           fmt::format("it was written as file {} and has been moved or copied; it is left alone. "
                       "Remove it to get the space back",
                       header.file));
      continue;
    }
    segment.use = header.use;
    if (header.state == SegmentState::kFree) {
      has_header_[i] = false;
      segment.state = NvmeDrive::State::kFree;
    }
  }
}

// ---- Segments ----

// One in each task: the buffers of a segment take some time to be had.
void DriveRecovery::StartJobs() {
  while (running_ < kFilesAtOnce && next_file_ < headers_.size()) {
    const auto index = static_cast<uint32_t>(next_file_++);
    if (!has_header_[index]) continue;
    NvmeDrive::Segment& segment = drive_->segments_[index];
    auto job = std::make_shared<Job>();
    job->segment = index;
    job->use = segment.use;
    job->segment_bytes = headers_[index].segment_bytes;
    segment.map_bytes = MapBytes(job->segment_bytes);
    job->bytes = std::min(segment.bytes / kPageBytes * kPageBytes, job->segment_bytes);
    ++shared_->recovery.segments;
    const uint64_t data_offset = DataOffset(job->segment_bytes);
    if (job->bytes < data_offset + kPageBytes) {
      Skip(index, NvmeDrive::State::kFree,
           fmt::format("it is cut off at {} bytes; nothing of it is left", segment.bytes));
      continue;
    }
    ++running_;
    job->maps = PageBuffer(2 * segment.map_bytes);
    std::vector<std::pair<uint64_t, std::span<std::byte>>> pieces{{kMapsOffset, job->maps.span()}};
    if (job->bytes == job->segment_bytes) {
      const uint64_t tail = TailBytes(job->segment_bytes);
      job->tail = PageBuffer(tail);
      pieces.emplace_back(job->bytes - tail, job->tail.span());
    } else {
      Say(index, fmt::format("it is cut off at {} of {} bytes; it is searched from the front",
                             segment.bytes, job->segment_bytes));
    }
    Read(index, pieces, job,
         [this, job](std::vector<IoRequest>& done) { OnMapsAndTail(job, done); });
    return shared_->Post([this] { StartJobs(); });
  }
  if (running_ == 0 && next_file_ == headers_.size() && !std::exchange(finished_, true)) Finish();
}

void DriveRecovery::OnMapsAndTail(const JobPointer& job, std::vector<IoRequest>& requests) {
  if (const Status status = FirstError(requests); !status.ok()) return Unreadable(job, status);
  NvmeDrive::Segment& segment = drive_->segments_[job->segment];
  if (!ChooseMap(job)) {
    // What was deleted is not known, so nothing may be served.
    Skip(job->segment, NvmeDrive::State::kFree,
         "both of its deletion maps are damaged; what it held is lost and it will be used again");
    return EndJob(job);
  }
  segment.state = NvmeDrive::State::kSealed;
  segment.records.clear();
  const std::span<const std::byte> tail = job->tail.span();
  if (!tail.empty() && DecodeTrailer(PageAt(tail, tail.size() - kPageBytes), job->use,
                                     job->segment_bytes, &job->trailer)) {
    job->has_trailer = true;
    segment.records.resize(job->trailer.records, NvmeIndex::kNone);
    job->seen.resize(job->trailer.records);
    const uint64_t footer_bytes = FooterBytes(job->trailer.records);
    if (footer_bytes <= tail.size()) {
      job->footer_pages = tail.last(footer_bytes).first(footer_bytes - kPageBytes);
      return OnFooterRead(job);
    }
    job->footer = PageBuffer(footer_bytes - kPageBytes);
    job->footer_pages = job->footer.span();
    Read(job->segment, {{job->trailer.footer_offset, job->footer.span()}}, job,
         [this, job](std::vector<IoRequest>& done) {
           if (!done[0].status.ok()) return Unreadable(job, done[0].status);
           OnFooterRead(job);
         });
    return;
  }
  StartScan(job);
}

// The valid copy with the higher sequence. The other may be torn: it was being written.
bool DriveRecovery::ChooseMap(const JobPointer& job) {
  NvmeDrive::Segment& segment = drive_->segments_[job->segment];
  const uint64_t map_bytes = segment.map_bytes;
  bool valid[2];
  MapHeader headers[2];
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const std::span<const std::byte> bytes = job->maps.span().subspan(copy * map_bytes, map_bytes);
    valid[copy] = DecodeMap(bytes, job->use, &headers[copy]);
  }
  if (!valid[0] && !valid[1]) return false;
  const uint32_t best =
      valid[0] && (!valid[1] || headers[0].sequence > headers[1].sequence) ? 0 : 1;
  job->deleted =
      MapBitmap(std::span<const std::byte>(job->maps.span().subspan(best * map_bytes, map_bytes)));
  job->mapped_records = headers[best].records;
  segment.map_sequence = headers[best].sequence;
  segment.map_copy = best ^ 1;
  segment.map_dirty = false;
  // The other copy is brought up to date, so that damage to this one undoes no deletion.
  segment.map_unmirrored = true;
  if (valid[0] && valid[1]) {
    const auto a = job->maps.span().first(map_bytes);
    const auto b = job->maps.span().last(map_bytes);
    segment.map_unmirrored =
        headers[0].records != headers[1].records || !std::ranges::equal(MapBitmap(a), MapBitmap(b));
  }
  return true;
}

void DriveRecovery::OnFooterRead(const JobPointer& job) {
  shared_->Post([this, job] { ParseFooter(job); });
}

void DriveRecovery::ParseFooter(const JobPointer& job) {
  const auto pages = static_cast<uint32_t>(job->footer_pages.size() / kPageBytes);
  for (uint32_t count = 0; count < kPagesPerTask; ++count) {
    if (job->next_page == pages) {
      if (!job->footer_damaged) {
        ++shared_->recovery.segments_by_footer;
        return EndJob(job);
      }
      Say(job->segment, "its footer is damaged; it is searched from the front");
      return StartScan(job);
    }
    const uint32_t number = job->next_page++;
    RecordPage page{.kind = RecordPageKind::kFooter, .use = job->use, .number = number};
    const auto bytes = PageAt(job->footer_pages, number * kPageBytes);
    if (DecodeRecordPage(bytes, &page) == PageVerdict::kOk &&
        page.first_record == number * kRecordsPerPage) {
      ApplyPage(job, page, bytes);
    } else {
      job->footer_damaged = true;
    }
  }
  shared_->Post([this, job] { ParseFooter(job); });
}

void DriveRecovery::StartScan(const JobPointer& job) {
  ++shared_->recovery.segments_by_scan;
  job->scanned = true;
  job->offset = DataOffset(job->segment_bytes);
  if (!job->has_trailer && job->bytes == job->segment_bytes) {
    job->builder = std::make_unique<FooterBuilder>(job->use);
  }
  Scan(job);
}

void DriveRecovery::Scan(const JobPointer& job) {
  for (uint32_t count = 0; count < kPagesPerTask; ++count) {
    if (job->offset + kPageBytes > job->bytes) return EndJob(job);
    if (job->offset < job->window_offset ||
        job->offset + kPageBytes > job->window_offset + job->window_bytes) {
      if (job->window.span().empty()) job->window = PageBuffer(kScanWindow);
      job->window_offset = job->offset;
      job->window_bytes = std::min(kScanWindow, job->bytes - job->offset);
      Read(job->segment, {{job->offset, job->window.span().first(job->window_bytes)}}, job,
           [this, job](std::vector<IoRequest>& done) {
             if (!done[0].status.ok()) return Unreadable(job, done[0].status);
             Scan(job);
           });
      return;
    }
    const auto bytes = PageAt(job->window.span(), job->offset - job->window_offset);
    RecordPage page{.kind = RecordPageKind::kGroup,
                    .use = job->use,
                    .number = job->groups,
                    .offset = job->offset,
                    .previous = job->last_page};
    PageVerdict verdict = DecodeRecordPage(bytes, &page);
    if (verdict == PageVerdict::kOk &&
        (page.first_record != job->records || page.end_offset % kPageBytes != 0 ||
         page.end_offset <= page.offset || page.end_offset > job->segment_bytes)) {
      verdict = PageVerdict::kDamaged;
    }
    if (verdict != PageVerdict::kOk) {
      job->ends_clean = verdict == PageVerdict::kOther;
      if (verdict == PageVerdict::kDamaged) {
        // Where a trailer tells how many there were, each of them is counted at the end.
        if (!job->has_trailer) ++shared_->recovery.corrupt_records;
        Say(job->segment,
            fmt::format("the records at byte {} are damaged, what follows is lost", job->offset));
      }
      return EndJob(job);
    }
    ApplyPage(job, page, bytes);
    job->records += page.records;
    job->last_page = PageLink(bytes);
    job->offset = page.end_offset;
    ++job->groups;
  }
  shared_->Post([this, job] { Scan(job); });
}

void DriveRecovery::ApplyPage(const JobPointer& job, const RecordPage& page,
                              std::span<const std::byte, kPageBytes> bytes) {
  for (uint32_t i = 0; i < page.records; ++i) {
    const auto record = RecordAt(bytes, i);
    if (page.kind == RecordPageKind::kGroup && job->builder != nullptr) job->builder->Add(record);
    Apply(job, page.first_record + i, record);
  }
}

void DriveRecovery::Apply(const JobPointer& job, uint32_t number,
                          std::span<const std::byte, kRecordBytes> bytes) {
  NvmeRecovery& found = shared_->recovery;
  NvmeDrive::Segment& segment = drive_->segments_[job->segment];
  if (job->has_trailer && number >= job->trailer.records) return;
  if (number >= job->deleted.size() * 8) return;
  if (number >= segment.records.size()) {
    segment.records.resize(number + 1, NvmeIndex::kNone);
    job->seen.resize(number + 1);
  }
  if (job->seen[number]) return;
  job->seen[number] = true;

  Record record;
  const RecordVerdict verdict = DecodeRecord(bytes, &record);
  if (verdict == RecordVerdict::kNewerVersion || verdict == RecordVerdict::kUnknownCodec) {
    ++found.corrupt_records;
    return Say(job->segment, fmt::format("record {} was written by a later version", number));
  }
  const uint64_t bytes_on_drive = RoundUpToPage(record.meta.stored_bytes);
  if (verdict != RecordVerdict::kOk || record.generation != job->use.generation ||
      record.payload_offset < DataOffset(job->segment_bytes) ||
      record.payload_offset > job->bytes || bytes_on_drive > job->bytes - record.payload_offset) {
    ++found.corrupt_records;
    return Say(job->segment, fmt::format("record {} is damaged", number));
  }
  shared_->next_sequence = std::max(shared_->next_sequence, record.age.sequence + 1);
  if (job->Deleted(number) && !Planted(PlantedBug::kTombstoneForgotten)) {
    ++found.blocks_deleted;
    return;
  }
  // The same block twice: it was being moved or replaced, or stored anew elsewhere. The newer copy
  // counts, also when its time is over: the older one may have been given more. What was stored
  // since the start is newer than all that a drive brings which is read only now, also where the
  // calendar was set back.
  if (const auto other = shared_->index.Find(record.meta.id); other != NvmeIndex::kNone) {
    if (shared_->index.stored(other) || shared_->index.age(other) >= record.age) {
      segment.map_dirty = true;
      drive_->unmarked_ = true;
      return;
    }
    NvmeDrive* const loser = drive_->owner_->Drive(shared_->index.Place(other).drive);
    loser->Drop(other);
    loser->unmarked_ = true;
    if (loser->recovered_) loser->MarkLosers([] {});
    --found.blocks;
  }
  segment.records[number] =
      shared_->index.Insert(record.meta, record.age,
                            {.drive = drive_->number_,
                             .segment = job->segment,
                             .page = static_cast<uint32_t>(record.payload_offset / kPageBytes),
                             .record = number});
  segment.live_bytes += bytes_on_drive;
  drive_->live_bytes_ += bytes_on_drive;
  ++found.blocks;
}

void DriveRecovery::Unreadable(const JobPointer& job, const Status& status) {
  // What could not be read may hold older copies of blocks, so erases are not sure any more.
  drive_->unread_ = true;
  Say(job->segment, fmt::format("it cannot be read ({})", status.ToString()));
  job->builder = nullptr;
  if (drive_->segments_[job->segment].state == NvmeDrive::State::kBarred) {
    ++shared_->recovery.segments_skipped;
  } else {
    KeepMarksOfUnread(job);
  }
  EndJob(job);
}

// Its map is written again when something of it is deleted, and must say the same of what was not
// read: those that were deleted stay so, and the others are there when a later start can read them.
void DriveRecovery::KeepMarksOfUnread(const JobPointer& job) {
  NvmeDrive::Segment& segment = drive_->segments_[job->segment];
  const size_t count = std::max<size_t>(segment.records.size(), job->mapped_records);
  segment.records.resize(count, NvmeIndex::kNone);
  job->seen.resize(count);
  segment.unread.resize(count);
  for (size_t i = 0; i < count; ++i) segment.unread[i] = !job->seen[i] && !job->Deleted(i);
}

void DriveRecovery::EndJob(const JobPointer& job) {
  NvmeDrive::Segment& segment = drive_->segments_[job->segment];
  if (job->has_trailer && segment.state == NvmeDrive::State::kSealed) {
    const auto missing = std::count(job->seen.begin(), job->seen.end(), false);
    shared_->recovery.corrupt_records += static_cast<uint64_t>(missing);
  }
  if (job->builder != nullptr && segment.state == NvmeDrive::State::kSealed) {
    if (job->records == 0) {
      segment.state = NvmeDrive::State::kFree;  // Opened, and nothing was ever written to it.
      segment.map_unmirrored = false;           // Its next life has maps of its own.
    } else if (!job->ends_clean || job->mapped_records > job->records) {
      // Damaged, or its last records never got here: their numbers are marked as deleted, and new
      // ones would have the same.
      Seal(job);
    } else if (unsealed_ == nullptr || unsealed_->use.generation < job->use.generation) {
      if (unsealed_ != nullptr) Seal(unsealed_);
      unsealed_ = job;
    } else {
      Seal(job);
    }
  }
  --running_;
  shared_->Post([this] { StartJobs(); });
}

// The segment that was open when the process ended is filled further.
void DriveRecovery::Resume(const JobPointer& job) {
  NvmeDrive::Segment& segment = drive_->segments_[job->segment];
  segment.state = NvmeDrive::State::kOpen;
  drive_->open_ =
      std::make_unique<SegmentWriter>(SegmentWriter::Options{.segment = job->segment,
                                                             .file = segment.file,
                                                             .segment_bytes = job->segment_bytes,
                                                             .use = job->use,
                                                             .sync = drive_->options().sync},
                                      SegmentWriter::Progress{.cursor = job->offset,
                                                              .groups = job->groups,
                                                              .records = job->records,
                                                              .last_page = job->last_page},
                                      std::move(*job->builder), &drive_->io_, drive_);
}

// One that cannot be filled further gets the footer that it lacks.
void DriveRecovery::Seal(const JobPointer& job) {
  NvmeDrive* const drive = drive_;
  const uint32_t index = job->segment;
  NvmeDrive::Segment& segment = drive->segments_[index];
  segment.state = NvmeDrive::State::kSealing;
  std::vector<IoRequest> pages;
  std::vector<IoRequest> last;
  job->builder->Finish(segment.file, job->segment_bytes,
                       {.use = job->use, .groups = job->groups, .data_end = job->offset}, &pages,
                       &last);
  auto buffers = std::make_shared<std::vector<PageBuffer>>(job->builder->TakeBuffers());
  SubmitDurably(&drive->io_, drive->options().sync, std::move(pages),
                [drive, index, last, buffers](std::vector<IoRequest>& done) {
                  const auto finish = [drive, index](const Status& status) {
                    drive->segments_[index].state = NvmeDrive::State::kSealed;
                    if (!status.ok()) drive->OnWriteError(status);
                    drive->Changed();
                  };
                  if (const Status status = FirstError(done); !status.ok()) return finish(status);
                  SubmitDurably(&drive->io_, drive->options().sync, last,
                                [finish, buffers](std::vector<IoRequest>& written) {
                                  finish(FirstError(written));
                                },
                                {});
                },
                {});
}

void DriveRecovery::Finish() {
  // Space that is ours but of the wrong size goes back to the file system.
  for (const uint32_t index : removed_) {
    drive_->segments_[index].state = NvmeDrive::State::kFree;
  }
  for (uint32_t i = 0; i < drive_->segments_.size(); ++i) {
    const NvmeDrive::Segment& segment = drive_->segments_[i];
    if (segment.state == NvmeDrive::State::kFree &&
        segment.bytes != shared_->options.segment_bytes) {
      drive_->ReleaseSegment(i);
    }
  }
  if (unsealed_ != nullptr) Resume(unsealed_);
  drive_->OnRecovered(Status());
}

}  // namespace aquifer
