// The C ABI's load and store: an engine's pages and the cache's slots, with the copy in between.
// The caller's thread does all of it; blocks move in windows, so that drives read ahead of the copy
// and no request holds more slots than it fills.
#include <algorithm>
#include <array>
#include <ctime>
#include <vector>

#include "base/clock.h"
#include "client/c_api.h"

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

// ---- Load ----

class Loader {
 public:
  Loader(const aquifer_load_args& args, aquifer::Verify verify, Cache* client)
      : args_(args),
        map_(args.map->map),
        verify_(verify),
        client_(client),
        sequence_{{args.pages, args.page_count}, args.first_block},
        deadline_(TimeoutOf(args.timeout_nanos, aquifer::kDefaultTimeoutNanos)),
        window_(WindowBlocks(map_)) {}

  // Everything that it began is done when it returns.
  aquifer_loaded Run() {
    while (copied_ < args_.chain.key_count && status_.ok()) {
      while (Begin()) {
      }
      Take(&windows_[taken_++ % kWindowsAhead]);
    }
    for (Window& window : windows_) GiveUp(&window);
    if (!status_.ok()) aquifer::Fail(status_.code(), status_.message().c_str());
    loaded_.code = static_cast<aquifer_code>(status_.code());
    loaded_.blocks = copied_;
    loaded_.bytes = copied_ * map_.block_bytes;
    return loaded_;
  }

 private:
  struct Window {
    aquifer::FetchRequest fetch;
    size_t end = 0;  // The key behind its last one.
    bool open = false;
  };

  // Asks for the next window, where there is one and room for it.
  bool Begin() {
    Window& window = windows_[begun_ % kWindowsAhead];
    if (window.open || asked_ == args_.chain.key_count) return false;
    const size_t count = std::min(window_, args_.chain.key_count - asked_);
    window.fetch.chain = {.layout = args_.chain.layout,
                          .group = args_.chain.group,
                          .part = args_.chain.part,
                          .keys = aquifer::KeysOf(args_.chain.keys + asked_, count)};
    window.fetch.timeout_nanos = deadline_.Left();
    client_->Fetch(&window.fetch);
    window.open = true;
    asked_ += count;
    window.end = asked_;
    ++begun_;
    return true;
  }

  void Take(Window* window) {
    client_->Wait(window->fetch);
    window->open = false;
    status_ = window->fetch.status;
    std::vector<aquifer::ReleaseOp> releases;
    for (const aquifer::FetchOp& op : std::span(window->fetch.ops).first(Answered(*window))) {
      if (status_.ok()) Copy(op);
      if (op.lease != 0) {
        releases.push_back(
            {.lease = op.lease,
             .corrupt = status_.code() == Code::kCorrupt && op.status.ok() && &op == failed_});
      }
    }
    client_->Release(releases);
    if (status_.ok() && copied_ < window->end) status_ = Status(Code::kUnavailable);
  }

  static size_t Answered(const Window& window) {
    return std::min(window.fetch.completed(), window.fetch.ops.size());
  }

  void Copy(const aquifer::FetchOp& op) {
    status_ = op.status;
    if (!status_.ok()) return;
    aquifer::ScatterOp scatter{.place = sequence_.Place(copied_),
                               .slot = op.bytes,
                               .checksum = op.checksum,
                               .sums = {},
                               .status = {}};
    aquifer::Scatter(map_, verify_, std::span(&scatter, 1));
    status_ = scatter.status;
    if (!status_.ok()) {
      failed_ = &op;
      return;
    }
    ++copied_;
    ++loaded_.tier_blocks[static_cast<size_t>(op.tier)];
  }

  void GiveUp(Window* window) {
    if (!window->open) return;
    client_->Cancel(&window->fetch);
    client_->Wait(window->fetch);
    window->open = false;
    std::vector<aquifer::ReleaseOp> releases;
    for (const aquifer::FetchOp& op : std::span(window->fetch.ops).first(Answered(*window))) {
      if (op.lease != 0) releases.push_back({.lease = op.lease});
    }
    client_->Release(releases);
  }

  const aquifer_load_args& args_;
  const aquifer::EngineMap& map_;
  const aquifer::Verify verify_;
  Cache* const client_;
  const Sequence sequence_;
  const Deadline deadline_;
  const size_t window_;
  std::array<Window, kWindowsAhead> windows_;  // Used in turn.
  size_t begun_ = 0;                           // Windows,
  size_t taken_ = 0;
  size_t asked_ = 0;  // and blocks.
  size_t copied_ = 0;
  const aquifer::FetchOp* failed_ = nullptr;  // The one whose copy showed that it is damaged.
  Status status_;
  aquifer_loaded loaded_{};
};

// ---- Store ----

class Storer {
 public:
  Storer(const aquifer_store_args& args, Cache* client)
      : args_(args),
        map_(args.map->map),
        client_(client),
        sequence_{{args.pages, args.page_count}, args.first_block},
        deadline_(TimeoutOf(args.timeout_nanos, kStoreNanos)),
        window_(WindowBlocks(map_)) {}

  Status Run(aquifer_stored* stored) {
    size_t next = 0;
    const size_t count = args_.chain.key_count;
    while (next < count) {
      AQ_RETURN_IF_ERROR(Reserve(next, std::min(window_, count - next)));
      const size_t warming = FirstWarming();
      Fill(next, warming);
      AQ_RETURN_IF_ERROR(Commit());
      next += warming;
      if (warming == reserve_.ops.size()) continue;
      if (deadline_.Passed()) {
        stored_.refused += count - next;
        break;
      }
      const std::timespec pause{.tv_sec = 0, .tv_nsec = kWarmingNanos};
      ::nanosleep(&pause, nullptr);
    }
    stored_.bytes = stored_.stored * map_.block_bytes;
    *stored = stored_;
    return Status();
  }

 private:
  Status Reserve(size_t first, size_t count) {
    reserve_.chain = {.layout = args_.chain.layout,
                      .group = args_.chain.group,
                      .part = args_.chain.part,
                      .keys = aquifer::KeysOf(args_.chain.keys + first, count)};
    const aquifer_key& parent = first == 0 ? args_.parent : args_.chain.keys[first - 1];
    std::memcpy(reserve_.parent.bytes.data(), parent.bytes, sizeof(parent.bytes));
    reserve_.position = args_.position + static_cast<uint32_t>(first);
    if (args_.engine_hashes != nullptr) {
      reserve_.engine_hashes = {args_.engine_hashes + first, count};
    }
    client_->Reserve(&reserve_);
    client_->Wait(reserve_);
    return reserve_.status;
  }

  // What lies behind the first block whose memory is being made is asked for once more.
  size_t FirstWarming() {
    size_t first = 0;
    while (first < reserve_.ops.size() && !IsWarming(reserve_.ops[first])) ++first;
    std::vector<aquifer::ReservationId> behind;
    for (const aquifer::ReserveOp& op : std::span(reserve_.ops).subspan(first)) {
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

  void Fill(size_t first, size_t count) {
    commit_.ops.clear();
    for (size_t i = 0; i < count; ++i) {
      const aquifer::ReserveOp& op = reserve_.ops[i];
      switch (op.outcome) {
        case aquifer::ReserveOutcome::kSlot:
          Gather(first + i, op);
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
  }

  void Gather(size_t key, const aquifer::ReserveOp& op) {
    aquifer::GatherOp gather{
        .place = sequence_.Place(key), .slot = op.slot, .sums = {}, .status = {}};
    aquifer::Gather(map_, std::span(&gather, 1));
    if (!gather.status.ok()) {
      client_->Abort(std::span(&op.reservation, 1));
      ++stored_.failed;
      aquifer::Fail(gather.status.code(), gather.status.message().c_str());
      return;
    }
    aquifer::CommitOp& commit = commit_.ops.emplace_back();
    commit.reservation = op.reservation;
    commit.head_begin = args_.map->committed_heads.begin;
    commit.head_end = args_.map->committed_heads.end;
    commit.sums = gather.sums;
  }

  Status Commit() {
    if (commit_.ops.empty()) return Status();
    client_->Commit(&commit_);
    client_->Wait(commit_);
    AQ_RETURN_IF_ERROR(commit_.status);
    for (const aquifer::CommitOp& op : commit_.ops) {
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
  const Sequence sequence_;
  const Deadline deadline_;
  const size_t window_;
  aquifer::ReserveRequest reserve_;
  aquifer::CommitRequest commit_;
  aquifer_stored stored_{};
};

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
    const aquifer_loaded answer = Loader(given, verify, cache->client.get()).Run();
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
    const Status status = Storer(given, cache->client.get()).Run(&answer);
    cache->Sweep();
    AQ_RETURN_IF_ERROR(status);
    return aquifer::WriteStruct(answer, "stored", stored);
  });
}
