// Space comes back a segment at a time: the oldest of the sealed segments with about the least live
// bytes is emptied. Up to a fifth of it is written again, what the cache values most first; the
// rest is lost. Then its header says that it is free, so that neither what was dropped nor what was
// moved comes back.
#include "tier/nvme/nvme_reclaim.h"

#include <algorithm>
#include <utility>

#include "aquifer/checksum.h"
#include "base/check.h"

namespace aquifer {
namespace {

constexpr uint64_t kMovingBytes = uint64_t{8} << 20;  // On its way at once; at least one block.
constexpr size_t kMovingBlocks = 256;                 // The same.
constexpr size_t kMovesPerTask = 32;
constexpr size_t kLooksPerTask = 256;
constexpr size_t kDropsPerTask = 256;
constexpr uint64_t kWantedFree = 2;
// Within an eighth of a segment of the least counts as equally little.
constexpr uint64_t kAboutTheLeast = 8;
constexpr int64_t kSpareNanos = 1'000'000'000;  // Before one that could not go is tried again.

}  // namespace

bool NvmeDrive::CanReclaim() const { return PickVictim() != UINT32_MAX; }

// The oldest of those that hold about the least. What was written just now is what somebody is
// about to ask for, and short chains make its segment hold a little less than others. But what is
// empty goes first, and where one can go without a loss, so does the one that is chosen.
uint32_t NvmeDrive::PickVictim() const {
  const auto may_go = [at = now()](const Segment& segment) {
    return segment.state == State::kSealed && segment.spared_until_nanos <= at;
  };
  uint64_t least = UINT64_MAX;
  bool can_be_moved = false;
  for (const Segment& segment : segments_) {
    if (!may_go(segment)) continue;
    least = std::min(least, segment.live_bytes);
    can_be_moved |= segment.live_bytes <= segment.MovableBytes();
  }
  uint32_t oldest = UINT32_MAX;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    if (!may_go(segment)) continue;
    uint64_t most = least == 0 ? 0 : least + segment.bytes / kAboutTheLeast;
    if (can_be_moved) most = std::min(most, segment.MovableBytes());
    if (segment.live_bytes > most) continue;
    if (oldest == UINT32_MAX || segment.use.generation < segments_[oldest].use.generation) {
      oldest = i;
    }
  }
  return oldest;
}

void NvmeDrive::MaybeReclaim() {
  if (!writable()) return;
  if (reclaim_ != nullptr) return PostContinueReclaim();
  const bool over_cap = file_bytes_ > capacity_bytes_;  // The cap was lowered.
  if (!over_cap && FreeSegments() + CreatableSegments() >= kWantedFree) return;
  if (over_cap && FreeSegments() > 0) {
    for (uint32_t i = 0; i < segments_.size() && file_bytes_ > capacity_bytes_; ++i) {
      if (segments_[i].state == State::kFree) return ReleaseSegment(i);
    }
  }
  if (const uint32_t victim = PickVictim(); victim != UINT32_MAX) StartReclaim(victim);
}

void NvmeDrive::StartReclaim(uint32_t victim) {
  segments_[victim].state = State::kVictim;
  reclaim_ = std::make_unique<Reclaim>();
  reclaim_->victim = victim;
  if (std::unique_ptr<ReclaimChoice> choice = owner_->ChooseForReclaim()) {
    reclaim_->candidates = std::make_shared<Reclaim::Candidates>();
    reclaim_->candidates->choice = std::move(choice);
    reclaim_->candidates->keep_bytes = segments_[victim].MovableBytes();
    reclaim_->candidates->max_segment_bytes = options().segment_bytes;
  }
  PostContinueReclaim();
}

void NvmeDrive::LookAtSome() {
  const std::vector<NvmeIndex::EntryId>& records = segments_[reclaim_->victim].records;
  const int64_t unix_seconds = shared_->clock->UnixSeconds();
  const size_t end = std::min(reclaim_->next_look + kLooksPerTask, records.size());
  std::vector<BlockId> ids;
  for (; reclaim_->next_look < end; ++reclaim_->next_look) {
    const NvmeIndex::EntryId entry = records[reclaim_->next_look];
    if (entry == NvmeIndex::kNone || shared_->index.Expired(entry, unix_seconds)) continue;
    ids.push_back(shared_->index.Id(entry));
    reclaim_->candidates->blocks.push_back(
        {.entry = entry,
         .sequence = shared_->index.age(entry).sequence,
         .bytes = RoundUpToPage(shared_->index.stored_bytes(entry))});
  }
  reclaim_->candidates->choice->Add(ids);
  if (end < records.size()) return PostContinueReclaim();
  const Reclaim::Candidates& all = *reclaim_->candidates;
  if (!all.blocks.empty() && !all.choice->MayReclaim(all.keep_bytes)) return AbandonReclaim();
  SortByValue();
}

std::vector<NvmeDrive::Reclaim::Kept> NvmeDrive::Reclaim::Candidates::Best() {
  std::vector<Kept> best;
  uint64_t left = keep_bytes;
  for (const uint32_t number : choice->Order()) {
    AQ_CHECK(number < blocks.size());
    const Kept& block = blocks[number];
    if (block.bytes > left) break;
    // A segment of an earlier, larger size may hold what no segment of today's size can.
    if (MinSegmentBytes(block.bytes) > max_segment_bytes) continue;
    left -= block.bytes;
    best.push_back(block);
  }
  return best;
}

// A worker's: a segment may hold a hundred thousand.
void NvmeDrive::SortByValue() {
  reclaim_->sorting = true;
  auto keep = std::make_shared<std::vector<Reclaim::Kept>>();  // Where the worker leaves it.
  Task sorted = shared_->Guard([this, keep] {
    reclaim_->sorting = false;
    reclaim_->candidates.reset();
    reclaim_->keep = std::move(*keep);
    ContinueReclaim();
  });
  shared_->workers->Run([candidates = reclaim_->candidates, keep, executor = shared_->executor,
                         sorted = std::move(sorted)] {
    *keep = candidates->Best();
    executor->Post(sorted);
  });
}

void NvmeDrive::PostContinueReclaim() {
  if (std::exchange(reclaim_->continuing, true)) return;
  shared_->Post([this] {
    if (reclaim_ == nullptr) return;
    reclaim_->continuing = false;
    ContinueReclaim();
  });
}

void NvmeDrive::ContinueReclaim() {
  if (reclaim_->freeing || reclaim_->sorting) return;
  if (!writable()) reclaim_->failed = true;
  if (reclaim_->candidates != nullptr && !reclaim_->failed) return LookAtSome();
  size_t steps = 0;
  while (!reclaim_->failed && reclaim_->next < reclaim_->keep.size() &&
         reclaim_->moving_bytes < kMovingBytes && reclaim_->moves.size() < kMovingBlocks) {
    if (steps++ == kMovesPerTask) return PostContinueReclaim();
    StartMove(reclaim_->next++);
  }
  if (!reclaim_->moves.empty()) return;
  if (reclaim_->failed) {
    if (reclaim_->next_drop > 0) {  // Past the point of no return: goes on when the drive is back.
      reclaim_->failed = false;
      if (!writable()) return;
    } else {
      segments_[reclaim_->victim].state = State::kSealed;
      reclaim_.reset();
      return Changed();  // The drive may be back by now, and writes may wait for room.
    }
  }
  if (reclaim_->next < reclaim_->keep.size()) return;
  DropRest();
}

void NvmeDrive::StartMove(size_t index) {
  const Reclaim::Kept& kept = reclaim_->keep[index];
  if (!shared_->index.Used(kept.entry) ||
      shared_->index.age(kept.entry).sequence != kept.sequence) {
    return;  // Erased meanwhile, or written anew.
  }
  const RecordPlace place = shared_->index.Place(kept.entry);
  if (place.drive != number_ || place.segment != reclaim_->victim) return;
  auto owned = std::make_unique<Move>();
  Move* const move = owned.get();
  move->drive = this;
  move->meta = shared_->index.Meta(kept.entry);
  move->moved_entry = kept.entry;
  move->moved_from = place;
  auto buffer = std::make_shared<PageBuffer>(RoundUpToPage(move->meta.stored_bytes));
  move->keep = buffer;
  move->source = buffer->span();
  reclaim_->moving_bytes += move->source.size();
  reclaim_->moves.push_back(std::move(owned));
  owner_->OnMoveBegins(move->meta.id);
  // The buffer goes with the request, which may outlive the tier.
  Read(
      {{.place = place, .target = buffer->span(), .status = {}}},
      [this, move, buffer](std::vector<ReadRequest>& reads) { OnMoveRead(move, reads[0].status); });
}

// What is sealed or made smaller is moved as it lies: no key is needed for that, and whoever reads
// it next finds out whether it is well.
void NvmeDrive::OnMoveRead(Move* move, const Status& status) {
  if (!status.ok()) return OnMoveDone(move, status);
  const bool sealed = move->meta.data_key_id != std::array<std::byte, 16>{};
  if (sealed || move->meta.codec != Codec::kNone) return OnMoveVerified(move, true);
  struct Verdict {
    std::span<const std::byte> bytes;
    Checksum expected;
    bool good = false;
  };
  auto verdict = std::make_shared<Verdict>();
  verdict->bytes = move->source.first(move->meta.raw_bytes);
  verdict->expected = move->meta.checksum;
  Executor* const executor = shared_->executor;
  Task finish = shared_->Guard([this, move, verdict] { OnMoveVerified(move, verdict->good); });
  // The worker may outlive the tier, so the buffer goes with it.
  shared_->workers->Run([verdict, buffer = move->keep, executor, finish = std::move(finish)] {
    verdict->good = ChecksumOf(verdict->bytes) == verdict->expected;
    executor->Post(finish);
  });
}

void NvmeDrive::OnMoveVerified(Move* move, bool good) {
  if (!good) {
    ++shared_->counters.corrupt_blocks;
    if (shared_->index.Holds(move->moved_entry, move->meta.id) &&
        shared_->index.Place(move->moved_entry) == move->moved_from) {
      const BlockId id = move->meta.id;
      Drop(move->moved_entry);
      owner_->OnLost({id}, Code::kCorrupt);
    }
    return OnMoveDone(move, Status(Code::kCorrupt));
  }
  if (!writable()) return OnMoveDone(move, why_);
  moves_.push_back(move);
  Changed();
}

void NvmeDrive::OnMoveDone(Move* move, const Status& status) {
  if (status.ok()) {
    ++shared_->counters.reclaim_moved_blocks;
    shared_->counters.reclaim_moved_bytes += move->meta.raw_bytes;
    owner_->OnRewritten(move->source.size());
  } else if (!writable()) {
    reclaim_->failed = true;
  }
  const BlockId id = move->meta.id;
  reclaim_->moving_bytes -= move->source.size();
  std::erase_if(reclaim_->moves, [&](const auto& owned) { return owned.get() == move; });
  owner_->OnMoveEnds(id);
  PostContinueReclaim();
}

// What is not moved is lost, a slice at a time: tails before heads, for it may end half way.
void NvmeDrive::DropRest() {
  Segment& segment = segments_[reclaim_->victim];
  std::vector<BlockId> lost;
  bool abandon = false;
  while (reclaim_->next_drop < segment.records.size() && lost.size() < kDropsPerTask) {
    const NvmeIndex::EntryId entry =
        segment.records[segment.records.size() - 1 - reclaim_->next_drop];
    const bool live = entry != NvmeIndex::kNone;
    const BlockId id = live ? shared_->index.Id(entry) : BlockId{};
    abandon = live && !owner_->MayDrop(id);
    if (abandon) break;
    ++reclaim_->next_drop;
    if (!live) continue;
    lost.push_back(id);
    Drop(entry);
  }
  const bool some = !lost.empty();
  if (some) {
    shared_->counters.reclaim_dropped_blocks += lost.size();
    owner_->OnLost(std::move(lost), Code::kNoSpace);
  }
  if (abandon) return AbandonReclaim();
  if (some) return PostContinueReclaim();
  FreeVictim();
}

// Too much of it must not be lost: what is left of the victim stays where it is, for now. Writes
// may wait for it.
void NvmeDrive::AbandonReclaim() {
  Segment& segment = segments_[reclaim_->victim];
  segment.state = State::kSealed;
  segment.spared_until_nanos = now() + kSpareNanos;
  reclaim_.reset();
  shared_->PostAt(now() + kSpareNanos, [this] { Changed(); });
  Changed();
}

void NvmeDrive::FreeVictim() {
  const uint32_t victim = reclaim_->victim;
  Segment& segment = segments_[victim];
  // Both come back here when they end.
  if (segment.readers > 0 || segment.map_writing) return;
  reclaim_->freeing = true;
  PageBuffer page(kPageBytes);
  EncodeHeader({.state = SegmentState::kFree,
                .file = segment.file,
                .segment_bytes = segment.bytes,
                .drive_id = drive_id_,
                .use = segment.use,
                .created_unix_seconds = shared_->clock->UnixSeconds()},
               page.page(0));
  std::vector<IoRequest> requests;
  requests.push_back({.kind = IoKind::kWrite,
                      .file = segment.file,
                      .offset = 0,
                      .data = page.span(),
                      .status = {}});
  std::vector<PageBuffer> keep;
  keep.push_back(std::move(page));
  SubmitDurably(
      &io_, options().sync, std::move(requests),
      [this, victim](std::vector<IoRequest>& done) {
        reclaim_->freeing = false;
        // On failure the victim stays one, empty, and is tried again: writes may wait for it, and
        // nothing else need happen.
        if (const Status status = FirstError(done); !status.ok()) {
          shared_->PostAt(now() + kSpareNanos, [this] { Changed(); });
          return OnWriteError(status);
        }
        // A map write that began meanwhile would land in the segment's next life.
        if (segments_[victim].map_writing) return;
        ++shared_->counters.segments_reclaimed;
        reclaim_.reset();
        ReleaseSegment(victim);
        Changed();
      },
      std::move(keep));
}

}  // namespace aquifer
