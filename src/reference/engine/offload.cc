#include "reference/engine/offload.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "block/tensor/gather_scatter.h"

namespace aquifer::reference {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kConnectPause = 1000 * kMillisecond;
constexpr int64_t kConnectTimeout = 1000 * kMillisecond;
// A match is answered from memory. If one takes longer, its node is in trouble.
constexpr int64_t kMatchTimeout = 100 * kMillisecond;
constexpr int64_t kLeastFetch = 100 * kMillisecond;
constexpr int64_t kMostFetch = 20'000 * kMillisecond;
constexpr int64_t kUnknownFetch = 5'000 * kMillisecond;  // No time was reported yet.
// How often, and for how long, a store without slots tries again. Less long while requests want its
// pages.
constexpr int64_t kStorePause = 2 * kMillisecond;
constexpr int64_t kMostStorePause = 100 * kMillisecond;
constexpr int64_t kStorePatience = 10'000 * kMillisecond;
constexpr int64_t kStorePatienceForOthers = 100 * kMillisecond;
// The shortest time between two questions about another engine's block, whatever its estimate says.
constexpr int64_t kLeastAskAgain = 1 * kMillisecond;
constexpr int64_t kMostAskAgain = 20 * kMillisecond;
constexpr uint64_t kWindowBytes = uint64_t{16} << 20;
// For each waiting request: the staged blocks of all of them must fit into DRAM.
constexpr uint64_t kStagedBytes = uint64_t{256} << 20;
constexpr size_t kMostStagings = 8;
constexpr size_t kMostStores = 64;

int64_t Now() { return SystemClock()->NowNanos(); }

// Converts an estimate, which may be any number, to at most a minute.
int64_t Nanos(double milliseconds) {
  return static_cast<int64_t>(std::clamp(milliseconds, 0.0, 60e3) * kMillisecond);
}

size_t WindowBlocks(const EngineMap& map) {
  return std::clamp<uint64_t>(kWindowBytes / map.block_bytes, 1, 64);
}

}  // namespace

class Offload::Timer {
 public:
  explicit Timer(Offload* offload)
      : offload_(offload), began_(Now()), cpu_began_(ThreadCpuNanos()) {}
  ~Timer() {
    offload_->stats_.nanos += Now() - began_;
    offload_->stats_.cpu_nanos += ThreadCpuNanos() - cpu_began_;
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  static int64_t ThreadCpuNanos() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }

  Offload* const offload_;
  const int64_t began_;
  const int64_t cpu_began_;
};

Offload::Offload(const OffloadOptions& options, const Layout& layout, EngineMap map, PagePool* pool)
    : options_(options), layout_(layout), map_(std::move(map)), pool_(pool) {}

Offload::~Offload() { cache_.reset(); }

void Offload::Poll() {
  if (!options_.connect) return;
  const Timer timer(this);
  if (cache_ == nullptr) ConnectAgain();
  if (cache_ == nullptr) return;
  cache_->Poll();
  std::erase_if(stagings_, [this](const auto& staging) { return !AdvanceStaging(staging.get()); });
  std::erase_if(stores_, [this](const auto& storing) { return !AdvanceStore(storing.get()); });
  std::erase_if(abandoned_, [this](const auto& recall) {
    bool open = !recall->match_.done();
    for (Recall::Window& window : recall->windows_) {
      if (!window.open) continue;
      ReleaseUntaken(&window);
      cache_->Release(window.releases);
      window.releases.clear();
      window.open = !window.fetch.done();
      open = open || window.open;
    }
    return !open;
  });
}

// The first connect may wait: no request is served yet. Later ones run on a thread of their own,
// because a slow node must not hold up running requests.
void Offload::ConnectAgain() {
  if (!connecting_.valid()) {
    if (Now() < connect_again_nanos_) return;
    const auto where =
        std::exchange(tried_to_connect_, true) ? std::launch::async : std::launch::deferred;
    connecting_ = std::async(where, [this] { return Connect(); });
  }
  if (connecting_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) return;
  Result<std::unique_ptr<Cache>> cache = connecting_.get();
  connect_again_nanos_ = Now() + kConnectPause;
  if (!cache.ok()) return Log("no cache: " + cache.status().message());
  cache_ = *std::move(cache);
  Log("the cache is there");
}

Result<std::unique_ptr<Cache>> Offload::Connect() {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Cache> cache, options_.connect());
  registration_.layout = layout_;
  cache->RegisterLayout(&registration_);
  if (!cache->Wait(registration_, kConnectTimeout)) {
    return Status(Code::kLate, "the node does not answer");
  }
  AQ_RETURN_IF_ERROR(registration_.status);
  return cache;
}

void Offload::Log(const std::string& line) {
  if (!options_.log || line == last_line_) return;
  last_line_ = line;
  options_.log(line);
}

// ---- Ahead of a recall ----

bool Offload::Prepare(std::span<const Key> keys, size_t have) {
  if (cache_ == nullptr || stagings_.size() >= kMostStagings) return false;
  if (keys.size() <= have) return true;
  const Timer timer(this);
  auto staging = std::make_unique<Staging>();
  staging->keys.assign(keys.begin(), keys.end());
  staging->match.chain = {
      .layout = registration_.handle, .group = 0, .part = 0, .keys = staging->keys};
  staging->match.have = have;
  cache_->Match(&staging->match);
  stagings_.push_back(std::move(staging));
  return true;
}

// Returns false if the staging is over.
bool Offload::AdvanceStaging(Staging* staging) {
  if (!staging->match.done() || !staging->prestage.done()) return true;
  if (staging->blocks > 0) {
    stats_.staged_blocks += std::min(staging->prestage.staged, staging->blocks);
    return false;
  }
  const MatchRequest& match = staging->match;
  const size_t most = std::max<uint64_t>(kStagedBytes / map_.block_bytes, 1);
  const size_t end = match.have + std::min(Worthwhile(match), most);
  size_t first = end;
  for (const MatchRun& run : match.runs) {
    if (run.tier == TierKind::kDram || run.first >= end) continue;
    first = std::min(first, run.first);
    staging->blocks += std::min(run.count, end - run.first);
  }
  if (staging->blocks == 0) return false;
  staging->prestage.chain = match.chain;
  staging->prestage.chain.keys = std::span(staging->keys).subspan(first, end - first);
  cache_->Prestage(&staging->prestage);
  return true;
}

// ---- Recall ----

// How many blocks of a match to fetch.
size_t Offload::Worthwhile(const MatchRequest& match) const {
  if (!match.status.ok()) return 0;
  return options_.always_fetch ? match.matched : match.pays;
}

std::unique_ptr<Recall> Offload::Begin(std::span<const Key> keys, size_t have, double block_ms) {
  if (cache_ == nullptr || keys.size() <= have) return nullptr;
  const Timer timer(this);
  auto recall = std::make_unique<Recall>();
  recall->keys_.assign(keys.begin(), keys.end());
  recall->block_ms_ = block_ms;
  recall->asked_ = recall->end_ = recall->next_to_come_ = have;
  AskForMatch(recall.get());
  return recall;
}

void Offload::AskForMatch(Recall* recall) {
  recall->stage_ = Recall::Stage::kMatching;
  recall->began_nanos_ = Now();
  recall->match_.chain = {
      .layout = registration_.handle, .group = 0, .part = 0, .keys = recall->keys_};
  recall->match_.have = recall->asked_;
  cache_->Match(&recall->match_);
}

void Offload::Advance(Recall* recall, const PageTable& table,
                      const std::function<bool(size_t block)>& wanted,
                      const std::function<void(size_t block, TierKind tier)>& arrived) {
  const Timer timer(this);
  if (recall->stage_ == Recall::Stage::kAwaiting && Now() >= recall->ask_again_nanos_) {
    AskForMatch(recall);
  }
  if (recall->stage_ == Recall::Stage::kMatching) DecideAfterMatch(recall);
  if (recall->stage_ != Recall::Stage::kFetching) return;
  AskForMore(recall);
  while (TakeArrived(recall, table, wanted, arrived)) AskForMore(recall);
  if (recall->ended_ < recall->begun_ || recall->asked_ < recall->end_) return;
  recall->more_is_filled_ ? AskForMatch(recall) : recall->End();
}

void Offload::DecideAfterMatch(Recall* recall) {
  if (!recall->match_.done()) {
    if (options_.always_fetch || Now() - recall->began_nanos_ < kMatchTimeout) return;
    ++stats_.unanswered_matches;
    return recall->End();
  }
  const MatchRequest& match = recall->match_;
  const size_t blocks = Worthwhile(match);
  recall->more_is_filled_ = match.status.ok() && blocks == match.matched && !match.runs.empty() &&
                            IsWorthAwaiting(*recall, match.runs.back());
  if (blocks == 0) return recall->more_is_filled_ ? Await(recall) : recall->End();
  if (std::exchange(recall->await_until_nanos_, 0) != 0) stats_.awaited_blocks += blocks;
  recall->end_ = recall->asked_ + blocks;
  // If fetching takes longer than computing, it is too late.
  const int64_t patience = match.recompute_ms > 0
                               ? std::clamp(Nanos(match.recompute_ms), kLeastFetch, kMostFetch)
                               : kUnknownFetch;
  recall->deadline_nanos_ = Now() + patience;
  recall->stage_ = Recall::Stage::kFetching;
}

bool Offload::IsWorthAwaiting(const Recall& recall, const MatchRun& run) const {
  if (run.state == RunState::kReady) return false;
  return options_.always_fetch ||
         run.estimated_ms < recall.block_ms_ * static_cast<double>(run.count);
}

// Estimates can be wrong, and engines die. The wait therefore ends when computing the blocks would
// have ended.
void Offload::Await(Recall* recall) {
  const MatchRun& run = recall->match_.runs.back();
  const int64_t now = Now();
  if (recall->await_until_nanos_ == 0) {
    const double compute_ms = recall->block_ms_ * static_cast<double>(run.count);
    recall->await_until_nanos_ = now + (options_.always_fetch ? kUnknownFetch : Nanos(compute_ms));
  }
  if (now >= recall->await_until_nanos_) return recall->End();
  recall->ask_again_nanos_ =
      now + std::clamp(Nanos(run.estimated_ms), kLeastAskAgain, kMostAskAgain);
  recall->stage_ = Recall::Stage::kAwaiting;
}

void Offload::AskForMore(Recall* recall) {
  while (recall->asked_ < recall->end_) {
    Recall::Window& window = recall->windows_[recall->begun_ % recall->windows_.size()];
    if (window.open) return;
    const size_t count = std::min(WindowBlocks(map_), recall->end_ - recall->asked_);
    window.first = recall->asked_;
    window.taken = 0;
    window.open = true;
    window.fetch.chain = {.layout = registration_.handle,
                          .group = 0,
                          .part = 0,
                          .keys = std::span(recall->keys_).subspan(recall->asked_, count)};
    window.fetch.timeout_nanos = std::max<int64_t>(recall->deadline_nanos_ - Now(), 1);
    cache_->Fetch(&window.fetch);
    recall->asked_ += count;
    ++recall->begun_;
  }
}

// Takes the blocks that the oldest window has by now. Returns true if the window is complete, so
// that another one may follow.
bool Offload::TakeArrived(Recall* recall, const PageTable& table,
                          const std::function<bool(size_t block)>& wanted,
                          const std::function<void(size_t block, TierKind tier)>& arrived) {
  if (recall->ended_ == recall->begun_) return false;
  Recall::Window& window = recall->windows_[recall->ended_ % recall->windows_.size()];
  const size_t answered = std::min(window.fetch.completed(), window.fetch.ops.size());
  for (; window.taken < answered; ++window.taken) {
    const FetchOp& op = window.fetch.ops[window.taken];
    const size_t block = window.first + window.taken;
    bool corrupt = false;
    if (wanted(block) && Copy(op, block, table, &corrupt)) {
      arrived(block, op.tier);
      ++stats_.recalled_blocks;
    } else {
      ++stats_.missed_blocks;
    }
    if (op.lease != 0) window.releases.push_back({.lease = op.lease, .corrupt = corrupt});
    recall->next_to_come_ = block + 1;
  }
  cache_->Release(window.releases);
  window.releases.clear();
  if (!window.fetch.done()) return false;
  window.open = false;
  ++recall->ended_;
  if (window.taken < window.fetch.chain.keys.size()) {
    // The whole fetch was refused: the node is gone, or busy. Further blocks are not asked for.
    recall->end_ = recall->asked_;
  }
  recall->next_to_come_ = window.first + window.fetch.chain.keys.size();
  return true;
}

bool Offload::Copy(const FetchOp& op, size_t block, const PageTable& table, bool* corrupt) {
  if (!op.status.ok()) return false;
  ScatterOp scatter{.place = {.page_table = table.pages, .index = block},
                    .slot = op.bytes,
                    .checksum = op.checksum,
                    .sums = {},
                    .status = {}};
  Scatter(map_, Verify::kWhileCopying, std::span(&scatter, 1));
  *corrupt = scatter.status.code() == Code::kCorrupt;
  return scatter.status.ok();
}

void Offload::Abandon(std::unique_ptr<Recall> recall) {
  if (recall == nullptr || cache_ == nullptr) return;
  const Timer timer(this);
  if (!recall->match_.done()) cache_->Cancel(&recall->match_);
  for (Recall::Window& window : recall->windows_) {
    if (window.open && !window.fetch.done()) cache_->Cancel(&window.fetch);
  }
  abandoned_.push_back(std::move(recall));
}

void Offload::ReleaseUntaken(Recall::Window* window) {
  const size_t answered = std::min(window->fetch.completed(), window->fetch.ops.size());
  for (; window->taken < answered; ++window->taken) {
    const LeaseId lease = window->fetch.ops[window->taken].lease;
    if (lease != 0) window->releases.push_back({.lease = lease});
  }
}

// ---- Store ----

void Offload::Store(std::span<const Key> keys, const Key& root, size_t first, size_t count,
                    const PageTable& table) {
  if (cache_ == nullptr || count == 0) return;
  const Timer timer(this);
  if (stores_.size() >= kMostStores) {
    stats_.refused_blocks += count;
    return;
  }
  auto storing = std::make_unique<Storing>();
  storing->keys.assign(keys.begin() + static_cast<ptrdiff_t>(first),
                       keys.begin() + static_cast<ptrdiff_t>(first + count));
  const auto pages = table.pages.begin() + static_cast<ptrdiff_t>(first * map_.pages_per_block);
  storing->pages.assign(pages, pages + static_cast<ptrdiff_t>(count * map_.pages_per_block));
  for (const Key& key : storing->keys) pool_->Hold(key);
  storing->reserve.chain = {
      .layout = registration_.handle, .group = 0, .part = 0, .keys = storing->keys};
  storing->reserve.parent = first == 0 ? root : keys[first - 1];
  storing->reserve.position = static_cast<uint32_t>(first);
  storing->began_nanos = Now();
  cache_->Reserve(&storing->reserve);
  stores_.push_back(std::move(storing));
}

// Returns false if the store is over.
bool Offload::AdvanceStore(Storing* storing) {
  switch (storing->stage) {
    case Storing::Stage::kPausing:
      if (Now() < storing->resume_nanos) return true;
      storing->stage = Storing::Stage::kReserving;
      cache_->Reserve(&storing->reserve);
      return true;
    case Storing::Stage::kReserving:
      if (!storing->reserve.done()) return true;
      if (FillSlots(storing)) return true;
      break;
    case Storing::Stage::kCommitting:
      if (!storing->commit.done()) return true;
      for (const CommitOp& op : storing->commit.ops) {
        ++(op.published ? stats_.stored_blocks : stats_.refused_blocks);
      }
      storing->commit.ops.clear();
      if (Pause(storing)) return true;
      break;
  }
  FinishStore(storing);
  return false;
}

// Returns false if there is nothing to wait for.
bool Offload::FillSlots(Storing* storing) {
  storing->without_slot = 0;
  storing->pause_nanos = kStorePause;
  if (!storing->reserve.status.ok()) {
    stats_.refused_blocks += storing->keys.size();
    return false;
  }
  for (size_t i = 0; i < storing->reserve.ops.size(); ++i) {
    const ReserveOp& op = storing->reserve.ops[i];
    const bool another = op.outcome == ReserveOutcome::kBeingFilled;
    if (another || op.outcome == ReserveOutcome::kRefused) ++storing->without_slot;
    if (another) {
      storing->pause_nanos = std::clamp(Nanos(op.wait_ms), storing->pause_nanos, kMostStorePause);
    }
    if (op.outcome != ReserveOutcome::kSlot) continue;
    GatherOp gather{.place = {.page_table = storing->pages, .index = i},
                    .slot = op.slot,
                    .sums = {},
                    .status = {}};
    Gather(map_, std::span(&gather, 1));
    CommitOp& commit = storing->commit.ops.emplace_back();
    commit.reservation = op.reservation;
    commit.sums = gather.sums;
  }
  if (storing->commit.ops.empty()) return Pause(storing);
  storing->stage = Storing::Stage::kCommitting;
  cache_->Commit(&storing->commit);
  return true;
}

// Returns true if the store waits and tries again. If a block is left out, the blocks behind it are
// useless. So the store waits for memory that is being made or freed, and for another engine that
// fills the block, which may die. Blocks that the cache has are not written again. The pages are
// held meanwhile, so the wait has an end. It ends soon if requests wait for pages.
bool Offload::Pause(Storing* storing) {
  if (storing->without_slot == 0) return false;
  if (Now() - storing->began_nanos >
      (pages_are_wanted_ ? kStorePatienceForOthers : kStorePatience)) {
    stats_.refused_blocks += storing->without_slot;
    return false;
  }
  storing->stage = Storing::Stage::kPausing;
  storing->resume_nanos = Now() + storing->pause_nanos;
  return true;
}

void Offload::FinishStore(Storing* storing) {
  for (const Key& key : storing->keys) pool_->LetGo(key);
}

void Offload::Hint(const std::string& session, const Key& last) {
  if (cache_ == nullptr || session.empty()) return;
  const Timer timer(this);
  cache_->Hint({.session = session,
                .chain = {.layout = registration_.handle,
                          .group = 0,
                          .part = 0,
                          .keys = std::span(&last, 1)},
                .state = SessionState::kWillContinue});
}

void Offload::ReportPrefill(uint32_t tokens, uint32_t context, double milliseconds) {
  if (cache_ == nullptr) return;
  const Timer timer(this);
  cache_->ReportPrefill({.layout = registration_.handle,
                         .tokens = tokens,
                         .context_tokens = context,
                         .milliseconds = milliseconds});
}

}  // namespace aquifer::reference
