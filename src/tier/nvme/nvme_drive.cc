#include "tier/nvme/nvme_drive.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted_bug.h"
#include "tier/nvme/nvme_reclaim.h"
#include "tier/nvme/nvme_recovery.h"

namespace aquifer {
namespace {

// Payload that the disk has at once, so that the drive is not idle while more is brought: what the
// drive writes in 50 ms, since a request that waits there counts as one that the drive has. How
// much is at the drive itself is the disk's business. No more than the least where somebody reads.
constexpr int64_t kQueueNanos = 50'000'000;
constexpr uint64_t kLeastQueueBytes = uint64_t{8} << 20;
constexpr uint64_t kMostQueueBytes = uint64_t{64} << 20;
// With less room than this left, and more to write, the next segment is opened: its header is on
// the drive by the time that it is needed. A quarter of a segment, where that is less.
constexpr uint64_t kOpenAheadBytes = uint64_t{32} << 20;
// Maps are built on the owner's thread; a round of so many takes under 100 us.
constexpr size_t kMapsPerRound = 8;
constexpr size_t kSweptPerTask = 256;

}  // namespace

NvmeDrive::NvmeDrive(uint32_t number, uint64_t capacity_bytes, Disk* disk, NvmeShared* shared,
                     Owner* owner)
    : number_(number),
      capacity_bytes_(capacity_bytes),
      shared_(shared),
      owner_(owner),
      io_(disk, shared->clock) {
  io_.on_oldest = [this] { ArmTimer(); };
}

NvmeDrive::~NvmeDrive() = default;

void NvmeDrive::Changed() { owner_->OnDriveChanged(this); }

// ---- Segments ----

uint32_t NvmeDrive::FreeSegments() const {
  return static_cast<uint32_t>(
      std::count_if(segments_.begin(), segments_.end(),
                    [](const Segment& segment) { return segment.state == State::kFree; }));
}

uint64_t NvmeDrive::CreatableSegments() const {
  const uint64_t cap =
      capacity_bytes_ + (Planted(PlantedBug::kCapOffByOne) ? options().segment_bytes : 0);
  if (now() < create_again_nanos_ || file_bytes_ >= cap) return 0;
  return (cap - file_bytes_) / options().segment_bytes;
}

bool NvmeDrive::full() const {
  if (open_ != nullptr || opening_ != UINT32_MAX || !sealing_.empty()) return false;
  if (now() < open_again_nanos_) return true;
  return reclaim_ == nullptr && !CanReclaim() && FreeSegments() + CreatableSegments() == 0;
}

bool NvmeDrive::StartOpening(bool for_reclaim) {
  if (opening_ != UINT32_MAX) return true;
  if (now() < open_again_nanos_) return false;
  const uint64_t free = FreeSegments() + CreatableSegments();
  // The last free segment is for what reclaim moves, unless there is nothing to reclaim.
  if (free == 0) return false;
  if (free < 2 && !for_reclaim && (reclaim_ != nullptr || CanReclaim())) return false;
  for (uint32_t i = 0; i < segments_.size() && opening_ == UINT32_MAX; ++i) {
    if (segments_[i].state == State::kFree) opening_ = i;
  }
  if (opening_ != UINT32_MAX) {
    segments_[opening_].state = State::kOpening;
    WriteFirstPages(opening_);
    return true;
  }
  opening_ = NewSegment();
  std::vector<IoRequest> create(1);
  create[0].kind = IoKind::kCreate;
  create[0].file = segments_[opening_].file;
  create[0].length = options().segment_bytes;
  io_.Submit(std::move(create), [this](std::vector<IoRequest>& requests) {
    OnCreated(opening_, requests[0].status);
    if (requests[0].status.ok()) return WriteFirstPages(opening_);
    opening_ = UINT32_MAX;
    Changed();
  });
  return true;
}

// A segment for a file that does not exist yet; its bytes count from now on.
uint32_t NvmeDrive::NewSegment() {
  std::vector<uint32_t> taken;
  uint32_t index = static_cast<uint32_t>(segments_.size());
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].state == State::kGone) {
      index = std::min(index, i);
    } else {
      taken.push_back(segments_[i].file);
    }
  }
  std::sort(taken.begin(), taken.end());
  uint32_t file = 0;
  for (const uint32_t number : taken) {
    if (number == file) ++file;
  }
  if (index == segments_.size()) segments_.emplace_back();
  segments_[index] = Segment{};
  segments_[index].state = State::kOpening;
  segments_[index].file = file;
  segments_[index].bytes = options().segment_bytes;
  file_bytes_ += options().segment_bytes;
  return index;
}

void NvmeDrive::OnCreated(uint32_t index, const Status& status) {
  if (status.ok()) return;
  ++shared_->counters.create_errors;
  Segment& segment = segments_[index];
  segment.state = State::kGone;
  file_bytes_ -= segment.bytes;
  // A full file system is not a failure of the drive: it goes on with the segments it has.
  if (status.code() == Code::kNoSpace || status.code() == Code::kBusy) {
    create_again_nanos_ = now() + options().probe_interval_nanos;
  } else {
    GoReadOnly(status);
  }
}

void NvmeDrive::WriteFirstPages(uint32_t index) {
  Segment& segment = segments_[index];
  if (!has_drive_id_) {
    shared_->random->Fill(drive_id_);
    has_drive_id_ = true;
  }
  segment.use = {.generation = next_generation_++, .salt = shared_->random->Next64()};
  PageBuffer pages(DataOffset(segment.bytes));
  EncodeHeader({.state = SegmentState::kUsed,
                .file = segment.file,
                .segment_bytes = segment.bytes,
                .drive_id = drive_id_,
                .use = segment.use,
                .created_unix_seconds = shared_->clock->UnixSeconds()},
               pages.page(0));
  segment.map_bytes = MapBytes(segment.bytes);
  for (uint64_t copy = 0; copy < 2; ++copy) {
    FinishMap({.use = segment.use, .sequence = copy, .records = 0},
              pages.span().subspan(kMapsOffset + copy * segment.map_bytes, segment.map_bytes));
  }
  segment.map_sequence = 1;
  segment.map_copy = 0;
  std::vector<IoRequest> requests;
  requests.push_back({.kind = IoKind::kWrite,
                      .file = segment.file,
                      .offset = 0,
                      .data = pages.span(),
                      .status = {}});
  std::vector<PageBuffer> keep;
  keep.push_back(std::move(pages));
  SubmitDurably(
      &io_, options().sync, std::move(requests),
      [this, index](std::vector<IoRequest>& done) { OnOpened(index, FirstError(done)); },
      std::move(keep));
}

void NvmeDrive::OnOpened(uint32_t index, const Status& status) {
  opening_ = UINT32_MAX;
  Segment& segment = segments_[index];
  if (!status.ok()) {
    segment.state = State::kFree;
    ++shared_->counters.write_errors;
    if (status.code() == Code::kUnavailable) {
      GoReadOnly(status);
    } else {
      open_again_nanos_ = now() + options().probe_interval_nanos;
    }
    return Changed();
  }
  ++shared_->counters.segments_opened;
  segment.state = State::kOpen;
  segment.records.clear();
  segment.live_bytes = 0;
  segment.map_dirty = segment.map_unmirrored = false;
  auto writer =
      std::make_unique<SegmentWriter>(SegmentWriter::Options{.segment = index,
                                                             .file = segment.file,
                                                             .segment_bytes = segment.bytes,
                                                             .use = segment.use,
                                                             .sync = options().sync},
                                      &io_, this);
  (open_ == nullptr ? open_ : next_) = std::move(writer);
  if (!writable()) SealAll();
  Changed();
}

void NvmeDrive::SealOpen() {
  if (open_ == nullptr) return;
  SegmentWriter* const writer = open_.get();
  segments_[writer->options().segment].state = State::kSealing;
  sealing_.push_back(std::exchange(open_, std::move(next_)));
  writer->Seal();
}

void NvmeDrive::SealAll() {
  while (open_ != nullptr) SealOpen();
}

void NvmeDrive::OnSealed(SegmentWriter* writer) {
  ++shared_->counters.segments_sealed;
  Segment& segment = segments_[writer->options().segment];
  segment.state = State::kSealed;
  std::erase_if(sealing_, [&](const auto& sealing) { return sealing.get() == writer; });
  Changed();
}

// The segment holds nothing any more, on the drive as in memory.
void NvmeDrive::ReleaseSegment(uint32_t index) {
  Segment& segment = segments_[index];
  segment.records.clear();
  segment.records.shrink_to_fit();
  segment.unread.clear();
  segment.live_bytes = 0;
  segment.map_dirty = segment.map_unmirrored = false;
  if (segment.bytes == options().segment_bytes && file_bytes_ <= capacity_bytes_) {
    segment.state = State::kFree;
    return;
  }
  segment.state = State::kRemoving;
  std::vector<IoRequest> remove(1);
  remove[0].kind = IoKind::kRemove;
  remove[0].file = segment.file;
  io_.Submit(std::move(remove), [this, index](std::vector<IoRequest>& requests) {
    Segment& removed = segments_[index];
    // A file that cannot be removed stays, empty, and counts.
    removed.state = requests[0].status.ok() ? State::kGone : State::kBarred;
    if (requests[0].status.ok()) file_bytes_ -= removed.bytes;
    Changed();
  });
}

// ---- Writing ----

bool NvmeDrive::TakeFrom(std::deque<AppendItem*>* queue) {
  bool took = false;
  while (!took && writable()) {
    const bool moving = !moves_.empty();
    std::deque<AppendItem*>* const from = moving ? &moves_ : queue;
    if (from->empty() || !chunks_.empty() || write_bytes_in_flight_ >= WriteBudget()) break;
    if (!moving && CanWaitForMore(*from)) break;
    if (open_ == nullptr) {
      if (StartOpening(moving) || !moving) break;
      FailMoves(Status(Code::kNoSpace));
      continue;
    }
    if (!open_->Fits(from->front()->source.size())) {
      SealOpen();
      continue;
    }
    open_->Append(from);
    PumpChunks();
    took = true;
    if (!from->empty()) OpenAhead();
  }
  MaybeReclaim();
  return took;
}

void NvmeDrive::OpenAhead() {
  if (open_ == nullptr || next_ != nullptr) return;
  const uint64_t bytes = open_->options().segment_bytes;
  const bool nearly_full = bytes - open_->used_bytes() < std::min(kOpenAheadBytes, bytes / 4);
  if (nearly_full) StartOpening(false);
}

bool NvmeDrive::CanWaitForMore(const std::deque<AppendItem*>& queue) const {
  return write_bytes_in_flight_ >= kLeastQueueBytes && !SegmentWriter::FillsGroup(queue);
}

uint64_t NvmeDrive::WriteBudget() const {
  return reads_in_flight_ > 0 ? kLeastQueueBytes : queue_bytes_;
}

// So many bytes, with those before it, took so long.
void NvmeDrive::NoteWritten(uint64_t bytes, int64_t nanos) {
  const double queue = static_cast<double>(bytes) * kQueueNanos / std::max<double>(nanos, 1);
  const auto wanted =
      static_cast<uint64_t>(std::clamp<double>(queue, kLeastQueueBytes, kMostQueueBytes));
  queue_bytes_ = (7 * queue_bytes_ + wanted) / 8;
}

void NvmeDrive::PumpChunks() {
  while (!chunks_.empty() && (write_bytes_in_flight_ == 0 ||
                              write_bytes_in_flight_ + chunks_.front().bytes <= WriteBudget())) {
    auto chunk = std::make_shared<SegmentWriter::Chunk>(std::move(chunks_.front()));
    chunks_.pop_front();
    write_bytes_in_flight_ += chunk->bytes;
    const auto on_done = [this, chunk, bytes = write_bytes_in_flight_, since = now(),
                          hung = times_hung_](std::vector<IoRequest>& requests) {
      if (FirstError(requests).ok()) NoteWritten(bytes, now() - since);
      if (hung == times_hung_) write_bytes_in_flight_ -= chunk->bytes;
      chunk->writer->OnChunkDone(*chunk, requests);
      PumpChunks();
      Changed();
    };
    io_.SubmitBulk(std::move(chunk->requests), on_done);
  }
}

// What is moved, or gets another time to live, is as old as it was: a drive that is away may hold
// what was stored later.
RecordAge NvmeDrive::NextAge(const AppendItem& item) {
  const uint64_t sequence = shared_->next_sequence++;
  const NvmeIndex& index = shared_->index;
  NvmeIndex::EntryId known = item.moved_entry;
  if (item.renews) known = index.Find(item.meta.id);
  const bool same = known != NvmeIndex::kNone && index.Holds(known, item.meta.id) &&
                    index.checksum(known) == item.meta.checksum;
  return {.origin = same ? index.age(known).origin : sequence, .sequence = sequence};
}

void NvmeDrive::OnRecord(SegmentWriter* writer, uint32_t record, const RecordAge& age,
                         uint64_t payload_offset, AppendItem* item) {
  NvmeIndex& index = shared_->index;
  const uint32_t number = writer->options().segment;
  Segment& segment = segments_[number];
  AQ_CHECK(record == segment.records.size());
  segment.records.push_back(NvmeIndex::kNone);
  const RecordPlace place{.drive = number_,
                          .segment = number,
                          .page = static_cast<uint32_t>(payload_offset / kPageBytes),
                          .record = record};
  NvmeIndex::EntryId entry = NvmeIndex::kNone;
  if (item == nullptr || item->superseded) {
    unmarked_ = true;  // Dead from the start, but it may be on the drive all the same.
  } else if (item->moved_entry == NvmeIndex::kNone) {
    const NvmeIndex::EntryId known = index.Find(item->meta.id);
    if (known == NvmeIndex::kNone) {
      entry = index.Insert(item->meta, age, place);
    } else if (item->replace || !index.HasSame(known, item->meta)) {
      const RecordPlace old = index.Place(known);
      owner_->Drive(old.drive)->Unlist(old, RoundUpToPage(index.stored_bytes(known)));
      item->replaced_on = old.drive;
      index.Replace(known, item->meta, age, place);
      entry = known;
    }
    if (entry != NvmeIndex::kNone && age.stores()) index.SetStored(entry);
    ++shared_->counters.blocks_written;
    shared_->counters.bytes_written += item->meta.raw_bytes;
  } else if (index.Holds(item->moved_entry, item->meta.id) &&
             index.Place(item->moved_entry) == item->moved_from) {
    entry = item->moved_entry;
    Unlist(item->moved_from, item->source.size());
    index.Move(entry, age, place);
  }
  if (entry == NvmeIndex::kNone) {
    segment.map_dirty = true;
    return;
  }
  segment.records[record] = entry;
  segment.live_bytes += item->source.size();
  live_bytes_ += item->source.size();
}

void NvmeDrive::OnWriteError(const Status& status) {
  ++shared_->counters.write_errors;
  if (status.code() == Code::kUnavailable) return GoReadOnly(status);
  if (status.code() == Code::kNoSpace) {
    open_again_nanos_ = now() + options().probe_interval_nanos;
  }
  SealOpen();
}

// ---- Reading ----

void NvmeDrive::Read(std::vector<ReadRequest> reads,
                     std::function<void(std::vector<ReadRequest>&)> done) {
  std::vector<IoRequest> requests;
  requests.reserve(reads.size());
  for (const ReadRequest& read : reads) {
    Segment& segment = segments_[read.place.segment];
    ++segment.readers;
    requests.push_back({.kind = IoKind::kRead,
                        .file = segment.file,
                        .offset = read.place.page * uint64_t{kPageBytes},
                        .data = read.target,
                        .status = {}});
  }
  ++reads_in_flight_;
  io_.Submit(std::move(requests), [this, reads = std::move(reads), done = std::move(done),
                                   hung = times_hung_](std::vector<IoRequest>& finished) mutable {
    if (hung == times_hung_) --reads_in_flight_;
    for (size_t i = 0; i < reads.size(); ++i) {
      reads[i].status = finished[i].status;
      --segments_[reads[i].place.segment].readers;
      CountRead(finished[i].status);
    }
    if (reclaim_ != nullptr) PostContinueReclaim();
    PumpChunks();
    done(reads);
  });
}

// ---- Deletion maps ----

void NvmeDrive::Drop(NvmeIndex::EntryId entry) {
  const RecordPlace place = shared_->index.Place(entry);
  AQ_CHECK(segments_[place.segment].records[place.record] == entry);
  Unlist(place, RoundUpToPage(shared_->index.stored_bytes(entry)));
  shared_->index.Remove(entry);
}

void NvmeDrive::Unlist(const RecordPlace& place, uint64_t payload_bytes) {
  Segment& segment = segments_[place.segment];
  segment.records[place.record] = NvmeIndex::kNone;
  segment.live_bytes -= payload_bytes;
  live_bytes_ -= payload_bytes;
  segment.map_dirty = true;
}

void NvmeDrive::DropUnmarked(NvmeIndex::EntryId entry) {
  Drop(entry);
  unmarked_ = true;
}

bool NvmeDrive::has_unwritten_marks() const {
  return unmarked_ || map_cycle_running_ ||
         std::any_of(segments_.begin(), segments_.end(),
                     [](const Segment& segment) { return segment.map_dirty; });
}

void NvmeDrive::FlushMaps(std::function<void(Status)> done) {
  if (map_cycle_running_ && io_.hung() > 0) {  // It may never end.
    unmarked_ = true;
    return done(Status(Code::kUnavailable, "a request to the drive hangs"));
  }
  map_waiters_.push_back(std::move(done));
  RunMapCycle();
}

void NvmeDrive::RunMapCycle() {
  if (map_cycle_running_) return;
  const bool wanted = !map_waiters_.empty();
  map_cycle_waiters_ = std::move(map_waiters_);
  map_waiters_.clear();
  map_cycle_status_ = writable() ? Status() : why_;
  std::vector<uint32_t> todo;
  for (uint32_t i = 0; i < segments_.size() && map_cycle_status_.ok(); ++i) {
    const Segment& segment = segments_[i];
    if ((wanted && segment.map_dirty) || segment.map_unmirrored) todo.push_back(i);
  }
  if (!wanted && todo.empty()) return;
  map_cycle_running_ = true;
  WriteMaps(std::move(todo), 0);
}

void NvmeDrive::WriteMaps(std::vector<uint32_t> todo, size_t from) {
  std::vector<IoRequest> requests;
  std::vector<PageBuffer> keep;
  std::vector<uint32_t> round;
  for (; from < todo.size() && round.size() < kMapsPerRound; ++from) {
    Segment& segment = segments_[todo[from]];
    if (!segment.map_dirty && !segment.map_unmirrored) continue;  // It was freed meanwhile.
    PageBuffer map(segment.map_bytes);
    const std::span<std::byte> bitmap = MapBitmap(map.span());
    for (size_t i = 0; i < segment.records.size(); ++i) {
      bitmap[i / 8] |= std::byte{segment.dead(i)} << i % 8;
    }
    FinishMap({.use = segment.use,
               .sequence = segment.map_sequence + 1,
               .records = static_cast<uint32_t>(segment.records.size())},
              map.span());
    requests.push_back({.kind = IoKind::kWrite,
                        .file = segment.file,
                        .offset = kMapsOffset + segment.map_copy * segment.map_bytes,
                        .data = map.span(),
                        .status = {}});
    segment.map_unmirrored = std::exchange(segment.map_dirty, false);
    segment.map_writing = true;
    round.push_back(todo[from]);
    keep.push_back(std::move(map));
  }
  if (round.empty()) return FinishMapCycle();
  SubmitDurably(
      &io_, options().sync, std::move(requests),
      [this, todo = std::move(todo), round, from](std::vector<IoRequest>& done) {
        for (size_t i = 0; i < round.size(); ++i) {
          Segment& segment = segments_[round[i]];
          segment.map_writing = false;
          if (done[i].status.ok()) {
            ++shared_->counters.map_writes;
            ++segment.map_sequence;
            segment.map_copy ^= 1;
          } else {
            // The same copy is tried again: the other one is the good one.
            segment.map_dirty = true;
            map_cycle_status_ = done[i].status;
          }
        }
        if (reclaim_ != nullptr) PostContinueReclaim();
        WriteMaps(todo, from);
      },
      std::move(keep));
}

void NvmeDrive::FinishMapCycle() {
  map_cycle_running_ = false;
  const Status status = map_cycle_status_;
  if (!map_cycle_waiters_.empty()) {
    if (!status.ok()) unmarked_ = true;
    if (status.ok() && map_waiters_.empty()) unmarked_ = false;
  }
  std::vector<std::function<void(Status)>> waiters = std::move(map_cycle_waiters_);
  map_cycle_waiters_.clear();
  for (auto& waiter : waiters) waiter(status);
  if (!status.ok() && writable()) OnWriteError(status);
  if (status.ok() || !map_waiters_.empty()) RunMapCycle();
}

// Older copies of moved blocks came up at recovery. Until they are marked no erase is acknowledged.
void NvmeDrive::MarkLosers(std::function<void()> done) {
  FlushMaps([done = std::move(done)](const Status&) { done(); });
}

void NvmeDrive::SweepExpired(uint32_t segment, size_t record) {
  const int64_t unix_seconds = shared_->clock->UnixSeconds();
  size_t steps = 0;
  for (; segment < segments_.size(); ++segment, record = 0) {
    const std::vector<NvmeIndex::EntryId>& records = segments_[segment].records;
    for (; record < records.size(); ++record) {
      if (steps++ == kSweptPerTask) {
        return shared_->Post([this, segment, record] { SweepExpired(segment, record); });
      }
      const NvmeIndex::EntryId entry = records[record];
      if (entry == NvmeIndex::kNone || !shared_->index.Expired(entry, unix_seconds)) continue;
      ++shared_->recovery.blocks_expired;
      --shared_->recovery.blocks;
      // An older record of it, with more time, may have been found on another drive before.
      owner_->OnLost({shared_->index.Id(entry)}, Code::kNotFound);
      DropUnmarked(entry);  // For good: the calendar may be set back.
    }
  }
}

// ---- Usage ----

uint64_t NvmeDrive::used_bytes() const {
  uint64_t used = 0;
  for (const Segment& segment : segments_) {
    if (segment.state != State::kFree && segment.state != State::kGone) used += segment.bytes;
  }
  for (const SegmentWriter* writer : {open_.get(), next_.get()}) {
    if (writer != nullptr) used -= writer->options().segment_bytes - writer->used_bytes();
  }
  return used;
}

uint64_t NvmeDrive::memory_bytes() const {
  uint64_t bytes = segments_.capacity() * sizeof(Segment);
  for (const Segment& segment : segments_) {
    bytes += segment.records.capacity() * sizeof(NvmeIndex::EntryId);
  }
  return bytes;
}

}  // namespace aquifer
