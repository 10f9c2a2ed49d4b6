// What a durable tier does beside blocks: notes, the sweep of what has expired, and erasing all
// that a tenant has.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "aquifer/checksum.h"
#include "io/disk/disk.h"
#include "tier/durable/durable_tier_impl.h"

namespace aquifer {
namespace {

constexpr size_t kMaxNoteNameBytes = 512;
constexpr size_t kMaxNoteBytes = size_t{64} << 10;
constexpr int64_t kChoreDeadlineNanos = 30'000'000'000;
constexpr int64_t kSecondNanos = 1'000'000'000;
// Nodes' clocks differ, and a block may be about to be renewed: what has expired stays a while.
constexpr int64_t kSweepGraceSeconds = 60;
constexpr size_t kListedAtOnce = 256;
constexpr size_t kErasedAtOnce = 32;
constexpr int64_t kEraseAgainNanos = 10'000'000;
constexpr int64_t kEraseWaitNanos = 20'000'000'000;  // For what was being written before.
// How often it is asked which tenants were deleted. What they had is swept twice: a node that has
// not heard of it may write for a minute yet.
constexpr int64_t kSweepDeletedNanos = 2 * kSecondNanos;
constexpr int64_t kSweepAgainNanos = 120 * kSecondNanos;
constexpr int kDeletedSweeps = 2;
// How soon one is tried again that cannot be removed; then twice as late each time.
constexpr int64_t kFirstSweepPauseNanos = 4 * kSecondNanos;
constexpr int64_t kMostSweepPauseNanos = 300 * kSecondNanos;

}  // namespace

// ---- Notes ----

// A note is stored as a block is, with one byte in front, since a block cannot be empty.
struct DurableTierImpl::Note {
  BlockId id;
  SharedDataKey key;
  ScratchPool::Buffer memory;  // The value, in whole pages, as it lies at the store when read.
  std::shared_ptr<PackedBlock> packed;
  std::shared_ptr<UnpackJob> opened;
  std::function<void(Status)> put;
  std::function<void(Result<std::vector<std::byte>>)> got;
};

// Its key, its place in the queue and its name, or why it cannot be.
Result<std::shared_ptr<DurableTierImpl::Note>> DurableTierImpl::NewNote(const TenantId& tenant,
                                                                        const std::string& name,
                                                                        SharedDataKey key) {
  if (!in_service_) return why_;
  if (packer_->seals() && key == nullptr) return WithoutKey(tenant);
  auto note = std::make_shared<Note>();
  note->key = std::move(key);
  if (!ledger_.TakePlace(options_.max_queued_ops)) return Status(Code::kBusy);
  note->id = NoteIdOf(tenant, note->key.get(), name);
  return note;
}

void DurableTierImpl::PutNote(const TenantId& tenant, std::string name,
                              std::vector<std::byte> value, int64_t expiry_unix_seconds,
                              std::function<void(Status)> on_done) {
  const bool fits = name.size() <= kMaxNoteNameBytes && value.size() <= kMaxNoteBytes;
  Result<std::shared_ptr<Note>> made =
      fits ? NewNote(tenant, name, packer_->KeyOf(tenant))
           : Status(Code::kInvalid, "a note's name has 512 bytes at most, its value 64 KiB");
  if (!made.ok()) {
    executor_->Post([on_done = std::move(on_done), why = made.status()] { on_done(why); });
    return;
  }
  const std::shared_ptr<Note> note = *std::move(made);
  note->put = std::move(on_done);
  note->memory = pages_.Take(RoundUpToPage(value.size() + 1));
  std::byte* const at = note->memory.bytes().data();
  at[0] = std::byte{1};
  std::ranges::copy(value, at + 1);
  note->packed = std::make_shared<PackedBlock>();
  PackJob& job = note->packed->job;
  job.source = note->memory.bytes().first(RoundUpToPage(value.size() + 1));
  job.meta.id = note->id;
  job.meta.raw_bytes = job.meta.stored_bytes = value.size() + 1;
  job.meta.checksum = ChecksumOf(job.source.first(value.size() + 1));
  job.meta.expiry_unix_seconds = expiry_unix_seconds;
  job.key = note->key;
  if (note->key != nullptr) {
    note->packed->scratch = pages_.Take(job.source.size());
    job.scratch = note->packed->scratch.bytes();
  }
  RunOnWorker([note, packer = packer_] { packer->Pack(&note->packed->job); },
              [this, note] { WriteNote(note); });
}

void DurableTierImpl::WriteNote(const std::shared_ptr<Note>& note) {
  const PackJob& job = note->packed->job;
  if (!job.status.ok()) {
    ledger_.GivePlaceBack();
    return note->put(job.status);
  }
  const std::shared_ptr<Trip> trip =
      NewWriteTrip(note->packed, NoteBlobNameOf(note->id, note->key.get()),
                   clock_->NowNanos() + kChoreDeadlineNanos);
  Submit(trip, [this, note](Trip& done) {
    ledger_.GivePlaceBack();
    note->put(done.request.status);
  });
}

void DurableTierImpl::GetNote(const TenantId& tenant, std::string name,
                              std::function<void(Result<std::vector<std::byte>>)> on_done) {
  Result<std::shared_ptr<Note>> made =
      name.size() <= kMaxNoteNameBytes
          ? NewNote(tenant, name, packer_->seals() ? packer_->keys()->Known(tenant) : nullptr)
          : Status(Code::kInvalid, "a note's name has 512 bytes at most");
  if (!made.ok()) {
    executor_->Post([on_done = std::move(on_done), why = made.status()] { on_done(why); });
    return;
  }
  const std::shared_ptr<Note> note = *std::move(made);
  note->got = std::move(on_done);
  note->memory = pages_.Take(RoundUpToPage(kMaxNoteBytes + 1));
  const std::shared_ptr<Trip> trip =
      NewTrip(BlobKind::kRead, NoteBlobNameOf(note->id, note->key.get()),
              clock_->NowNanos() + kChoreDeadlineNanos);
  trip->request.body = note->memory.bytes().first(RoundUpToPage(kMaxNoteBytes + 1));
  Submit(trip, [this, note](Trip& done) { OpenNote(note, done); });
}

void DurableTierImpl::OpenNote(const std::shared_ptr<Note>& note, const Trip& trip) {
  ledger_.GivePlaceBack();
  if (!trip.request.status.ok()) return note->got(trip.request.status);
  const Result<BlockMeta> meta = CheckHead(trip, note->id, note->key.get());
  if (!meta.ok()) return note->got(meta.status());
  if (meta->raw_bytes > kMaxNoteBytes + 1) return note->got(Status(Code::kCorrupt));
  note->opened = std::make_shared<UnpackJob>();
  note->opened->meta = *meta;
  note->opened->target = trip.request.body;
  note->opened->key = note->key;
  RunOnWorker([note, packer = packer_] { packer->Unpack(note->opened.get()); },
              [this, note] {
                const UnpackJob& job = *note->opened;
                if (job.refused_seal) ++counters_.refused_seals;
                if (!job.status.ok()) return note->got(job.status);
                const auto value = job.target.first(job.meta.raw_bytes).subspan(1);
                note->got(std::vector<std::byte>(value.begin(), value.end()));
              });
}

// ---- The sweep ----
//
// By the store's clock too, if that is behind ours: what has expired for this host alone, whose
// clock is wrong, is everybody else's.
//
// A page of names at a time, each looked at and, if what is there has expired, removed; a second
// for each handful. What it cannot read it leaves alone: it may not be ours.

void DurableTierImpl::ScheduleSweep(int64_t after_nanos) {
  PostAt(clock_->NowNanos() + after_nanos, [this] { SweepSome(); });
}

void DurableTierImpl::SweepSome() {
  if (in_service_ && sweep_requests_ == 0) {
    for (uint32_t i = 0; i < options_.sweep_looks_per_second && !to_sweep_.empty(); ++i) {
      const std::string blob = std::move(to_sweep_.front());
      to_sweep_.pop_front();
      if (IsOrphan(blob)) {
        RemoveForSweep(blob, "");
      } else {
        LookForSweep(blob);
      }
    }
    if (to_sweep_.empty()) {
      if (listed_all_ && sweep_requests_ == 0) return EndSweep();
      if (!listed_all_) ListForSweep();
    }
  }
  ScheduleSweep(kSecondNanos);
}

void DurableTierImpl::ListForSweep() {
  if (std::exchange(listing_, true)) return;
  store_->List("", swept_to_, kListedAtOnce,
               [this, executor = executor_,
                alive = std::weak_ptr<bool>(alive_)](Result<BlobStore::Names> names) {
                 executor->Post([this, alive, names = std::move(names)] {
                   if (alive.expired()) return;
                   listing_ = false;
                   if (!names.ok()) return;  // It is tried again in a second.
                   listed_all_ = names->empty();
                   for (const BlobName& name : *names) to_sweep_.push_back(name.name);
                   if (!names->empty()) swept_to_ = names->back().name;
                 });
               });
}

// What a tenant that was deleted has left, because the store was out of reach then: nobody can read
// it, and it may have no expiry.
bool DurableTierImpl::IsOrphan(const std::string& blob) const {
  if (!packer_->seals()) return false;
  const std::optional<DataKeyId> key = KeyIdOf(blob);
  return key.has_value() && packer_->keys()->IsDestroyed(*key);
}

void DurableTierImpl::LookForSweep(const std::string& blob) {
  ++sweep_requests_;
  const int64_t deadline = clock_->NowNanos() + kChoreDeadlineNanos;
  Submit(NewTrip(BlobKind::kLook, blob, deadline), [this](Trip& looked) {
    const Result<BlockMeta> meta = looked.request.status.ok()
                                       ? DecodeHead(looked.request.head.first<kBlobHeadBytes>())
                                       : looked.request.status;
    const int64_t now = clock_->UnixSeconds() + std::min<int64_t>(0, store_->ClockAheadSeconds());
    const bool expired = meta.ok() && meta->expiry_unix_seconds != 0 &&
                         meta->expiry_unix_seconds + kSweepGraceSeconds <= now;
    --sweep_requests_;
    // Another node may have renewed it since.
    if (expired) RemoveForSweep(looked.request.name, looked.request.version);
  });
}

// `version`: only that one; empty: whatever is there.
void DurableTierImpl::RemoveForSweep(const std::string& blob, const std::string& version) {
  ++sweep_requests_;
  const std::shared_ptr<Trip> removal =
      NewTrip(BlobKind::kRemove, blob, clock_->NowNanos() + kChoreDeadlineNanos);
  removal->request.version = version;
  Submit(removal, [this](Trip& removed) {
    --sweep_requests_;
    if (removed.request.status.ok()) ++counters_.swept_blobs;
  });
}

void DurableTierImpl::EndSweep() {
  ++counters_.sweeps;
  swept_to_.clear();
  listed_all_ = false;
  ScheduleSweep(Jittered(options_.sweep_interval_nanos));
}

// ---- Erasing all of a tenant's ----

struct DurableTierImpl::Erasure {
  TenantId tenant;
  std::optional<std::vector<std::string>> generations;  // That are left to be erased.
  std::function<void(Status)> on_done;
  uint64_t before = 0;  // The number of the first change that it does not wait for.
  int64_t give_up_nanos = 0;
  bool of_deleted = false;          // Nobody asked for it: a tenant was deleted.
  std::vector<std::string> listed;  // Generations whose names are being asked for.
  std::string listed_to;
  std::set<std::string> stuck;  // Of these: something cannot be removed.
  std::deque<std::string> names;
  size_t under_way = 0;
  Status trouble;  // The first with a name.
  bool hangs = false;
};

void DurableTierImpl::EraseAll(const TenantId& tenant, std::function<void(Status)> on_done) {
  auto erasure = std::make_shared<Erasure>();
  erasure->tenant = tenant;
  erasure->on_done = std::move(on_done);
  erasure->before = next_change_;
  erasure->give_up_nanos = clock_->NowNanos() + kEraseWaitNanos;
  Post([this, erasure] { AwaitChanges(erasure); });
}

bool DurableTierImpl::IsChanging(const TenantId& tenant, uint64_t before) const {
  return std::any_of(changes_.begin(), changes_.end(), [&](const auto& line) {
    return line.first.tenant == tenant && line.second.front().number < before;
  });
}

std::optional<std::vector<std::string>> DurableTierImpl::GenerationsOf(
    const TenantId& tenant) const {
  if (!packer_->seals()) return std::vector{GenerationOf(tenant, nullptr)};
  const std::optional<std::vector<DataKeyId>> keys = packer_->keys()->Generations(tenant);
  if (!keys.has_value()) return std::nullopt;
  std::vector<std::string> names;
  for (const DataKeyId& key : *keys) names.push_back(GenerationOf(key));
  return names;
}

// What is being written would be there afterwards. What comes later is not waited for: a tenant
// that goes on storing would never be deleted.
void DurableTierImpl::AwaitChanges(const std::shared_ptr<Erasure>& erasure) {
  if (!in_service_) return erasure->on_done(why_);
  // Once they are known: a key that the tenant is given later has nothing to do with it.
  if (!erasure->generations.has_value()) erasure->generations = GenerationsOf(erasure->tenant);
  erasure->hangs = IsChanging(erasure->tenant, erasure->before);
  const int64_t now = clock_->NowNanos();
  if (now < erasure->give_up_nanos && (erasure->hangs || !erasure->generations.has_value())) {
    return PostAt(now + kEraseAgainNanos, [this, erasure] { AwaitChanges(erasure); });
  }
  if (erasure->generations.has_value()) return ListToErase(erasure);
  erasure->on_done(Status(Code::kUnavailable, "the tenant's data key is not known"));
}

// Once through all names: those that come meanwhile may stay.
void DurableTierImpl::ListToErase(const std::shared_ptr<Erasure>& erasure) {
  if (!in_service_) return erasure->on_done(why_);
  std::vector<std::string>& left = *erasure->generations;
  while (!left.empty() && erasure->listed_to.empty() &&
         erasure->listed.size() < store_->prefixes_at_once()) {
    erasure->listed.push_back(std::move(left.back()));
    left.pop_back();
  }
  if (erasure->listed.empty()) {
    return erasure->on_done(
        erasure->hangs ? Status(Code::kUnavailable, "the store hangs in a write; erase again later")
                       : Status());
  }
  std::vector<std::string> prefixes;
  for (const std::string& generation : erasure->listed) prefixes.push_back(generation + "/");
  store_->ListAny(std::move(prefixes), erasure->listed_to, kListedAtOnce,
                  [this, erasure, executor = executor_,
                   alive = std::weak_ptr<bool>(alive_)](Result<BlobStore::Names> names) {
                    executor->Post([this, erasure, alive, names = std::move(names)] {
                      if (!alive.expired()) OnListedToErase(erasure, names);
                    });
                  });
}

void DurableTierImpl::OnListedToErase(const std::shared_ptr<Erasure>& erasure,
                                      const Result<BlobStore::Names>& names) {
  if (!names.ok()) {
    if (names.status().code() == Code::kUnavailable) DoubtStore();
    if (!erasure->of_deleted) return erasure->on_done(names.status());
    erasure->stuck.insert(erasure->listed.begin(), erasure->listed.end());
    return EndListed(erasure);
  }
  if (names->empty()) return EndListed(erasure);
  erasure->listed_to = names->back().name;
  for (const BlobName& name : *names) erasure->names.push_back(name.name);
  EraseListed(erasure);
}

// Whoever asked for it hears of the first trouble. A sweep leaves that tenant's alone and goes on
// with the others.
void DurableTierImpl::EraseListed(const std::shared_ptr<Erasure>& erasure) {
  const auto goes_on = [&] { return erasure->of_deleted || erasure->trouble.ok(); };
  while (erasure->under_way < kErasedAtOnce && !erasure->names.empty() && goes_on()) {
    const std::string name = std::move(erasure->names.front());
    erasure->names.pop_front();
    const std::string generation = name.substr(0, name.find('/'));
    if (erasure->stuck.contains(generation)) continue;
    ++erasure->under_way;
    const int64_t deadline = clock_->NowNanos() + kChoreDeadlineNanos;
    Submit(NewTrip(BlobKind::kRemove, name, deadline), [this, erasure, generation](Trip& removed) {
      --erasure->under_way;
      const Status& status = removed.request.status;
      const bool gone = status.ok() || status.code() == Code::kNotFound;
      if (status.ok() && erasure->of_deleted) ++counters_.swept_blobs;
      if (!gone && erasure->trouble.ok()) erasure->trouble = status;
      if (!gone) erasure->stuck.insert(generation);
      EraseListed(erasure);
    });
  }
  if (erasure->under_way > 0) return;
  if (!goes_on()) return erasure->on_done(erasure->trouble);
  if (erasure->stuck.size() == erasure->listed.size()) return EndListed(erasure);
  ListToErase(erasure);
}

// On with the other generations.
void DurableTierImpl::EndListed(const std::shared_ptr<Erasure>& erasure) {
  for (const std::string& generation : erasure->listed) {
    if (erasure->stuck.contains(generation)) {
      SweepLater(generation);
    } else if (!erasure->hangs) {
      OnSwept(generation);
    }
  }
  erasure->listed.clear();
  erasure->listed_to.clear();
  erasure->stuck.clear();
  ListToErase(erasure);
}

// ---- What tenants that were deleted have left ----
//
// Their keys are marked as destroyed where keys are kept, so that this outlives processes and
// reaches a store that was away. A store that forgets what has expired by itself knows nothing of
// this.

void DurableTierImpl::SweepDeleted() {
  const int64_t now = clock_->NowNanos();
  for (const DataKeyId& key : packer_->keys()->Destroyed()) remains_.try_emplace(GenerationOf(key));
  std::vector<std::string> due;
  for (const auto& [generation, remains] : remains_) {
    if (remains.times_swept < kDeletedSweeps && remains.due_nanos <= now) due.push_back(generation);
  }
  if (in_service_ && !due.empty() && !std::exchange(sweeping_deleted_, true)) {
    auto erasure = std::make_shared<Erasure>();
    erasure->generations = std::move(due);
    erasure->of_deleted = true;
    erasure->on_done = [this](const Status&) { sweeping_deleted_ = false; };
    ListToErase(erasure);
  }
  PostAt(now + kSweepDeletedNanos, [this] { SweepDeleted(); });
}

// All names that began so are gone. Of a tenant that is only emptied that says nothing.
void DurableTierImpl::OnSwept(const std::string& generation) {
  if (!IsOrphan(generation + "/")) return;
  Remains& remains = remains_[generation];
  ++remains.times_swept;
  remains.due_nanos = clock_->NowNanos() + kSweepAgainNanos;
  remains.pause_nanos = 0;
}

// Some of it cannot be removed now, or perhaps never.
void DurableTierImpl::SweepLater(const std::string& generation) {
  Remains& remains = remains_[generation];
  remains.pause_nanos =
      std::clamp(2 * remains.pause_nanos, kFirstSweepPauseNanos, kMostSweepPauseNanos);
  remains.due_nanos = clock_->NowNanos() + remains.pause_nanos;
}

// The store is back: what could not be removed may have been for that.
void DurableTierImpl::SweepAllSoon() {
  for (auto& [generation, remains] : remains_) {
    if (remains.pause_nanos == 0) continue;
    remains.pause_nanos = remains.due_nanos = 0;
  }
}

size_t DurableTierImpl::unswept_tenants() const {
  if (!packer_->seals()) return 0;
  const std::vector<DataKeyId> destroyed = packer_->keys()->Destroyed();
  return static_cast<size_t>(std::ranges::count_if(destroyed, [this](const DataKeyId& key) {
    const auto found = remains_.find(GenerationOf(key));
    return found == remains_.end() || found->second.times_swept == 0;
  }));
}

}  // namespace aquifer
