// Offload is the engine's side of the cache. It uses only include/aquifer/cache.h, as an engine's
// author would. No function waits, except the first connect. Requests are begun, and looked at
// again between two steps of the model.
//
//     Prepare(): match ─► prestage, for a request that waits for pages
//     Begin():   match ─► Advance(): fetch blocks that pay, in windows; scatter those that came
//     Store():   reserve ─► gather into the slots ─► commit, whenever a block is complete
//
// If a block fails or is late, the engine computes it. If another engine is about to store a block,
// this one waits for it, but only if that is expected to be faster than computing it. Without a
// cache, or while the node is away, everything is a miss. Runs on the engine's thread.
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
  // Called again, once a second, while it returns no cache; from the second time on, on a thread of
  // its own. Empty: there is no cache.
  CacheSource connect{};
  // Also fetches blocks that would be computed faster, and waits for them.
  bool always_fetch = false;
  // Reports that the cache is there, or why it is not. May be empty.
  std::function<void(const std::string& line)> log{};
};

struct OffloadStats {
  uint64_t recalled_blocks = 0;
  uint64_t missed_blocks = 0;  // Fetched, but late, gone or damaged; they were computed.
  uint64_t stored_blocks = 0;
  uint64_t refused_blocks = 0;  // They got no slot, or were not published.
  uint64_t staged_blocks = 0;   // Brought to DRAM while their request waited for pages.
  uint64_t awaited_blocks = 0;  // Another engine was filling them when they were asked for.
  uint64_t unanswered_matches = 0;
  int64_t nanos = 0;      // Time spent in these functions, copies included.
  int64_t cpu_nanos = 0;  // The part of `nanos` in which this thread had a processor.
};

// The blocks that are being fetched for one sequence.
class Recall {
 public:
  // Returns true if no further block will come.
  bool done() const { return stage_ == Stage::kDone; }
  // The first block that is still to come. Those before it have come, or have failed.
  size_t next_to_come() const { return next_to_come_; }
  // Returns true if another engine fills that block. The wait has a time limit of its own.
  bool awaits_another() const { return await_until_nanos_ != 0 && stage_ != Stage::kFetching; }

 private:
  friend class Offload;
  enum class Stage : uint8_t { kMatching, kFetching, kAwaiting, kDone };
  void End() { stage_ = Stage::kDone; }
  struct Window {
    FetchRequest fetch;
    size_t first = 0;  // The block of its first key.
    size_t taken = 0;  // How many of its operations were taken.
    bool open = false;
    std::vector<ReleaseOp> releases;
  };

  Stage stage_ = Stage::kMatching;
  std::vector<Key> keys_;
  MatchRequest match_;
  std::array<Window, 2> windows_;
  size_t begun_ = 0;  // Windows, used in turn.
  size_t ended_ = 0;
  size_t asked_ = 0;  // In blocks.
  size_t end_ = 0;
  size_t next_to_come_ = 0;
  int64_t began_nanos_ = 0;  // When the match began.
  int64_t deadline_nanos_ = 0;
  double block_ms_ = 0;
  // Another engine fills blocks behind `end_`, and they are worth waiting for.
  bool more_is_filled_ = false;
  int64_t ask_again_nanos_ = 0;
  int64_t await_until_nanos_ = 0;  // 0: nothing is waited for.
};

class Offload {
 public:
  // The map's memory and `pool` outlive this object.
  Offload(const OffloadOptions& options, const Layout& layout, EngineMap map, PagePool* pool);
  ~Offload();

  // Connects if needed, takes in answers, and goes on with stores.
  void Poll();
  // A descriptor that becomes readable when there is news; -1: there is no cache.
  int event_fd() const { return cache_ == nullptr ? -1 : cache_->event_fd(); }
  // Returns true if Poll() is needed again soon, even without news.
  bool restless() const { return !stores_.empty() || !abandoned_.empty(); }

  // For a request that waits for pages: brings to DRAM the blocks that it would fetch from a drive.
  // The engine has the first `have` blocks itself. Returns false if there is no cache or it has
  // enough work; try again later.
  bool Prepare(std::span<const Key> keys, size_t have);

  // Begins a recall. Returns null if there is no cache. The engine has the first `have` blocks
  // itself, and takes `block_ms` to compute one.
  std::unique_ptr<Recall> Begin(std::span<const Key> keys, size_t have, double block_ms);
  // Goes on with a recall. `wanted` says if a block is still missing; `arrived` reports that its
  // pages are filled.
  void Advance(Recall* recall, const PageTable& table,
               const std::function<bool(size_t block)>& wanted,
               const std::function<void(size_t block, TierKind tier)>& arrived);
  // Ends a recall that nobody waits for any more. Its pages may then be used for something else.
  void Abandon(std::unique_ptr<Recall> recall);

  // Stores blocks [first, first + count) of the chain, which are published in the pool.
  void Store(std::span<const Key> keys, const Key& root, size_t first, size_t count,
             const PageTable& table);
  void Hint(const std::string& session, const Key& last);
  void ReportPrefill(uint32_t tokens, uint32_t context, double milliseconds);

  // With true, requests wait for pages: stores that wait for slots give their pages up soon.
  void SetPagesWanted(bool wanted) { pages_are_wanted_ = wanted; }

  const OffloadStats& stats() const { return stats_; }

 private:
  // The blocks that are being prepared for one request.
  struct Staging {
    std::vector<Key> keys;
    MatchRequest match;
    PrestageRequest prestage;
    size_t blocks = 0;  // How many to bring; 0 before the match is answered.
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
  std::unique_ptr<Cache> cache_;  // Destroyed before the requests that it was given.
  std::future<Result<std::unique_ptr<Cache>>> connecting_;  // Includes the layout's registration.
  bool tried_to_connect_ = false;
  bool pages_are_wanted_ = false;
  int64_t connect_again_nanos_ = 0;
  std::string last_line_;  // The last line of the log, which is not repeated.
  OffloadStats stats_;
};

}  // namespace aquifer::reference
