#include "policy/eviction/learned_order.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "policy/eviction/block_history.h"
#include "policy/eviction/reuse_model.h"
#include "policy/eviction/shelf.h"
#include "policy/eviction/takeover.h"

namespace aquifer {
namespace {

constexpr int kMaxPriority = 8;
constexpr uint32_t kMaxHolds = (uint32_t{1} << 31) - 1;
constexpr int64_t kSameNanos = 1'000'000'000;  // The same asked again so soon is one request.
constexpr int kMaxTurn = 63;                   // As far as a record counts.
constexpr double kAgeTrifle = 1e-15;           // A second is a millionth.
constexpr double kPriorityFactor = 4;          // A step of priority against hits per second.
constexpr int64_t kPriorityNanos = int64_t{600} * 1'000'000'000;  // The same, while LRU decides.
constexpr double kUneven = 0.1;  // A request whose blocks save so much more or less than the mean.
constexpr double kGhostsPerBlock = 4.25;
constexpr uint32_t kLeastGhosts = 64;
// Ageing goes along with use: twice what a block needs on the way through all buckets.
constexpr int kStepsPerBlock = 2 * kAgeBuckets;
constexpr uint64_t kBlocksPerTable = 1200;  // That are asked for.
constexpr int kMaxRanked = 16;              // Shelves in one task, a microsecond or two each.
constexpr size_t kMaxShelves = 64;          // Of a tenant: up to 83 KB each.

struct FreeMemory {
  void operator()(ShelvedBlock* blocks) const { std::free(blocks); }
};
using ShelvedBlocks = std::unique_ptr<ShelvedBlock[], FreeMemory>;

// A table under way: shared with whoever makes it, who may outlive the order.
struct Rebuild {
  ReuseCounts counts;
  uint8_t kept_buckets = kAgeBuckets;  // As LRU would have them.
  CellRanking by_value;
  CellRanking by_age;
  std::atomic<bool> done = false;

  void Make() {
    by_value.table = BuildReuseTable(counts, kept_buckets);
    by_age = RankByAge(by_value.table);
    done.store(true, std::memory_order_release);
  }
};

// What all orders begin with.
const std::shared_ptr<Rebuild>& FirstTable() {
  static const auto shared = [] {
    auto first = std::make_shared<Rebuild>();
    first->counts = ReuseModel().TakeCounts();
    first->Make();
    return first;
  }();
  return shared;
}

uint32_t Saturate(uint64_t number) {
  return static_cast<uint32_t>(std::min<uint64_t>(number, UINT32_MAX));
}

class Learned final : public EvictionOrder {
 public:
  Learned(const LearnedOrderOptions& options, ShelvedBlocks blocks)
      : options_(options), blocks_(std::move(blocks)), table_(FirstTable()) {
    ++stats_.tables;
  }

  bool Ask(const AskedChain& chain, AskProgress* progress, size_t max_blocks,
           int64_t now_nanos) override;

  void Add(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) override;
  void Touch(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) override;
  void SetLeaf(uint32_t ref, bool leaf) override;
  void Hold(uint32_t ref) override;
  void Unhold(uint32_t ref) override;
  void Reweigh(uint32_t ref, const BlockFeatures& features) override;
  void Remove(uint32_t ref) override;

  bool Contains(uint32_t ref) const override { return ref < limit_ && blocks_[ref].present(); }
  uint32_t Victim(uint16_t tenant) const override;
  uint32_t Victim(const std::function<bool(uint16_t tenant)>& may_pay) const override;
  double Value(uint32_t ref) const override;
  std::optional<double> ReuseProbability(uint64_t name) const override;
  uint32_t size() const override { return size_; }
  uint64_t bytes() const override;
  EvictionStats stats() const override;

 private:
  static size_t CellOf(const BlockRecord& record) {
    return size_t{record.block_class.number} * kAgeBuckets + record.bucket;
  }
  ShelvedBlock& Present(uint32_t ref) {
    AQ_CHECK(Contains(ref));
    return blocks_[ref];
  }
  const BlockRecord& RecordOf(uint32_t ref) const {
    AQ_CHECK(Contains(ref));
    return history_.at(blocks_[ref].record());
  }
  std::shared_ptr<const CellRanking> ranking() const {
    return {table_, takeover_.lru_decides() ? &table_->by_age : &table_->by_value};
  }

  static ShelfKind KindOf(const BlockFeatures& features);
  // The shelf for such blocks; where the tenant has too many already, the one most like it.
  uint32_t ShelfOf(const ShelfKind& kind);
  // Puts the block onto its shelf, or takes it off, as it may or may not go.
  void Settle(uint32_t ref);
  void TakeOff(uint32_t ref);
  void GrowOlder(int64_t now_nanos, size_t blocks);
  void DescribeUnasked(const BlockFeatures& features, BlockRecord* record) const;

  bool IsSameRequest(const AskedChain& chain, const BlockRecord& last, int64_t now_nanos) const;
  void BeginAsk(const AskedChain& chain, AskProgress* progress, int64_t now_nanos);
  void AskOne(const AskedChain& chain, const AskProgress& progress, uint32_t position,
              int64_t now_nanos);
  uint8_t KeptBuckets() const;
  template <class Has>
  uint32_t Leading(const AskedChain& chain, Has has) const;
  void Compare(const AskedChain& chain);
  void SetPages(uint64_t pages);
  void BeginTable();
  void TakeTable();

  void TrimGhosts();

  // The least valuable of a tenant's shelves; kNoVictim: there is nothing. A shelf whose ranking is
  // an older one is ranked anew, up to `may_rank` of them; the others are nearly right, too.
  uint32_t LeastOf(uint16_t tenant, int* may_rank) const;

  const LearnedOrderOptions options_;
  ShelvedBlocks blocks_;  // By ref; max_blocks of them, untouched from limit_ on.
  uint32_t limit_ = 0;
  uint32_t size_ = 0;
  uint64_t pages_ = 0;  // Of the blocks there are.
  BlockHistory history_;
  ReuseModel model_;
  BlockWeights weights_;
  std::shared_ptr<Rebuild> rebuild_;                     // Under way; null: none.
  std::shared_ptr<Rebuild> table_;                       // In use.
  mutable std::vector<std::unique_ptr<Shelf>> shelves_;  // Ranked when they are looked at.
  std::vector<std::vector<uint32_t>> shelves_of_;        // By tenant.
  uint32_t ghosts_ = 0;
  uint64_t blocks_since_table_ = 0;
  bool gave_up_ = false;             // Anything so far.
  int64_t asked_nanos_ = INT64_MIN;  // When anything was asked for last.
  RecentMean asked_bytes_;           // Of a block that is asked for, by what it saves.
  Takeover takeover_;
  EvictionStats stats_;
};

// --- Requests

// What a tier has, and what was used last, are whole prefixes; what is remembered nearly so.
template <class Has>
uint32_t Learned::Leading(const AskedChain& chain, Has has) const {
  uint32_t yes = 0;
  uint32_t no = chain.blocks + 1;
  uint32_t step = 1;
  while (no - yes > 1) {
    // Doubling first: most requests share either little or nearly all.
    uint32_t at = no > chain.blocks ? std::min(yes + step, chain.blocks) : yes + (no - yes) / 2;
    step *= 2;
    const uint32_t record = history_.Find(chain.name(at - 1));
    if (record != kNoRecord && has(history_.at(record))) {
      yes = at;
      if (yes == chain.blocks) break;
    } else {
      no = at;
    }
  }
  return yes;
}

void Learned::Compare(const AskedChain& chain) {
  const uint32_t hits = Leading(chain, [](const BlockRecord& record) { return !record.ghost(); });
  const uint32_t lru_hits =
      Leading(chain, [](const BlockRecord& record) { return bool{record.in_recent}; });
  weights_.NoteAsked(chain.saving, chain.blocks);
  const double asked_bytes = weights_.BytesOf(chain.saving, chain.blocks) / chain.blocks;
  asked_bytes_.Add(asked_bytes, chain.blocks);
  const double weighed_hits = weights_.BytesOf(chain.saving, hits) / asked_bytes_.mean;
  const double weighed_lru_hits = weights_.BytesOf(chain.saving, lru_hits) / asked_bytes_.mean;
  stats_.asked_blocks += chain.blocks;
  stats_.hits += hits;
  stats_.lru_hits += lru_hits;
  stats_.weighed_hits += weighed_hits;
  stats_.weighed_lru_hits += weighed_lru_hits;
  if (!options_.compare_with_lru) return;
  // What a missed block would have saved is not known: where blocks differ in that, nothing is
  // expected of them.
  const uint64_t missed = chain.saving.first_ms > 0 ? 0 : history_.missed_blocks();
  const bool uneven = std::abs(asked_bytes / asked_bytes_.mean - 1) > kUneven;
  takeover_.NoteRequest(chain.blocks, weighed_hits, weighed_lru_hits, missed, uneven);
}

EvictionStats Learned::stats() const {
  EvictionStats stats = stats_;
  stats.lru_decides = takeover_.lru_decides();
  stats.takeovers = takeover_.times();
  return stats;
}

// Engines ask again while they wait, and all ranks of one the same. A clock goes on in between, and
// what was asked for did not come and go: if it did, somebody else asks. The last block tells of
// all, as it is the first to go.
bool Learned::IsSameRequest(const AskedChain& chain, const BlockRecord& last,
                            int64_t now_nanos) const {
  return last.full_blocks == chain.full_blocks && !last.evicted && now_nanos > asked_nanos_ &&
         now_nanos - last.used_nanos < kSameNanos;
}

void Learned::BeginAsk(const AskedChain& chain, AskProgress* progress, int64_t now_nanos) {
  *progress = {.begun = true, .left = chain.blocks};
  const uint32_t last = history_.Find(chain.name(chain.blocks - 1));
  const bool same = last != kNoRecord && IsSameRequest(chain, history_.at(last), now_nanos);
  asked_nanos_ = now_nanos;
  if (same) {
    progress->left = 0;
    // What is there and asked for again may be a request all the same: LRU's time goes by with it.
    if (!history_.at(last).ghost()) takeover_.NoteRepeated(chain.blocks);
    return;
  }
  Compare(chain);
  blocks_since_table_ += chain.blocks;
  progress->known = Leading(chain, [](const BlockRecord&) { return true; });
  if (progress->known > 1) {
    const BlockRecord& end = history_.at(history_.Find(chain.name(progress->known - 1)));
    if (progress->known >= end.full_blocks && end.full_blocks > 0) {
      progress->turn = static_cast<uint8_t>(std::min(end.turn + 1, kMaxTurn));
      progress->gap_nanos = std::max<int64_t>(now_nanos - end.used_nanos, 0);
      progress->tokens_before = end.tokens;
    }
  }
  if (rebuild_ != nullptr) {
    TakeTable();
  } else if (blocks_since_table_ >= kBlocksPerTable) {
    BeginTable();
  }
}

void Learned::AskOne(const AskedChain& chain, const AskProgress& progress, uint32_t position,
                     int64_t now_nanos) {
  const uint64_t name = chain.name(position);
  uint32_t number = history_.Find(name);
  const bool fresh = number == kNoRecord;
  if (fresh) {
    number = history_.Add(name, chain.saving.block_bytes, now_nanos);
    history_.NoteGhost(number);
    ++ghosts_;
    if (position > 0) {
      const uint32_t parent = history_.Find(chain.name(position - 1));
      if (parent != kNoRecord && history_.at(parent).children < UINT8_MAX) {
        ++history_.at(parent).children;
      }
    }
  } else {
    const BlockRecord& known = history_.at(number);
    model_.Observe(known.block_class, known.bucket, true);
    if (known.missed()) takeover_.NoteMissedAsked();
    if (!known.ghost()) {
      if (!known.in_recent) takeover_.NoteExtraAsked();
      TakeOff(known.ref);
    }
    history_.Ask(number, now_nanos);
  }
  BlockRecord& record = history_.at(number);
  record.block_class = model_.Classify(
      {.position = position,
       .request_blocks = chain.blocks,
       .full_blocks = chain.full_blocks,
       .known_blocks = progress.known,
       .turn = progress.turn,
       .touches = record.touches,
       .children = record.children,
       .gap_nanos = progress.gap_nanos,
       .added_tokens = chain.input_tokens - std::min(progress.tokens_before, chain.input_tokens),
       .output_tokens = chain.output_tokens,
       .session = chain.session});
  record.turn = progress.turn & kMaxTurn;
  record.full_blocks = static_cast<uint16_t>(std::min<uint32_t>(chain.full_blocks, UINT16_MAX));
  record.tokens = Saturate(chain.input_tokens + chain.output_tokens);
  if (record.touches < UINT8_MAX) ++record.touches;
  if (!record.ghost()) Settle(record.ref);
}

bool Learned::Ask(const AskedChain& chain, AskProgress* progress, size_t max_blocks,
                  int64_t now_nanos) {
  if (chain.blocks == 0) return false;
  if (!progress->begun) BeginAsk(chain, progress, now_nanos);
  const auto count = static_cast<uint32_t>(std::min<size_t>(max_blocks, progress->left));
  GrowOlder(now_nanos, count);
  for (uint32_t i = 0; i < count; ++i) AskOne(chain, *progress, --progress->left, now_nanos);
  TrimGhosts();
  return progress->left > 0;
}

void Learned::GrowOlder(int64_t now_nanos, size_t blocks) {
  for (size_t step = 0; step < blocks * kStepsPerBlock; ++step) {
    const uint32_t number = history_.GrowOlder(now_nanos);
    if (number == kNoRecord) return;
    const BlockRecord& record = history_.at(number);
    model_.Observe(record.block_class, record.bucket - 1, false);
    if (record.ghost() || !blocks_[record.ref].listed) continue;
    shelves_[blocks_[record.ref].shelf]->Age(record.ref);
  }
}

// --- Tables

uint8_t Learned::KeptBuckets() const {
  if (!gave_up_) return kAgeBuckets;
  uint8_t kept = 1;
  while (kept < kAgeBuckets && AgeBucketEnd(kept - 1) < history_.oldest_recent_age_nanos()) ++kept;
  return kept;
}

void Learned::BeginTable() {
  blocks_since_table_ = 0;
  rebuild_ = std::make_shared<Rebuild>();
  rebuild_->kept_buckets = KeptBuckets();
  rebuild_->counts = model_.TakeCounts();
  if (options_.run_elsewhere) {
    options_.run_elsewhere([rebuild = rebuild_] { rebuild->Make(); });
  } else {
    rebuild_->Make();
    TakeTable();
  }
}

void Learned::TakeTable() {
  if (!rebuild_->done.load(std::memory_order_acquire)) return;
  table_ = std::move(rebuild_);
  rebuild_ = nullptr;
  ++stats_.tables;
}

// --- Blocks of the tier

ShelfKind Learned::KindOf(const BlockFeatures& features) {
  return {.tenant = features.tenant,
          .priority =
              static_cast<int8_t>(std::clamp(int{features.priority}, -kMaxPriority, kMaxPriority)),
          .owner = features.owner,
          .weight = WeightClassOf(features.saved_ms, features.bytes)};
}

uint32_t Learned::ShelfOf(const ShelfKind& kind) {
  if (shelves_of_.size() <= kind.tenant) shelves_of_.resize(size_t{kind.tenant} + 1);
  std::vector<uint32_t>& own = shelves_of_[kind.tenant];
  for (const uint32_t number : own) {
    if (shelves_[number]->kind() == kind) return number;
  }
  if (own.size() == kMaxShelves) {
    return *std::ranges::min_element(own, {}, [&](uint32_t number) {
      const ShelfKind& other = shelves_[number]->kind();
      return std::pair(std::abs(other.priority - kind.priority),
                       std::abs(other.weight - kind.weight));
    });
  }
  own.push_back(static_cast<uint32_t>(shelves_.size()));
  shelves_.push_back(std::make_unique<Shelf>(kind, blocks_.get(), &history_));
  shelves_.back()->Rank(ranking());
  return own.back();
}

void Learned::Settle(uint32_t ref) {
  const ShelvedBlock& block = blocks_[ref];
  const bool may_go = block.leaf && block.holds == 0;
  if (may_go == block.listed) return;
  if (may_go) {
    shelves_[block.shelf]->Insert(ref);
  } else {
    shelves_[block.shelf]->Erase(ref);
  }
}

void Learned::TakeOff(uint32_t ref) {
  if (blocks_[ref].listed) shelves_[blocks_[ref].shelf]->Erase(ref);
}

// A block that nobody asked for yet goes on from one that somebody did: it is part of the answer,
// and fares as the request does.
void Learned::DescribeUnasked(const BlockFeatures& features, BlockRecord* record) const {
  const uint32_t parent =
      features.parent_name == 0 ? kNoRecord : history_.Find(features.parent_name);
  if (parent == kNoRecord) {
    record->block_class = model_.Classify({.position = features.position,
                                           .request_blocks = features.position + 1,
                                           .full_blocks = features.position + 1,
                                           .touches = features.turns,
                                           .children = features.children,
                                           .session = features.session});
    return;
  }
  record->block_class = history_.at(parent).block_class;
  record->turn = history_.at(parent).turn;
  record->tokens = history_.at(parent).tokens;
  record->full_blocks =
      static_cast<uint16_t>(std::min<uint32_t>(features.position + 1, UINT16_MAX));
}

void Learned::Add(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) {
  AQ_CHECK(ref < options_.max_blocks && !Contains(ref));
  GrowOlder(now_nanos, 1);
  uint32_t number = features.name == 0 ? kNoRecord : history_.Find(features.name);
  if (number != kNoRecord && history_.at(number).ghost()) {
    --ghosts_;
  } else {
    // Two blocks may have one name, of which only the first is found.
    number = history_.Add(number == kNoRecord ? features.name : 0, features.bytes, now_nanos);
    DescribeUnasked(features, &history_.at(number));
  }
  history_.Admit(number, ref);
  const ShelfKind kind = KindOf(features);
  weights_.Note(kind.owner, kind.weight);
  blocks_[ref] = {.record_plus_one = number + 1, .shelf = ShelfOf(kind), .leaf = true};
  limit_ = std::max(limit_, ref + 1);
  ++size_;
  SetPages(pages_ + history_.at(number).pages);
  Settle(ref);
}

void Learned::Touch(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) {
  ShelvedBlock& block = Present(ref);
  AQ_CHECK(shelves_[block.shelf]->kind().tenant == features.tenant);
  GrowOlder(now_nanos, 1);
  TakeOff(ref);
  const ShelfKind kind = KindOf(features);
  weights_.Note(kind.owner, kind.weight);
  if (shelves_[block.shelf]->kind() != kind) block.shelf = ShelfOf(kind);
  BlockRecord& record = history_.at(block.record());
  if (record.used_nanos < now_nanos) {
    // Used by who did not ask: a use all the same, unless it is of the request just now.
    if (now_nanos - record.used_nanos > kSameNanos) {
      model_.Observe(record.block_class, record.bucket, true);
    }
    history_.Use(block.record(), now_nanos);
  }
  if (features.session != SessionHint::kNone) {
    record.block_class = model_.WithSession(record.block_class, features.session);
  }
  Settle(ref);
}

void Learned::Reweigh(uint32_t ref, const BlockFeatures& features) {
  ShelvedBlock& block = Present(ref);
  const ShelfKind kind = KindOf(features);
  if (shelves_[block.shelf]->kind() == kind) return;
  const uint32_t shelf = ShelfOf(kind);
  if (shelf == block.shelf) return;
  TakeOff(ref);
  block.shelf = shelf;
  Settle(ref);
}

void Learned::SetLeaf(uint32_t ref, bool leaf) {
  Present(ref).leaf = leaf;
  Settle(ref);
}

void Learned::Hold(uint32_t ref) {
  AQ_CHECK(Present(ref).holds != kMaxHolds);
  ++blocks_[ref].holds;
  Settle(ref);
}

void Learned::Unhold(uint32_t ref) {
  AQ_CHECK(Present(ref).holds > 0);
  --blocks_[ref].holds;
  Settle(ref);
}

void Learned::Remove(uint32_t ref) {
  const uint32_t number = Present(ref).record();
  TakeOff(ref);
  blocks_[ref] = {};
  const BlockRecord& record = history_.at(number);
  gave_up_ = true;
  --size_;
  SetPages(pages_ - record.pages);
  if (!record.in_recent) takeover_.NoteExtraGivenUp();
  history_.GiveUp(number);
  if (record.name == 0) {
    history_.Remove(number);
  } else {
    ++ghosts_;
  }
  TrimGhosts();
}

void Learned::SetPages(uint64_t pages) {
  pages_ = pages;
  takeover_.NoteMissedRightly(history_.SetRecent(pages_));
}

void Learned::TrimGhosts() {
  while (ghosts_ > kLeastGhosts + kGhostsPerBlock * size_) {
    const uint32_t oldest = history_.OldestGhost();
    if (oldest == kNoRecord) return;
    history_.Remove(oldest);
    --ghosts_;
  }
}

// --- Victims

double Learned::Value(uint32_t ref) const {
  const BlockRecord& record = RecordOf(ref);
  const ShelfKind& kind = shelves_[blocks_[ref].shelf]->kind();
  if (takeover_.lru_decides()) {
    return static_cast<double>(record.used_nanos + kind.priority * kPriorityNanos);
  }
  // Of those that are alike the one used longest ago is worth the least, by a trifle.
  const auto age = static_cast<double>(history_.latest_nanos() - record.used_nanos);
  const double hits = table_->by_value.table.value[CellOf(record)] / (1 + kAgeTrifle * age);
  const double value = hits * weights_.Of(kind.owner, kind.weight);
  return kind.priority == 0 ? value : value * std::pow(kPriorityFactor, kind.priority);
}

std::optional<double> Learned::ReuseProbability(uint64_t name) const {
  const uint32_t record = history_.Find(name);
  if (record == kNoRecord) return std::nullopt;
  return table_->by_value.table.reuse[CellOf(history_.at(record))];
}

uint32_t Learned::LeastOf(uint16_t tenant, int* may_rank) const {
  uint32_t least = kNoVictim;
  for (const uint32_t number : shelves_of_[tenant]) {
    Shelf& shelf = *shelves_[number];
    if (shelf.empty()) continue;
    if (*may_rank > 0 && shelf.ranking() != ranking().get()) {
      shelf.Rank(ranking());
      --*may_rank;
    }
    const uint32_t first = shelf.Least();
    if (least == kNoVictim || Value(first) < Value(least)) least = first;
  }
  return least;
}

uint32_t Learned::Victim(uint16_t tenant) const {
  if (tenant >= shelves_of_.size()) return kNoVictim;
  int may_rank = kMaxRanked;
  return LeastOf(tenant, &may_rank);
}

uint32_t Learned::Victim(const std::function<bool(uint16_t tenant)>& may_pay) const {
  uint32_t least = kNoVictim;
  int may_rank = kMaxRanked;
  for (size_t tenant = 0; tenant < shelves_of_.size(); ++tenant) {
    const uint32_t own = LeastOf(static_cast<uint16_t>(tenant), &may_rank);
    if (own == kNoVictim || (least != kNoVictim && Value(own) >= Value(least))) continue;
    if (may_pay(static_cast<uint16_t>(tenant))) least = own;
  }
  return least;
}

uint64_t Learned::bytes() const {
  uint64_t bytes = sizeof(Learned) + sizeof(Rebuild) * (rebuild_ == nullptr ? 1 : 2);
  bytes += uint64_t{limit_} * sizeof(ShelvedBlock) + history_.bytes();
  for (const auto& shelf : shelves_) bytes += shelf->bytes();
  return bytes;
}

}  // namespace

Result<std::unique_ptr<EvictionOrder>> NewLearnedOrder(const LearnedOrderOptions& options) {
  if (options.max_blocks == 0) return Status(Code::kInvalid, "max_blocks is zero");
  // calloc gives fresh zero pages for what is large: they cost nothing before they are touched.
  ShelvedBlocks blocks(
      static_cast<ShelvedBlock*>(std::calloc(options.max_blocks, sizeof(ShelvedBlock))));
  if (blocks == nullptr) return Status(Code::kNoSpace, "no memory for the eviction order");
  return std::unique_ptr<EvictionOrder>(std::make_unique<Learned>(options, std::move(blocks)));
}

}  // namespace aquifer
