// The C ABI's load and store: an engine's pages and the cache's slots, with the copy in between.
// The caller's thread does all of it; blocks move in windows, so that drives read ahead of the
// copy, a GPU copies one window while the next is fetched or reserved, and no request holds more
// slots than it fills.
#include <algorithm>
#include <array>
#include <ctime>
#include <vector>

#include "base/clock.h"
#include "client/c_api/c_api.h"

using aquifer::Cache;
using aquifer::Code;
using aquifer::Guarded;
using aquifer::Status;

namespace {

constexpr int64_t kStoreNanos = 10'000'000'000;
constexpr int64_t kWarmingNanos = 2'000'000;  // Between two looks at memory that is being made.
constexpr size_t kMaxWindow = 64;
constexpr uint64_t kWindowBytes = uint64_t{32} << 20;
constexpr size_t kWindowsAhead = 3;

// Long enough for a drive, short enough for the first block to come soon.
size_t WindowBlocks(const aquifer::EngineMap& map) {
  return std::clamp<uint64_t>(kWindowBytes / map.block_bytes, 1, kMaxWindow);
}

class Deadline {
 public:
  explicit Deadline(int64_t nanos) : end_(aquifer::SystemClock()->NowNanos() + nanos) {}

  // Of what is left; at least one, since a request's 0 stands for its default.
  int64_t Left() const { return std::max<int64_t>(end_ - aquifer::SystemClock()->NowNanos(), 1); }
  bool Passed() const { return aquifer::SystemClock()->NowNanos() >= end_; }

 private:
  const int64_t end_;
};

// Blocks of one sequence, as both directions know them.
struct Sequence {
  std::span<const uint32_t> pages;
  uint64_t first_block = 0;

  aquifer::BlockPlace Place(size_t key) const {
    return {.page_table = pages, .index = first_block + key};
  }
};

// A timeout that no sum with the clock overflows.
int64_t TimeoutOf(int64_t given, int64_t usual) {
  constexpr int64_t kMost = int64_t{1} << 60;
  return given == 0 ? usual : std::clamp<int64_t>(given, 1, kMost);
}

template <class Args>
Status CheckTransfer(const aquifer_cache* cache, const Args& args) {
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(args.map, "args.map"));
  AQ_RETURN_IF_ERROR(aquifer::CheckChain(args.chain));
  return aquifer::CheckArray(args.pages, args.page_count, "args.pages");
}

// Copies the blocks of a window: on the CPU at once, on a GPU while the caller goes on.
class Copier {
 public:
  // `mover` is null where the tensors are in the host's memory.
  Copier(const aquifer_tensor_map& map, aquifer::BlockMover* mover) : map_(map), mover_(mover) {}

  // Windows whose blocks may be on their way at a time.
  size_t most() const { return mover_ == nullptr ? 1 : 2; }

  void Begin(aquifer::MoveBatch* batch) {
    batch->tables = &map_.tables;
    if (mover_ != nullptr) return mover_->Begin(batch);
    aquifer::Gather(map_.map, batch->gathers);
    // What lies behind a block that is damaged is not wanted any more.
    bool good = true;
    for (aquifer::ScatterOp& op : batch->scatters) {
      if (!good) {
        op.status = Status(Code::kUnavailable);
        continue;
      }
      aquifer::Scatter(map_.map, batch->verify, std::span(&op, 1));
      good = op.status.ok();
    }
    batch->finished = batch->size();
  }

  void Wait(const aquifer::MoveBatch& batch) {
    if (mover_ != nullptr) mover_->Wait(batch);
  }

  // Before a batch goes that is not done: nothing of it is under way from then on.
  void Abandon(const aquifer::MoveBatch& batch) const {
    if (mover_ != nullptr && !batch.done()) mover_->Abandon();
  }

 private:
  const aquifer_tensor_map& map_;
  aquifer::BlockMover* const mover_;
};

// Nothing is changed of one that is done.
void CancelAndWait(Cache* client, aquifer::Request* request) {
  client->Cancel(request);
  client->Wait(*request);
}

// What was asked for and not come to is given back. Where a call was left without memory, the GPU
// is to forget its windows, too, which go then.
template <class Windows, class GiveUp>
void GiveUpAll(const Copier& copier, Windows* windows, const GiveUp& give_up) {
  for (const auto& window : *windows) copier.Abandon(window.batch);
  Guarded([&]() -> Status {
    for (auto& window : *windows) give_up(&window);
    return Status();
  });
}

// ---- Load ----

// Windows are begun (asked for), then taken (answered, and being copied), then settled, in order.
class Loader {
 public:
  Loader(const aquifer_load_args& args, aquifer::Verify verify, Cache* client, Copier copier)
      : args_(args),
        map_(args.map->map),
        verify_(verify),
        client_(client),
        copier_(copier),
        sequence_{{args.pages, args.page_count}, args.first_block},
        deadline_(TimeoutOf(args.timeout_nanos, aquifer::kDefaultTimeoutNanos)),
        window_(WindowBlocks(map_)) {}

  ~Loader() {
    GiveUpAll(copier_, &windows_, [this](Window* window) { GiveUp(window); });
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  aquifer_loaded Run() {
    do {
      while (status_.ok() && Begin()) {
      }
      while (status_.ok() && taken_ < begun_ && taken_ - settled_ < copier_.most()) {
        Take(&windows_[taken_++ % kWindows]);
      }
      if (settled_ < taken_) Settle(&windows_[settled_++ % kWindows]);
    } while (status_.ok() && settled_ < begun_);
    while (settled_ < taken_) Settle(&windows_[settled_++ % kWindows]);
    if (!status_.ok()) aquifer::Fail(status_.code(), status_.message().c_str());
    loaded_.code = static_cast<aquifer_code>(status_.code());
    loaded_.blocks = copied_;
    loaded_.bytes = copied_ * map_.block_bytes;
    return loaded_;
  }

 private:
  static constexpr size_t kWindows = kWindowsAhead + 1;

  struct Window {
    aquifer::FetchRequest fetch;
    std::vector<aquifer::ScatterOp> ops;  // Of the blocks that came, up to the first that did not.
    aquifer::MoveBatch batch;
    Status status;      // Of that one.
    size_t end = 0;     // The key behind its last one.
    bool open = false;  // Asked for, and not given back.
  };

  // Asks for the next window, where there is one and room for it.
  bool Begin() {
    if (begun_ - settled_ == kWindowsAhead + copier_.most() - 1) return false;
    if (asked_ == args_.chain.key_count) return false;
    Window& window = windows_[begun_ % kWindows];
    const size_t count = std::min(window_, args_.chain.key_count - asked_);
    window.fetch.chain = {.layout = args_.chain.layout,
                          .group = args_.chain.group,
                          .part = args_.chain.part,
                          .keys = aquifer::KeysOf(args_.chain.keys + asked_, count)};
    window.fetch.timeout_nanos = deadline_.Left();
    window.open = true;
    client_->Fetch(&window.fetch);
    asked_ += count;
    window.end = asked_;
    ++begun_;
    return true;
  }

  void Take(Window* window) {
    client_->Wait(window->fetch);
    window->status = window->fetch.status;
    window->ops.clear();
    for (const aquifer::FetchOp& op : Answered(*window)) {
      if (window->status.ok()) window->status = op.status;
      if (!window->status.ok()) break;
      window->ops.push_back({.place = sequence_.Place(fetched_++),
                             .slot = op.bytes,
                             .checksum = op.checksum,
                             .sums = {},
                             .status = {}});
    }
    if (window->status.ok() && fetched_ < window->end) {
      window->status = Status(Code::kUnavailable);
    }
    window->batch = {.tables = nullptr, .scatters = window->ops, .verify = verify_};
    copier_.Begin(&window->batch);
  }

  void Settle(Window* window) {
    copier_.Wait(window->batch);
    std::vector<aquifer::ReleaseOp> releases;
    size_t index = 0;
    for (const aquifer::FetchOp& op : Answered(*window)) {
      const Status* const copied =
          index < window->ops.size() ? &window->ops[index].status : nullptr;
      ++index;
      if (copied != nullptr) Count(*copied, op);
      if (op.lease == 0) continue;
      releases.push_back(
          {.lease = op.lease, .corrupt = copied != nullptr && copied->code() == Code::kCorrupt});
    }
    client_->Release(releases);
    window->open = false;
    if (status_.ok()) status_ = window->status;
  }

  void Count(const Status& copied, const aquifer::FetchOp& op) {
    if (status_.ok()) status_ = copied;
    if (!status_.ok()) return;
    ++copied_;
    ++loaded_.tier_blocks[static_cast<size_t>(op.tier)];
  }

  static std::span<const aquifer::FetchOp> Answered(const Window& window) {
    const std::span<const aquifer::FetchOp> ops = window.fetch.ops;
    return ops.first(std::min(window.fetch.completed(), ops.size()));
  }

  void GiveUp(Window* window) {
    if (!window->open) return;
    CancelAndWait(client_, &window->fetch);
    window->open = false;
    std::vector<aquifer::ReleaseOp> releases;
    for (const aquifer::FetchOp& op : Answered(*window)) {
      if (op.lease != 0) releases.push_back({.lease = op.lease});
    }
    client_->Release(releases);
  }

  const aquifer_load_args& args_;
  const aquifer::EngineMap& map_;
  const aquifer::Verify verify_;
  Cache* const client_;
  Copier copier_;
  const Sequence sequence_;
  const Deadline deadline_;
  const size_t window_;
  std::array<Window, kWindows> windows_;  // Used in turn.
  size_t begun_ = 0;                      // Windows,
  size_t taken_ = 0;
  size_t settled_ = 0;
  size_t asked_ = 0;  // and blocks.
  size_t fetched_ = 0;
  size_t copied_ = 0;
  Status status_;
  aquifer_loaded loaded_{};
};

// ---- Store ----

// Windows are begun (reserved, and being filled), then settled (committed), in order.
class Storer {
 public:
  Storer(const aquifer_store_args& args, Cache* client, Copier copier)
      : args_(args),
        map_(args.map->map),
        client_(client),
        copier_(copier),
        sequence_{{args.pages, args.page_count}, args.first_block},
        deadline_(TimeoutOf(args.timeout_nanos, kStoreNanos)),
        window_(WindowBlocks(map_)) {}

  // What was reserved and not filled, or not committed in time, is not kept until the node takes it
  // away.
  ~Storer() {
    GiveUpAll(copier_, &windows_, [this](Window* window) { GiveUp(window); });
  }
  Storer(const Storer&) = delete;
  Storer& operator=(const Storer&) = delete;

  // `stored` is how far it got, whatever it returns.
  Status Run(aquifer_stored* stored) {
    Status status = StoreAll();
    while (settled_ < begun_) {
      const Status settled = Settle();
      if (status.ok()) status = settled;
    }
    stored_.bytes = stored_.stored * map_.block_bytes;
    *stored = stored_;
    return status;
  }

 private:
  static constexpr size_t kWindows = 2;

  struct Window {
    aquifer::ReserveRequest reserve;
    std::vector<aquifer::GatherOp> ops;  // Of the blocks that have a slot,
    std::vector<aquifer::ReservationId> reservations;
    aquifer::MoveBatch batch;
    aquifer::CommitRequest commit;
    bool open = false;  // Asked for slots, and not all of them are committed or aborted.
  };

  Status StoreAll() {
    size_t next = 0;
    const size_t count = args_.chain.key_count;
    while (next < count) {
      Window& window = windows_[begun_ % kWindows];
      window.open = true;
      AQ_RETURN_IF_ERROR(Reserve(next, std::min(window_, count - next), &window.reserve));
      const size_t warming = FirstWarming(window.reserve);
      Fill(next, warming, &window);
      ++begun_;
      next += warming;
      while (begun_ - settled_ >= copier_.most()) AQ_RETURN_IF_ERROR(Settle());
      if (warming == window.reserve.ops.size()) continue;
      if (deadline_.Passed()) {
        stored_.refused += count - next;
        break;
      }
      const std::timespec pause{.tv_sec = 0, .tv_nsec = kWarmingNanos};
      ::nanosleep(&pause, nullptr);
    }
    return Status();
  }

  Status Reserve(size_t first, size_t count, aquifer::ReserveRequest* reserve) {
    reserve->chain = {.layout = args_.chain.layout,
                      .group = args_.chain.group,
                      .part = args_.chain.part,
                      .keys = aquifer::KeysOf(args_.chain.keys + first, count)};
    const aquifer_key& parent = first == 0 ? args_.parent : args_.chain.keys[first - 1];
    std::memcpy(reserve->parent.bytes.data(), parent.bytes, sizeof(parent.bytes));
    reserve->position = args_.position + static_cast<uint32_t>(first);
    if (args_.engine_hashes != nullptr) {
      reserve->engine_hashes = {args_.engine_hashes + first, count};
    }
    client_->Reserve(reserve);
    return Await(reserve);
  }

  // A node that takes a request and does not answer it keeps the engine's pages for no longer than
  // the store may take.
  Status Await(aquifer::Request* request) {
    if (!client_->Wait(*request, deadline_.Left())) CancelAndWait(client_, request);
    return request->status;
  }

  // Of what is committed nobody knows the names any more.
  void GiveUp(Window* window) {
    if (!window->open) return;
    CancelAndWait(client_, &window->reserve);
    CancelAndWait(client_, &window->commit);
    window->open = false;
    for (size_t i = 0; i < window->reserve.completed(); ++i) {
      const aquifer::ReservationId reservation = window->reserve.ops[i].reservation;
      if (reservation != 0) client_->Abort(std::span(&reservation, 1));
    }
  }

  // What lies behind the first block whose memory is being made is asked for once more.
  size_t FirstWarming(const aquifer::ReserveRequest& reserve) {
    size_t first = 0;
    while (first < reserve.ops.size() && !IsWarming(reserve.ops[first])) ++first;
    std::vector<aquifer::ReservationId> behind;
    for (const aquifer::ReserveOp& op : std::span(reserve.ops).subspan(first)) {
      if (op.reservation != 0) behind.push_back(op.reservation);
      stored_.refusal = AQUIFER_REFUSAL_WARMING;
    }
    client_->Abort(behind);
    return first;
  }

  static bool IsWarming(const aquifer::ReserveOp& op) {
    return op.outcome == aquifer::ReserveOutcome::kRefused &&
           op.refusal == aquifer::Refusal::kWarming;
  }

  void Fill(size_t first, size_t count, Window* window) {
    window->ops.clear();
    window->reservations.clear();
    for (size_t i = 0; i < count; ++i) {
      const aquifer::ReserveOp& op = window->reserve.ops[i];
      switch (op.outcome) {
        case aquifer::ReserveOutcome::kSlot:
          window->ops.push_back(
              {.place = sequence_.Place(first + i), .slot = op.slot, .sums = {}, .status = {}});
          window->reservations.push_back(op.reservation);
          break;
        case aquifer::ReserveOutcome::kHave:
          ++stored_.had;
          break;
        case aquifer::ReserveOutcome::kBeingFilled:
          ++stored_.being_filled;
          break;
        case aquifer::ReserveOutcome::kRefused:
          ++stored_.refused;
          stored_.refusal = static_cast<int32_t>(op.refusal);
          break;
      }
    }
    window->batch = {.tables = nullptr, .gathers = window->ops};
    copier_.Begin(&window->batch);
  }

  // Waits for the oldest window's blocks and commits them.
  Status Settle() {
    Window& window = windows_[settled_++ % kWindows];
    copier_.Wait(window.batch);
    window.commit.ops.clear();
    for (size_t i = 0; i < window.ops.size(); ++i) AddCommit(window, i, &window.commit);
    AQ_RETURN_IF_ERROR(Commit(&window.commit));
    window.open = false;
    return Status();
  }

  void AddCommit(const Window& window, size_t index, aquifer::CommitRequest* request) {
    const aquifer::GatherOp& gather = window.ops[index];
    if (!gather.status.ok()) {
      client_->Abort(std::span(&window.reservations[index], 1));
      ++stored_.failed;
      aquifer::Fail(gather.status.code(), gather.status.message().c_str());
      return;
    }
    aquifer::CommitOp& commit = request->ops.emplace_back();
    commit.reservation = window.reservations[index];
    commit.head_begin = args_.map->committed_heads.begin;
    commit.head_end = args_.map->committed_heads.end;
    commit.sums = gather.sums;
  }

  Status Commit(aquifer::CommitRequest* request) {
    if (request->ops.empty()) return Status();
    client_->Commit(request);
    AQ_RETURN_IF_ERROR(Await(request));
    for (const aquifer::CommitOp& op : request->ops) {
      if (op.status.ok()) {
        ++stored_.stored;
        stored_.published += op.published ? 1 : 0;
      } else {
        ++stored_.failed;
        aquifer::Fail(op.status.code(), op.status.message().c_str());
      }
    }
    return Status();
  }

  const aquifer_store_args& args_;
  const aquifer::EngineMap& map_;
  Cache* const client_;
  Copier copier_;
  const Sequence sequence_;
  const Deadline deadline_;
  const size_t window_;
  std::array<Window, kWindows> windows_;  // Used in turn.
  size_t begun_ = 0;                      // Windows.
  size_t settled_ = 0;
  aquifer_stored stored_{};
};

// kUnavailable where the tensors are a GPU's and its path is off.
aquifer::Result<Copier> CopierFor(aquifer_cache* cache, const aquifer_tensor_map& map) {
  if (map.device == aquifer::kHostMemory) return Copier(map, nullptr);
  AQ_ASSIGN_OR_RETURN(aquifer::BlockMover* const mover, cache->MoverFor(map.device));
  return Copier(map, mover);
}

}  // namespace

aquifer_code aquifer_load(aquifer_cache* cache, const aquifer_load_args* args,
                          aquifer_loaded* loaded) {
  return Guarded([&]() -> Status {
    aquifer_load_args given;
    AQ_RETURN_IF_ERROR(aquifer::ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckTransfer(cache, given));
    AQ_RETURN_IF_ERROR(aquifer::WriteStruct(aquifer_loaded{}, "loaded", loaded));
    aquifer::Verify verify = aquifer::Verify::kWhileCopying;
    AQ_RETURN_IF_ERROR(aquifer::ReadVerify(given.verify, &verify));
    aquifer_loaded answer{};
    const aquifer::Result<Copier> copier = CopierFor(cache, *given.map);
    if (copier.ok()) {
      answer = Loader(given, verify, cache->client.get(), *copier).Run();
    } else {
      answer.code = aquifer::Fail(copier.status().code(), copier.status().message().c_str());
    }
    cache->Sweep();
    return aquifer::WriteStruct(answer, "loaded", loaded);
  });
}

aquifer_code aquifer_store(aquifer_cache* cache, const aquifer_store_args* args,
                           aquifer_stored* stored) {
  return Guarded([&]() -> Status {
    aquifer_store_args given;
    AQ_RETURN_IF_ERROR(aquifer::ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckTransfer(cache, given));
    AQ_RETURN_IF_ERROR(aquifer::WriteStruct(aquifer_stored{}, "stored", stored));
    aquifer_stored answer{};
    const aquifer::Result<Copier> copier = CopierFor(cache, *given.map);
    if (!copier.ok()) {
      answer.failed = given.chain.key_count;
      aquifer::Fail(copier.status().code(), copier.status().message().c_str());
      return aquifer::WriteStruct(answer, "stored", stored);
    }
    Status status = Storer(given, cache->client.get(), *copier).Run(&answer);
    cache->Sweep();
    AQ_RETURN_IF_ERROR(aquifer::WriteStruct(answer, "stored", stored));
    return status;
  });
}
