#include "testing/memory_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Whether each of `sectors` sectors of a torn write is on the medium: all, none, or any mixture.
std::vector<bool> TornSectors(size_t sectors, SeededRandom* random) {
  switch (random->Below(3)) {
    case 0:
      return std::vector<bool>(sectors, false);
    case 1:
      return std::vector<bool>(sectors, true);
    default: {
      std::vector<bool> written(sectors);
      for (size_t i = 0; i < sectors; ++i) written[i] = random->Below(2) == 1;
      return written;
    }
  }
}

}  // namespace

uint64_t MemoryMedia::Size(uint32_t file) const {
  const auto found = files_.find(file);
  return found == files_.end() ? 0 : found->second.bytes;
}

std::vector<DiskFile> MemoryMedia::List() const {
  std::vector<DiskFile> list;
  list.reserve(files_.size());
  for (const auto& [number, file] : files_) list.push_back({number, file.bytes});
  return list;
}

uint64_t MemoryMedia::resident_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, file] : files_) {
    bytes += file.chunks.size() * kChunkBytes;
    for (const Undo& undo : file.unsynced) bytes += undo.old_bytes.size();
  }
  return bytes;
}

Status MemoryMedia::Create(uint32_t file, uint64_t bytes) {
  const uint64_t others = used_bytes() - Size(file);
  if (bytes > Size(file) && (bytes > capacity_bytes_ || others > capacity_bytes_ - bytes)) {
    return Status(Code::kNoSpace, fmt::format("{} bytes do not fit", bytes));
  }
  Resize(&files_[file], bytes);
  return Status();
}

void MemoryMedia::Remove(uint32_t file) {
  used_bytes_ -= Size(file);
  files_.erase(file);
}

Status MemoryMedia::Read(uint32_t file, uint64_t offset, std::span<std::byte> target) const {
  const auto found = files_.find(file);
  if (found == files_.end() || offset > found->second.bytes ||
      target.size() > found->second.bytes - offset) {
    return Status(Code::kNotFound);
  }
  Load(found->second, offset, target);
  return Status();
}

Status MemoryMedia::Write(uint32_t file, uint64_t offset, std::span<const std::byte> source) {
  const auto found = files_.find(file);
  if (found == files_.end()) return Status(Code::kNotFound, fmt::format("no file {}", file));
  File& target = found->second;
  if (offset > target.bytes || source.size() > target.bytes - offset) {
    return Status(Code::kInvalid, fmt::format("a write past the end of file {}", file));
  }
  const uint64_t used = used_bytes();
  if (copy_on_write_ && (used > capacity_bytes_ || source.size() > capacity_bytes_ - used)) {
    return Status(Code::kNoSpace, "no space for the copy of a write");
  }
  if (reorder_until_sync_) {
    Undo undo{.offset = offset, .length = source.size(), .old_bytes = {}};
    undo.old_bytes.resize(source.size());
    Load(target, offset, undo.old_bytes);
    if (AllZero(undo.old_bytes)) undo.old_bytes = {};
    target.unsynced.push_back(std::move(undo));
  }
  Store(&target, offset, source);
  return Status();
}

void MemoryMedia::Sync(uint32_t file) {
  const auto found = files_.find(file);
  if (found != files_.end()) found->second.unsynced.clear();
}

void MemoryMedia::LoseUnsynced(SeededRandom* random) {
  const std::vector<std::byte> zeros(kSectorBytes);
  for (auto& [number, file] : files_) {
    // Newest first. A sector may so end up as it was before any number of the last writes to it,
    // which is what a drive that reorders can leave.
    for (auto undo = file.unsynced.rbegin(); undo != file.unsynced.rend(); ++undo) {
      const std::vector<bool> kept = TornSectors(undo->length / kSectorBytes, random);
      for (size_t i = 0; i < kept.size(); ++i) {
        const uint64_t offset = undo->offset + i * kSectorBytes;
        if (kept[i] || offset + kSectorBytes > file.bytes) continue;
        Store(&file, offset,
              undo->old_bytes.empty()
                  ? std::span(zeros)
                  : std::span(undo->old_bytes).subspan(i * kSectorBytes, kSectorBytes));
      }
    }
    file.unsynced.clear();
  }
}

void MemoryMedia::WriteTorn(uint32_t file, uint64_t offset, std::span<const std::byte> source,
                            SeededRandom* random) {
  const std::vector<bool> written = TornSectors(source.size() / kSectorBytes, random);
  const bool copy_on_write = std::exchange(copy_on_write_, false);
  for (size_t i = 0; i < written.size(); ++i) {
    if (!written[i]) continue;
    // Sectors beyond the file are no concern of a torn write.
    (void)Write(file, offset + i * kSectorBytes, source.subspan(i * kSectorBytes, kSectorBytes));
  }
  copy_on_write_ = copy_on_write;
}

std::vector<std::byte> MemoryMedia::Bytes(uint32_t file, uint64_t offset, size_t length) const {
  std::vector<std::byte> bytes(length);
  AQ_CHECK(Read(file, offset, bytes).ok());
  return bytes;
}

void MemoryMedia::SetBytes(uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
  Store(Find(file, offset, bytes.size()), offset, bytes);
}

void MemoryMedia::FlipBit(uint32_t file, uint64_t offset, int bit) {
  std::vector<std::byte> byte = Bytes(file, offset, 1);
  byte[0] ^= std::byte{1} << bit;
  SetBytes(file, offset, byte);
}

void MemoryMedia::Truncate(uint32_t file, uint64_t bytes) { Resize(Find(file, 0, 0), bytes); }

void MemoryMedia::SwapRanges(uint32_t file_a, uint64_t offset_a, uint32_t file_b, uint64_t offset_b,
                             size_t length) {
  const std::vector<std::byte> a = Bytes(file_a, offset_a, length);
  const std::vector<std::byte> b = Bytes(file_b, offset_b, length);
  SetBytes(file_a, offset_a, b);
  SetBytes(file_b, offset_b, a);
}

void MemoryMedia::Load(const File& file, uint64_t offset, std::span<std::byte> target) {
  while (!target.empty()) {
    const size_t begin = offset % kChunkBytes;
    const size_t length = std::min(target.size(), kChunkBytes - begin);
    const auto chunk = file.chunks.find(offset / kChunkBytes);
    if (chunk == file.chunks.end()) {
      std::memset(target.data(), 0, length);
    } else {
      std::memcpy(target.data(), chunk->second->data() + begin, length);
    }
    offset += length;
    target = target.subspan(length);
  }
}

void MemoryMedia::Store(File* file, uint64_t offset, std::span<const std::byte> source) {
  while (!source.empty()) {
    const size_t begin = offset % kChunkBytes;
    const size_t length = std::min(source.size(), kChunkBytes - begin);
    const uint64_t index = offset / kChunkBytes;
    if (file->chunks.contains(index) || !AllZero(source.first(length))) {
      std::shared_ptr<Chunk>& chunk = file->chunks[index];
      if (chunk == nullptr) {
        chunk = std::make_shared<Chunk>();
      } else if (chunk.use_count() > 1) {
        chunk = std::make_shared<Chunk>(*chunk);  // A clone has it too.
      }
      std::memcpy(chunk->data() + begin, source.data(), length);
    }
    offset += length;
    source = source.subspan(length);
  }
}

void MemoryMedia::Resize(File* file, uint64_t bytes) {
  if (bytes < file->bytes) {
    // The part that is cut off reads as zero if the file grows again.
    const uint64_t first_gone = (bytes + kChunkBytes - 1) / kChunkBytes;
    file->chunks.erase(file->chunks.lower_bound(first_gone), file->chunks.end());
    if (bytes % kChunkBytes != 0) {
      Store(file, bytes, std::vector<std::byte>(kChunkBytes - bytes % kChunkBytes));
    }
  }
  used_bytes_ = used_bytes_ - file->bytes + bytes;
  file->bytes = bytes;
}

MemoryMedia::File* MemoryMedia::Find(uint32_t file, uint64_t offset, size_t length) {
  const auto found = files_.find(file);
  AQ_CHECK(found != files_.end());
  AQ_CHECK(offset <= found->second.bytes && length <= found->second.bytes - offset);
  return &found->second;
}

// Everything below is under `mutex`, except that on_done runs outside of it.
struct MemoryDisk::State : std::enable_shared_from_this<MemoryDisk::State> {
  struct Pending {
    IoGroup* group = nullptr;
    std::vector<size_t> order;  // In which its requests take effect.
    size_t done = 0;            // How many of `order` have.
    size_t admitted = 0;        // Requests that count against max_queued.
  };

  State(std::shared_ptr<MemoryMedia> m, const MemoryDiskOptions& o, Executor* e, const Clock* c)
      : media(std::move(m)), options(o), executor(e), clock(c) {}

  void Run(uint64_t id);
  bool Advance(Pending* pending);
  Status Apply(IoRequest* request);
  Status InjectedFault(const IoRequest& request);
  void PostGroup(uint64_t id, uint64_t bytes);
  void ApplyTorn(const IoRequest& request, SeededRandom* random);

  const std::shared_ptr<MemoryMedia> media;
  const MemoryDiskOptions options;
  Executor* const executor;
  const Clock* const clock;

  mutable std::mutex mutex;
  std::map<uint64_t, Pending> pending;  // By number, in the order submitted.
  std::set<uint64_t> held;              // Their turn came while the disk hung or had stopped.
  uint64_t next_id = 0;
  uint64_t queued = 0;
  int64_t busy_until_nanos = 0;  // When the medium has moved all that was submitted.
  DiskStats stats;

  bool dead = false;
  bool hung = false;
  bool read_only = false;
  uint64_t stop_after = std::numeric_limits<uint64_t>::max();
  std::map<IoKind, std::pair<uint64_t, Code>> fail_next;
  std::map<IoKind, Code> fail_all;
  std::function<Status(const IoRequest&)> fault;
};

void MemoryDisk::State::PostGroup(uint64_t id, uint64_t bytes) {
  const auto run = [self = shared_from_this(), id] { self->Run(id); };
  if (options.latency_nanos == 0 && options.jitter_nanos == 0 && options.bytes_per_second == 0) {
    executor->Post(run);
    return;
  }
  int64_t at = clock->NowNanos();
  if (options.bytes_per_second != 0) {
    const double seconds =
        static_cast<double>(bytes) / static_cast<double>(options.bytes_per_second);
    busy_until_nanos = std::max(busy_until_nanos, at) + static_cast<int64_t>(seconds * 1e9);
    at = busy_until_nanos;
  }
  at += options.latency_nanos;
  if (options.jitter_nanos != 0) {
    at += static_cast<int64_t>(
        options.random->Below(static_cast<uint64_t>(options.jitter_nanos) + 1));
  }
  executor->PostAt(at, run);
}

void MemoryDisk::State::Run(uint64_t id) {
  IoGroup* group = nullptr;
  {
    const std::lock_guard lock(mutex);
    const auto found = pending.find(id);
    if (dead || found == pending.end()) return;
    if (!Advance(&found->second)) {
      held.insert(id);
      return;
    }
    group = found->second.group;
    queued -= found->second.admitted;
    pending.erase(found);
  }
  group->on_done(*group);
}

// Lets the requests of a group take effect; false if a fault holds it up.
bool MemoryDisk::State::Advance(Pending* group) {
  for (; group->done < group->order.size(); ++group->done) {
    if (hung || stats.requests >= stop_after) return false;
    IoRequest& request = group->group->requests[group->order[group->done]];
    request.status = Apply(&request);
    ++stats.requests;
    if (!request.status.ok()) continue;
    if (request.kind == IoKind::kRead) stats.bytes_read += request.data.size();
    if (request.kind == IoKind::kWrite) stats.bytes_written += request.data.size();
  }
  return true;
}

Status MemoryDisk::State::InjectedFault(const IoRequest& request) {
  if (read_only && request.kind != IoKind::kRead && request.kind != IoKind::kSync) {
    return Status(Code::kUnavailable, "the disk is read-only");
  }
  if (const auto next = fail_next.find(request.kind);
      next != fail_next.end() && next->second.first > 0) {
    --next->second.first;
    return Status(next->second.second, "injected");
  }
  if (const auto all = fail_all.find(request.kind);
      all != fail_all.end() && all->second != Code::kOk) {
    return Status(all->second, "injected");
  }
  return fault ? fault(request) : Status();
}

Status MemoryDisk::State::Apply(IoRequest* request) {
  if (Status status = InjectedFault(*request); !status.ok()) {
    if (options.tear_failed_writes && request->kind == IoKind::kWrite) {
      media->WriteTorn(request->file, request->offset, request->data, options.random);
    }
    return status;
  }
  switch (request->kind) {
    case IoKind::kRead:
      return media->Read(request->file, request->offset, request->data);
    case IoKind::kWrite:
      return media->Write(request->file, request->offset, request->data);
    case IoKind::kSync:
      if (!media->Exists(request->file)) return Status(Code::kNotFound);
      media->Sync(request->file);
      return Status();
    case IoKind::kCreate:
      return media->Create(request->file, request->length);
    case IoKind::kRemove:
      media->Remove(request->file);
      return Status();
  }
  return Status(Code::kInvalid);
}

void MemoryDisk::State::ApplyTorn(const IoRequest& request, SeededRandom* random) {
  switch (request.kind) {
    case IoKind::kWrite:
      media->WriteTorn(request.file, request.offset, request.data, random);
      break;
    case IoKind::kCreate:
      // A file that was half made: shorter than it should be.
      if (random->Below(3) != 0) {
        const uint64_t pages = request.length / kPageBytes;
        const uint64_t kept = random->Below(2) == 0 ? pages : random->Below(pages + 1);
        (void)media->Create(request.file, kept * kPageBytes);
      }
      break;
    case IoKind::kRemove:
      if (random->Below(2) == 0) media->Remove(request.file);
      break;
    case IoKind::kRead:
    case IoKind::kSync:
      break;
  }
}

MemoryDisk::MemoryDisk(std::shared_ptr<MemoryMedia> media, const MemoryDiskOptions& options,
                       Executor* executor, const Clock* clock)
    : state_(std::make_shared<State>(std::move(media), options, executor, clock)) {
  const bool timed =
      options.latency_nanos != 0 || options.jitter_nanos != 0 || options.bytes_per_second != 0;
  AQ_CHECK(clock != nullptr || !timed);
  const bool random = options.shuffle || options.tear_failed_writes || options.jitter_nanos != 0;
  AQ_CHECK(options.random != nullptr || !random);
}

MemoryDisk::~MemoryDisk() {
  const std::lock_guard lock(state_->mutex);
  if (state_->dead) return;
  for (auto& [id, pending] : state_->pending) {
    if (state_->Advance(&pending)) {
      state_->executor->Post([group = pending.group] { group->on_done(*group); });
    }
  }
  state_->dead = true;
}

void MemoryDisk::Submit(IoGroup* group) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.dead) return;
  State::Pending pending{.group = group, .order = {}, .done = 0, .admitted = 0};
  uint64_t bytes = 0;
  const bool busy = state.queued + group->requests.size() > state.options.max_queued;
  for (size_t i = 0; i < group->requests.size(); ++i) {
    IoRequest& request = group->requests[i];
    request.status = busy ? Status(Code::kBusy) : CheckRequest(request);
    if (!request.status.ok()) continue;
    pending.order.push_back(i);
    bytes += request.data.size();
  }
  if (state.options.shuffle) {
    for (size_t i = pending.order.size(); i > 1; --i) {
      std::swap(pending.order[i - 1], pending.order[state.options.random->Below(i)]);
    }
  }
  pending.admitted = pending.order.size();
  state.queued += pending.admitted;
  const uint64_t id = state.next_id++;
  state.pending.emplace(id, std::move(pending));
  state.PostGroup(id, bytes);
}

Result<std::vector<DiskFile>> MemoryDisk::List() {
  const std::lock_guard lock(state_->mutex);
  if (state_->dead) return Status(Code::kUnavailable, "the disk has crashed");
  return state_->media->List();
}

std::string MemoryDisk::Describe() const { return state_->options.name + " (memory)"; }

DiskStats MemoryDisk::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void MemoryDisk::FailNext(IoKind kind, uint64_t count, Code code) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_next[kind] = {count, code};
}

void MemoryDisk::FailAll(IoKind kind, Code code) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_all[kind] = code;
}

void MemoryDisk::SetFault(std::function<Status(const IoRequest&)> fault) {
  const std::lock_guard lock(state_->mutex);
  state_->fault = std::move(fault);
}

void MemoryDisk::Hang(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->hung = on;
  if (on) return;
  for (const uint64_t id : std::exchange(state_->held, {})) {
    state_->executor->Post([state = state_, id] { state->Run(id); });
  }
}

void MemoryDisk::HangNoMore() {
  const std::lock_guard lock(state_->mutex);
  state_->hung = false;
}

void MemoryDisk::SetReadOnly(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->read_only = on;
}

void MemoryDisk::StopAfter(uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  state_->stop_after = count;
}

uint64_t MemoryDisk::requests_done() const { return stats().requests; }

uint64_t MemoryDisk::requests_pending() const {
  const std::lock_guard lock(state_->mutex);
  uint64_t requests = 0;
  for (const auto& [id, pending] : state_->pending) {
    requests += pending.order.size() - pending.done;
  }
  return requests;
}

bool MemoryDisk::Uses(IoKind kind, std::span<const std::byte> memory) const {
  const std::lock_guard lock(state_->mutex);
  const auto uses = [&](const IoRequest& request) {
    return request.kind == kind && request.data.data() < memory.data() + memory.size() &&
           memory.data() < request.data.data() + request.data.size();
  };
  for (const auto& [id, pending] : state_->pending) {
    for (size_t i = pending.done; i < pending.order.size(); ++i) {
      if (uses(pending.group->requests[pending.order[i]])) return true;
    }
  }
  return false;
}

std::vector<IoGroup*> MemoryDisk::Crash(SeededRandom* random) {
  const std::lock_guard lock(state_->mutex);
  std::vector<IoGroup*> groups;
  if (std::exchange(state_->dead, true)) return groups;
  for (const auto& [id, pending] : state_->pending) {
    groups.push_back(pending.group);
    for (size_t i = pending.done; i < pending.order.size(); ++i) {
      state_->ApplyTorn(pending.group->requests[pending.order[i]], random);
    }
  }
  state_->pending.clear();
  return groups;
}

std::vector<IoGroup*> MemoryDisk::PowerLoss(SeededRandom* random) {
  std::vector<IoGroup*> groups = Crash(random);
  const std::lock_guard lock(state_->mutex);
  state_->media->LoseUnsynced(random);
  return groups;
}

}  // namespace aquifer
