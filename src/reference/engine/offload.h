// The engine's side of the cache, through include/aquifer/cache.h alone: what an engine author
// would write. Nothing here waits, but once at the start, for a node to connect to: requests are
// begun, and looked at again between two steps of the model.
//
//     Prepare(): match ─► prestage, for a request that waits for pages
//     Begin():   match ─► Advance(): fetch what pays, in windows; scatter what has come
//     Store():   reserve ─► gather into the slots ─► commit, whenever a block is complete
//
// Whatever fails, or is late, is a block that the engine computes. What another engine is about to
// store is waited for, where that is said to take less time than computing it, and then for no
// longer than that. Without a cache, or while the node is away, everything is a miss. Runs on the
// engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "block/tensor/engine_layout.h"
#include "reference/model/page_pool.h"

namespace aquifer::reference {

using CacheSource = std::function<Result<std::unique_ptr<Cache>>()>;

struct OffloadOptions {
  // Asked again, once a second, for as long as it has none to give; from the second time on by a
  // thread of its own. Empty: there is no cache.
  CacheSource connect{};
  // Fetch also what would be computed faster, and wait for it.
  bool always_fetch = false;
  // Told when the cache is there, and why it is not. May be empty.
  std::function<void(const std::string& line)> log{};
};

struct OffloadStats {
  uint64_t recalled_blocks = 0;
  uint64_t missed_blocks = 0;  // Fetched, and late, gone or damaged: they were computed.
  uint64_t stored_blocks = 0;
  uint64_t refused_blocks = 0;  // No slot was given for them, or they were not published.
  uint64_t staged_blocks = 0;   // Brought to DRAM while their request waited for pages.
  uint64_t awaited_blocks = 0;  // That another engine was filling when they were asked for.
  uint64_t unanswered_matches = 0;
  int64_t nanos = 0;      // Spent in here, copies included,
  int64_t cpu_nanos = 0;  // and what of it this thread had a processor for.
};

// What is being brought for one sequence.
class Recall {
 public:
  // No block will come any more.
  bool done() const { return stage_ == Stage::kDone; }
  // The first block that is still to come; those before it have come, or have failed.
  size_t next_to_come() const { return next_to_come_; }
  // Another engine fills it. The wait has an end of its own.
  bool awaits_another() const { return await_until_nanos_ != 0 && stage_ != Stage::kFetching; }

 private:
  friend class Offload;
  enum class Stage : uint8_t { kMatching, kFetching, kAwaiting, kDone };
  void End() { stage_ = Stage::kDone; }
  struct Window {
    FetchRequest fetch;
    size_t first = 0;  // The block of its first key.
    size_t taken = 0;  // Of its operations.
    bool open = false;
    std::vector<ReleaseOp> releases;
  };

  Stage stage_ = Stage::kMatching;
  std::vector<Key> keys_;
  MatchRequest match_;
  std::array<Window, 2> windows_;
  size_t begun_ = 0;  // Windows, used in turn.
  size_t ended_ = 0;
  size_t asked_ = 0;  // Blocks.
  size_t end_ = 0;
  size_t next_to_come_ = 0;
  int64_t began_nanos_ = 0;  // The match.
  int64_t deadline_nanos_ = 0;
  double block_ms_ = 0;
  bool more_is_filled_ = false;  // By another engine, behind `end_`, and worth waiting for.
  int64_t ask_again_nanos_ = 0;
  int64_t await_until_nanos_ = 0;  // 0: nothing is waited for.
};

class Offload {
 public:
  // The map's memory outlives this; `pool` too.
  Offload(const OffloadOptions& options, const Layout& layout, EngineMap map, PagePool* pool);
  ~Offload();

  // Connects where needed, takes in answers and goes on with what is being stored.
  void Poll();
  // To wait for something new; -1: there is no cache.
  int event_fd() const { return cache_ == nullptr ? -1 : cache_->event_fd(); }
  // Something is to be looked at again soon, even if nothing new comes.
  bool restless() const { return !stores_.empty() || !abandoned_.empty(); }

  // For a request that waits for pages: what it would fetch from a drive comes to DRAM meanwhile.
  // The engine has the first `have` blocks itself. False: there is no cache, or it has enough to
  // do; try again later.
  bool Prepare(std::span<const Key> keys, size_t have);

  // Null: there is no cache. The engine has the first `have` blocks itself, and takes `block_ms` to
  // compute one.
  std::unique_ptr<Recall> Begin(std::span<const Key> keys, size_t have, double block_ms);
  // Goes on. `wanted` says whether a block is still missing, `arrived` that its pages are filled.
  void Advance(Recall* recall, const PageTable& table,
               const std::function<bool(size_t block)>& wanted,
               const std::function<void(size_t block, TierKind tier)>& arrived);
  // Nobody waits for it any more, and its pages may be used for something else.
  void Abandon(std::unique_ptr<Recall> recall);

  // Blocks [first, first + count) of the chain, published in the pool, are to be kept.
  void Store(std::span<const Key> keys, const Key& root, size_t first, size_t count,
             const PageTable& table);
  void Hint(const std::string& session, const Key& last);
  void ReportPrefill(uint32_t tokens, uint32_t context, double milliseconds);

  // Requests wait for pages: stores that wait for slots are to give theirs up soon.
  void SetPagesWanted(bool wanted) { pages_are_wanted_ = wanted; }

  const OffloadStats& stats() const { return stats_; }

 private:
  // What is prepared for one request.
  struct Staging {
    std::vector<Key> keys;
    MatchRequest match;
    PrestageRequest prestage;
    size_t blocks = 0;  // To be brought; 0 before the match is answered.
  };
  // Blocks on their way into the cache. Their pages are held meanwhile.
  struct Storing {
    enum class Stage : uint8_t { kReserving, kCommitting, kPausing };
    Stage stage = Stage::kReserving;
    std::vector<Key> keys;
    std::vector<uint32_t> pages;
    ReserveRequest reserve;
    CommitRequest commit;
    size_t without_slot = 0;
    int64_t resume_nanos = 0;
    int64_t pause_nanos = 0;
    int64_t began_nanos = 0;
  };
  class Timer;

  void ConnectAgain();
  Result<std::unique_ptr<Cache>> Connect();
  void Log(const std::string& line);
  bool AdvanceStaging(Staging* staging);
  size_t Worthwhile(const MatchRequest& match) const;
  void AskForMatch(Recall* recall);
  void DecideAfterMatch(Recall* recall);
  bool IsWorthAwaiting(const Recall& recall, const MatchRun& run) const;
  void Await(Recall* recall);
  void AskForMore(Recall* recall);
  bool TakeArrived(Recall* recall, const PageTable& table,
                   const std::function<bool(size_t block)>& wanted,
                   const std::function<void(size_t block, TierKind tier)>& arrived);
  bool Copy(const FetchOp& op, size_t block, const PageTable& table, bool* corrupt);
  static void ReleaseUntaken(Recall::Window* window);
  bool AdvanceStore(Storing* storing);
  bool FillSlots(Storing* storing);
  bool Pause(Storing* storing);
  void FinishStore(Storing* storing);

  const OffloadOptions options_;
  const Layout layout_;
  const EngineMap map_;
  PagePool* const pool_;
  std::list<std::unique_ptr<Staging>> stagings_;
  std::list<std::unique_ptr<Storing>> stores_;
  std::list<std::unique_ptr<Recall>> abandoned_;
  RegisterLayoutRequest registration_;
  std::unique_ptr<Cache> cache_;  // Gone before the requests that it was given.
  std::future<Result<std::unique_ptr<Cache>>> connecting_;  // Has the registration meanwhile.
  bool tried_to_connect_ = false;
  bool pages_are_wanted_ = false;
  int64_t connect_again_nanos_ = 0;
  std::string last_line_;  // Of the log: the same is not told twice.
  OffloadStats stats_;
};

}  // namespace aquifer::reference
