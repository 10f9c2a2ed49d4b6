#include "store/posix/posix_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace aquifer {
namespace {

constexpr int64_t kPatienceNanos = 5'000'000'000;  // Of a writer while others make room.
constexpr int64_t kSoonNanos = 20'000'000;         // When something is to be tried again.
constexpr int64_t kBeatsPerCleaning = 5;
constexpr size_t kMostRemovals = 4096;  // More are left to those who reclaim.
constexpr size_t kMostReads = 65536;

}  // namespace

PosixKeeper::PosixKeeper(const PosixStoreOptions& options, std::function<void()> on_first_look)
    : options_(options),
      paths_(options.directory),
      on_first_look_(std::move(on_first_look)),
      directory_(options.directory, options.known, options.grant_bytes, options.random),
      member_({.root = options.directory,
               .dead_after_nanos = options.dead_after_nanos,
               .clock = options.clock,
               .random = options.random}),
      thread_([this] { Loop(); }) {}

PosixKeeper::~PosixKeeper() {
  {
    const MutexLock lock(&mutex_);
    closing_ = true;
    keeper_wakes_.NotifyAll();
    writers_wake_.NotifyAll();
  }
  thread_.join();
}

// --- For writers ---------------------------------------------------------------------------------

Result<PosixKeeper::Room> PosixKeeper::Use(uint64_t file_bytes, uint64_t folders,
                                           const std::function<bool()>& stop) {
  const uint64_t charge = BlobCharge(file_bytes, folders);
  const int64_t began = options_.clock->NowNanos();
  const MutexLock lock(&mutex_);
  const uint64_t refusals = refusals_;
  while (true) {
    if (!writable_.ok()) return writable_;
    if (charge > largest_bytes_) {
      return Status(Code::kNoSpace, fmt::format("{} bytes are more than a grant of {} has", charge,
                                                options_.directory));
    }
    Room room;
    if (TakeRoom(file_bytes, folders, &room)) {
      last_write_nanos_ = options_.clock->NowNanos();
      return room;
    }
    if (refusals_ != refusals && refusal_.code() != Code::kBusy) return refusal_;
    if (stop()) return Status(Code::kLate);
    if (options_.clock->NowNanos() - began > kPatienceNanos) {
      return Status(Code::kBusy, fmt::format("{}: others are making room", options_.directory));
    }
    EndCurrent(/*full=*/true);
    wanted_bytes_ = std::max(wanted_bytes_, charge);
    keeper_wakes_.NotifyOne();
    writers_wake_.WaitFor(&mutex_, kSoonNanos);
  }
}

// A spare file that is large enough is best; otherwise spare files go until there is room.
bool PosixKeeper::TakeRoom(uint64_t file_bytes, uint64_t folders, Room* room) {
  if (current_ == nullptr) return false;
  const uint64_t charge = BlobCharge(file_bytes, folders);
  PosixGrant& grant = current_->grant;
  uint64_t left = grant.left_bytes;
  uint64_t all = left;
  const auto charge_of = [](const SpareFiles::value_type& spare) {
    return BlobCharge(spare.first.second, spare.first.first);
  };
  for (const auto& spare : grant.spares) all += charge_of(spare);
  if (all < charge) return false;
  auto spare = grant.spares.lower_bound({folders, file_bytes});
  if (spare != grant.spares.end() && spare->first.first == folders) {
    left += charge_of(*spare);
    room->reuse = spare->second;
    grant.spares.erase(spare);
  }
  while (left < charge) {
    spare = grant.spares.begin();
    left += charge_of(*spare);
    room->remove.push_back(spare->second);
    grant.spares.erase(spare);
  }
  // Others may use only what is free already.
  const uint64_t freed = left - grant.left_bytes;
  room->later_bytes = freed > charge ? freed - charge : 0;
  grant.left_bytes = left - charge - room->later_bytes;
  ++current_->writers;
  room->use = current_;
  return true;
}

void PosixKeeper::EndCurrent(bool full) {
  if (current_ == nullptr) return;
  current_->full = full;
  ending_.push_back(std::move(current_));
  current_ = nullptr;
}

void PosixKeeper::EndUse(const GrantUse& use, uint64_t unused_bytes, bool lost) {
  const MutexLock lock(&mutex_);
  use->grant.left_bytes += unused_bytes;
  --use->writers;
  if (lost && current_ == use) EndCurrent(/*full=*/true);
  if (use->writers == 0 && use != current_) keeper_wakes_.NotifyOne();
}

void PosixKeeper::RemoveLater(BlobLabel label) {
  const MutexLock lock(&mutex_);
  if (removals_.size() < kMostRemovals) removals_.push_back(std::move(label));
}

void PosixKeeper::NoteRead(uint32_t grant) {
  const MutexLock lock(&mutex_);
  if (reads_.size() < kMostReads) reads_.insert(grant);
}

void PosixKeeper::WakeWriters() {
  const MutexLock lock(&mutex_);
  writers_wake_.NotifyAll();
}

Status PosixKeeper::readable() const {
  const MutexLock lock(&mutex_);
  return readable_;
}

Status PosixKeeper::writable() const {
  const MutexLock lock(&mutex_);
  return writable_;
}

bool PosixKeeper::direct() const {
  const MutexLock lock(&mutex_);
  return direct_;
}

uint64_t PosixKeeper::used_bytes() const {
  const MutexLock lock(&mutex_);
  return used_bytes_;
}

int64_t PosixKeeper::clock_ahead_seconds() const {
  const MutexLock lock(&mutex_);
  return clock_ahead_seconds_;
}

std::vector<std::pair<std::string, uint64_t>> PosixKeeper::Counters() const {
  const MutexLock lock(&mutex_);
  return {{"grants_taken", counts_.taken},
          {"grants_adopted", counts_.adopted},
          {"grants_reclaimed", counts_.reclaimed},
          {"blobs_reclaimed", counts_.blobs_reclaimed},
          {"files_spared", counts_.files_spared},
          {"leftovers_removed", counts_.leftovers_removed},
          {"dead_processes", counts_.dead_processes},
          {"beats", beats_}};
}

// --- The thread ----------------------------------------------------------------------------------

void PosixKeeper::Loop() {
  NameThisThread("aq-posix-keep");
  Beat();
  on_first_look_();
  while (true) {
    Wish wish = WaitForWish();
    const bool closing = wish.closing;
    Turn(std::move(wish));
    if (closing) break;
  }
  Close();
}

PosixKeeper::Wish PosixKeeper::WaitForWish() {
  const MutexLock lock(&mutex_);
  const auto has_ended = [](const GrantUse& use) { return use->writers == 0; };
  while (!closing_ && wanted_bytes_ == 0 &&
         std::none_of(ending_.begin(), ending_.end(), has_ended)) {
    const int64_t now = options_.clock->NowNanos();
    if (now >= next_beat_nanos_) break;
    const int64_t wait = next_beat_nanos_ - now;
    keeper_wakes_.WaitFor(&mutex_, removals_.empty() ? wait : std::min(wait, kSoonNanos));
    if (!removals_.empty()) break;
  }
  Wish wish{.bytes = wanted_bytes_, .closing = closing_};
  for (const GrantUse& use : ending_) {
    if (has_ended(use)) wish.ended.push_back(use);
  }
  std::erase_if(ending_, has_ended);
  wish.removals.swap(removals_);
  return wish;
}

void PosixKeeper::Turn(Wish wish) {
  if (options_.clock->NowNanos() >= next_beat_nanos_) Beat();
  if (!member_.joined()) {
    TakeGrant(0);
    return;
  }
  GiveUpEnded(wish.ended);
  RemoveNow(std::move(wish.removals));
  if (wish.bytes > 0) {
    TakeGrant(wish.bytes);
    // While that one is written to, room is made for the next. Others may be at it already.
    [[maybe_unused]] const Status ahead = grants_->MakeRoom();
  }
  if (options_.clock->NowNanos() >= next_cleaning_nanos_ && !wish.closing) {
    next_cleaning_nanos_ = options_.clock->NowNanos() + kBeatsPerCleaning * options_.beat_nanos;
    std::set<uint32_t> reads;
    {
      const MutexLock lock(&mutex_);
      reads.swap(reads_);
    }
    grants_->CleanUp();
    grants_->MarkUsed(reads);
    GiveUpWhenIdle();
  }
  Publish();
}

// Once in a while, and at the start: whether all is still as it was.
void PosixKeeper::Beat() {
  next_beat_nanos_ = options_.clock->NowNanos() + options_.beat_nanos;
  {
    const MutexLock lock(&mutex_);
    ++beats_;
  }
  // What fails may be a moment's failure; others wait longer before they give us up.
  const Status beat = member_.joined() ? member_.Beat() : Status();
  if (member_.joined()) return Show(Status(), beat);
  {
    // The grant was another life's: others have it, or nobody does.
    const MutexLock lock(&mutex_);
    EndCurrent(/*full=*/true);
  }
  const Status opened = directory_.Open();
  if (!opened.ok()) return Show(opened, opened);
  if (!std::exchange(told_there_, true) && options_.on_there) options_.on_there();
  const Status joined = Join();
  {
    const MutexLock lock(&mutex_);
    direct_ = directory_.TakesDirect();
  }
  Show(Status(), joined);
}

Status PosixKeeper::Join() {
  const uint64_t most = PosixGrants::MostGrants(options_.capacity_bytes, directory_.grant_bytes());
  if (most < 2) {
    return Unusable(options_.directory,
                    fmt::format("was made with grants of {} bytes, of which a capacity of {} bytes "
                                "has no two",
                                directory_.grant_bytes(), options_.capacity_bytes),
                    "raise the capacity");
  }
  AQ_RETURN_IF_ERROR(member_.Join());
  {
    const MutexLock lock(&mutex_);
    largest_bytes_ = directory_.grant_bytes() - kPosixGrantOverheadBytes;
  }
  grants_ = std::make_unique<PosixGrants>(
      PosixGrants::Options{.root = options_.directory,
                           .capacity_bytes = options_.capacity_bytes,
                           .grant_bytes = directory_.grant_bytes(),
                           .member = &member_,
                           .counts = grants_ == nullptr ? PosixGrants::Counts{} : grants_->counts(),
                           .reuse_files = options_.reuse_files && !options_.sync &&
                                          member_.locked() && IsOnThisHost(options_.directory),
                           .meanwhile = [this] {
                             if (options_.clock->NowNanos() < next_beat_nanos_) return;
                             next_beat_nanos_ = options_.clock->NowNanos() + options_.beat_nanos;
                             [[maybe_unused]] const Status beat = member_.Beat();
                           }});
  return Status();
}

void PosixKeeper::TakeGrant(uint64_t bytes) {
  Result<PosixGrant> grant = Status(Code::kUnavailable);
  for (int attempt = 0; attempt < 2 && member_.joined(); ++attempt) {
    grant = grants_->Take(bytes);
    if (grant.ok() || grant.status().code() != Code::kNotFound) break;
    // The directory is gone, or others have given us up: then we join them again.
    grant = Status(Code::kUnavailable, fmt::format("{} is gone", options_.directory));
    Beat();
  }
  const MutexLock lock(&mutex_);
  wanted_bytes_ = 0;
  if (grant.ok()) {
    EndCurrent(/*full=*/true);
    current_ = std::make_shared<OpenGrant>();
    current_->grant = *std::move(grant);
  } else {
    refusal_ = writable_.ok() ? grant.status() : writable_;
    ++refusals_;
  }
  writers_wake_.NotifyAll();
}

void PosixKeeper::GiveUpEnded(const std::vector<GrantUse>& ended) {
  for (const GrantUse& use : ended) {
    PosixGrant grant;
    {
      const MutexLock lock(&mutex_);
      grant = use->grant;
    }
    grants_->GiveUp(grant, use->full);
  }
}

void PosixKeeper::RemoveNow(std::vector<BlobLabel> removals) {
  for (BlobLabel& label : removals) {
    const std::string file = FindDataFile(paths_, label);
    if (!file.empty() && !RetireDataFile(paths_, file, &label)) RemoveLater(std::move(label));
  }
}

// So that those who find no grant get one, however few there are.
void PosixKeeper::GiveUpWhenIdle() {
  if (!grants_->starved()) return;
  const MutexLock lock(&mutex_);
  const int64_t idle = options_.clock->NowNanos() - last_write_nanos_;
  if (idle >= options_.beat_nanos) EndCurrent(/*full=*/false);
}

void PosixKeeper::Publish() {
  const MutexLock lock(&mutex_);
  counts_ = grants_->counts();
  used_bytes_ = kPosixFixedBytes + grants_->grants_there() * directory_.grant_bytes();
  if (current_ != nullptr) used_bytes_ -= current_->grant.left_bytes;
}

void PosixKeeper::Show(Status readable, Status writable) {
  const MutexLock lock(&mutex_);
  readable_ = std::move(readable);
  writable_ = std::move(writable);
  clock_ahead_seconds_ = member_.clock_ahead_seconds();
  writers_wake_.NotifyAll();
}

void PosixKeeper::Close() {
  std::vector<GrantUse> left;
  {
    const MutexLock lock(&mutex_);
    EndCurrent(/*full=*/false);
    left.swap(ending_);
  }
  if (!member_.joined()) return;
  GiveUpEnded(left);
  member_.Leave();
}

}  // namespace aquifer
