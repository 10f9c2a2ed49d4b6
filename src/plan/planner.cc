#include "plan/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <utility>

#include "base/text/size_text.h"
#include "plan/advice.h"

namespace aquifer {
namespace {

constexpr size_t kFirstRequests = 1000;
constexpr size_t kFirstBlocks = size_t{1} << 20;
constexpr uint64_t kMaxPromptTokens = 1'000'000'000;
constexpr size_t kMostSizes = 4;  // Of blocks, that are named.
// Sizes that curves are drawn over, in doublings of a block: from 16 blocks to 64 million.
constexpr int kLeastDoubling = 4;
constexpr int kMostDoubling = 26;
constexpr size_t kHitPoints = 96;
constexpr double kFirstDramBytes = 512.0 * (uint64_t{1} << 30);  // Where there is none yet.
constexpr double kFirstNvmeBytes = 3.84e12;

// All block sizes that fit the lengths seen so far.
struct SizeRange {
  uint64_t least = 1;
  uint64_t most = UINT64_MAX;

  void Narrow(uint64_t low, uint64_t high) {
    least = std::max(least, low);
    most = std::min(most, high);
  }
  // A power of two where one fits, else the least; 0: none fits.
  uint64_t Choose() const {
    if (least > most) return 0;
    const uint64_t power = std::bit_ceil(least);
    return power <= most ? power : least;
  }
};

// Where all prompts are whole blocks, as a node records them, and of a few sizes: those.
std::set<uint64_t> SizesIfWhole(const std::vector<TraceRequest>& requests) {
  std::set<uint64_t> sizes;
  for (const TraceRequest& request : requests) {
    const uint64_t blocks = request.block_ids.size();
    if (blocks == 0) continue;
    if (request.input_tokens % blocks != 0 || sizes.size() > kMostSizes) return {};
    sizes.insert(request.input_tokens / blocks);
  }
  return sizes;
}

// "1TiB more DRAM a node"; of what has no size: `what`.
std::string PurchaseText(const std::string& what, const TierChoice& has, const TierChoice& buys) {
  const double more = buys.dram_bytes - has.dram_bytes + buys.nvme_bytes - has.nvme_bytes;
  if (more <= 0) return what;
  return fmt::format("{} more {} a node", SizeText(static_cast<uint64_t>(more)), what);
}

// Eight to each doubling.
size_t LengthClass(size_t blocks) {
  const int width = std::bit_width(blocks);
  const size_t shift = width > 4 ? static_cast<size_t>(width - 4) : 0;
  return shift * 8 + (blocks >> shift);
}

}  // namespace

struct Planner::Variant {
  TierChoice choice;
  bool engine_keeps;
  Tally tally;
};

Planner::Planner(const PlannerOptions& options) : options_(options) {}
Planner::~Planner() = default;

Status Planner::SetTextBlocks(uint64_t block_tokens) {
  const bool differs = facts_.requests > 0 && block_tokens != text_block_tokens_;
  if (differs && options_.block_tokens == 0) {
    return Status(Code::kInvalid,
                  fmt::format("{} after others: their blocks have different sizes. Next step: plan "
                              "for each form by itself; or, where hashes name blocks of {} tokens "
                              "too, say --block-tokens {}",
                              block_tokens > 0 ? "a prompt as a text" : "hashes of blocks",
                              std::max(block_tokens, text_block_tokens_),
                              std::max(block_tokens, text_block_tokens_)));
  }
  text_block_tokens_ = block_tokens;
  if (block_tokens > 0) facts_.prompts_are_texts = true;
  return Status();
}

Status Planner::Add(const TraceRequest& request) {
  if (request.input_tokens > kMaxPromptTokens) {
    return Status(Code::kInvalid,
                  fmt::format("a prompt of {} tokens is longer than any; write at most {}",
                              request.input_tokens, kMaxPromptTokens));
  }
  if (facts_.requests++ == 0) first_ms_ = request.timestamp_ms;
  last_ms_ = std::max(last_ms_, request.timestamp_ms);
  if (begun_) {
    Use(request);
    return Status();
  }
  first_blocks_ += request.block_ids.size();
  first_.push_back(request);
  if (first_.size() < kFirstRequests && first_blocks_ < kFirstBlocks) return Status();
  return Begin();
}

// Either the blocks cover the prompt, the last one in part, as in Mooncake's traces; or only whole
// blocks are named, as engines hash them.
Status Planner::LearnBlockTokens() {
  SizeRange covering;
  SizeRange whole;
  bool any = false;
  for (const TraceRequest& request : first_) {
    const uint64_t blocks = request.block_ids.size();
    const uint64_t tokens = request.input_tokens;
    if (blocks == 0 || tokens < blocks) continue;
    any = true;
    covering.Narrow((tokens + blocks - 1) / blocks,
                    blocks == 1 ? UINT64_MAX : (tokens - 1) / (blocks - 1));
    whole.Narrow(tokens / (blocks + 1) + 1, tokens / blocks);
  }
  if (!any) {
    facts_.block_tokens = 512;  // No request has blocks: nothing depends on it.
    return Status();
  }
  facts_.block_tokens = covering.Choose();
  if (facts_.block_tokens == 0) facts_.block_tokens = whole.Choose();
  if (facts_.block_tokens > 0) return Status();
  const std::set<uint64_t> sizes = SizesIfWhole(first_);
  if (!sizes.empty()) {
    return Status(
        Code::kInvalid,
        fmt::format("the first {} requests have blocks of {} tokens, as of several models "
                    "or layouts. Next step: give the lines of each to a plan of its own; "
                    "or say with --block-tokens which size counts",
                    first_.size(), fmt::join(sizes, " and ")));
  }
  return Status(Code::kInvalid,
                fmt::format("no number of tokens per block fits the first {} requests: their "
                            "lengths and numbers of blocks contradict each other. Next step: say "
                            "it with --block-tokens",
                            first_.size()));
}

Status Planner::Begin() {
  begun_ = true;
  facts_.block_tokens = options_.block_tokens > 0 ? options_.block_tokens : text_block_tokens_;
  if (facts_.block_tokens == 0) AQ_RETURN_IF_ERROR(LearnBlockTokens());
  facts_.block_bytes =
      static_cast<double>(facts_.block_tokens) * options_.fleet.model.kv_bytes_per_token;
  bool whole_blocks = false;
  for (const TraceRequest& request : first_) {
    if (request.block_ids.empty()) continue;
    whole_blocks = request.input_tokens == request.block_ids.size() * facts_.block_tokens;
    if (!whole_blocks) break;
  }
  facts_.outputs_followed = options_.outputs == OutputRule::kStored ||
                            (options_.outputs == OutputRule::kAuto && whole_blocks);
  stacks_ =
      std::make_unique<FleetStacks>(FleetStacksOptions{.nodes = options_.fleet.nodes,
                                                       .routing = options_.fleet.routing,
                                                       .block_tokens = facts_.block_tokens,
                                                       .follow_outputs = facts_.outputs_followed,
                                                       .stack = options_.stack});
  AQ_RETURN_IF_ERROR(BeginLearned());
  AddVariants();
  for (const TraceRequest& request : first_) Use(request);
  first_ = {};
  return Status();
}

Status Planner::BeginLearned() {
  const TierSizes sizes = SizesOf(options_.fleet, ChoiceOf(options_.fleet), facts_.block_bytes);
  const double largest = std::max(sizes.dram, sizes.nvme);
  if (options_.learned_references == 0 || options_.fleet.nodes > 1 || largest < 1) return Status();
  AQ_ASSIGN_OR_RETURN(learned_, LearnedTier::New({.capacity_blocks = static_cast<uint64_t>(largest),
                                                  .block_tokens = facts_.block_tokens,
                                                  .max_references = options_.learned_references}));
  return Status();
}

size_t Planner::AddVariant(const TierChoice& choice, bool engine_keeps) {
  const auto same = std::find_if(variants_.begin(), variants_.end(), [&](const Variant& variant) {
    return variant.choice == choice && variant.engine_keeps == engine_keeps;
  });
  if (same != variants_.end()) return static_cast<size_t>(same - variants_.begin());
  TierSizes sizes = SizesOf(options_.fleet, choice, facts_.block_bytes);
  if (!engine_keeps) sizes.engine = 0;
  variants_.push_back(
      {choice, engine_keeps, Tally(TallyOptionsOf(options_.fleet, facts_.block_tokens), sizes)});
  return variants_.size() - 1;
}

void Planner::AddVariants() {
  const TierChoice configured = ChoiceOf(options_.fleet);
  without_ = AddVariant({});
  configured_ = AddVariant(configured);
  tiers_alone_ = AddVariant(configured, false);
  for (int doubling = kLeastDoubling; doubling <= kMostDoubling; ++doubling) {
    const double bytes = std::ldexp(facts_.block_bytes, doubling);
    by_dram_.push_back(AddVariant({.dram_bytes = bytes}));
    by_nvme_.push_back(AddVariant({.dram_bytes = configured.dram_bytes, .nvme_bytes = bytes}));
  }
  TierChoice growing{.dram_bytes = configured.dram_bytes};
  by_stage_.push_back(AddVariant(growing));
  growing.nvme_bytes = configured.nvme_bytes;
  by_stage_.push_back(AddVariant(growing));
  growing.peers = options_.fleet.nodes > 1;
  by_stage_.push_back(AddVariant(growing));
  growing.durable = true;
  by_stage_.push_back(AddVariant(growing));

  AddPurchases(configured);
}

// More DRAM and more NVMe: as much again as there is, and up to each larger size that curves are
// drawn over. The best size of each is named. Whatever the fleet has besides stays.
void Planner::AddPurchases(const TierChoice& configured) {
  const auto buy = [this](std::string what, const TierChoice& choice) {
    const bool another_size = !purchases_.empty() && purchases_.back().what == what;
    if (!another_size) purchases_.push_back({.what = std::move(what), .variants = {}});
    purchases_.back().variants.push_back(AddVariant(choice));
  };
  const auto buy_sizes = [&](std::string_view what, double TierChoice::* size, double first) {
    TierChoice more = configured;
    more.*size += configured.*size > 0 ? configured.*size : first;
    buy(std::string(what), more);
    for (int doubling = kLeastDoubling; doubling <= kMostDoubling; ++doubling) {
      more.*size = std::ldexp(facts_.block_bytes, doubling);
      if (more.*size > configured.*size) buy(std::string(what), more);
    }
  };
  buy_sizes("DRAM", &TierChoice::dram_bytes, kFirstDramBytes);
  buy_sizes("NVMe", &TierChoice::nvme_bytes, kFirstNvmeBytes);
  TierChoice more = configured;
  if (options_.fleet.nodes > 1 && !configured.peers) {
    more.peers = true;
    buy("a network between the nodes (peers)", more);
    more = configured;
  }
  if (!configured.durable) {
    more.durable = true;
    buy("a durable store", more);
  }
}

// Blocks behind the end of the prompt belong to nothing.
TraceRequest Planner::Cut(const TraceRequest& request) {
  TraceRequest cut = request;
  const uint64_t most = (request.input_tokens + facts_.block_tokens - 1) / facts_.block_tokens;
  facts_.blocks_cut += cut.block_ids.size() - most;
  cut.block_ids.resize(most);
  return cut;
}

void Planner::Use(const TraceRequest& request) {
  const uint64_t most = (request.input_tokens + facts_.block_tokens - 1) / facts_.block_tokens;
  if (request.block_ids.size() > most) {
    ++facts_.misfits;
    Use(Cut(request));
    return;
  }
  // Whole blocks alone, or one that is not full as well.
  const bool fits = request.block_ids.size() >= request.input_tokens / facts_.block_tokens;
  if (!fits && !request.block_ids.empty()) ++facts_.misfits;
  const auto blocks = static_cast<double>(request.block_ids.size());
  facts_.prompt_tokens += static_cast<double>(request.input_tokens);
  facts_.output_tokens += static_cast<double>(request.output_tokens);
  facts_.block_references += blocks;
  const double weight = std::ldexp(1.0, static_cast<int>(stacks_->rate_shift()));
  stacks_->Ask(request, &depths_);
  if (learned_ != nullptr) {
    for (const auto& [from, to] : stacks_->named()) learned_->Rename(from, to);
    learned_->Ask(request, stacks_->used());
  }
  for (size_t i = 0; i < depths_.own.size(); ++i) {
    if (depths_.own[i] == LruStack::kUnsampled) continue;
    followed_references_ += weight;
    if (depths_.local[i] < LruStack::kNever) histogram_.Add(depths_.local[i], weight);
  }
  // Short prompts are less likely to have a block that is followed: the next one of about the same
  // length that has one stands for those that have not.
  double& waiting = waiting_[LengthClass(request.block_ids.size())];
  waiting += 1;
  if (!depths_.known) return;
  tallied_references_ += waiting * blocks;
  tallied_tokens_ += waiting * static_cast<double>(request.input_tokens);
  for (Variant& variant : variants_) variant.tally.Add(request, depths_, waiting);
  waiting = 0;
}

Outcome Planner::OutcomeOfVariant(size_t variant) const {
  const OutcomeScale scale{
      .seconds = facts_.seconds,
      .block_bytes = facts_.block_bytes,
      .block_references = tallied_references_,
      .distinct_blocks = facts_.distinct_blocks,
      .weight = tallied_tokens_ > 0 ? facts_.prompt_tokens / tallied_tokens_ : 1};
  return OutcomeOf(options_.fleet, variants_[variant].choice, variants_[variant].tally.totals(),
                   scale);
}

// From the last size that does nothing to the first that holds everything. Where no size does
// anything, the smaller ones are drawn too: what they cost is worth seeing.
std::vector<Outcome> Planner::Drawn(const std::vector<size_t>& variants,
                                    double TierChoice::* size) const {
  std::vector<Outcome> drawn;
  const double everything = facts_.distinct_blocks * facts_.block_bytes;
  for (const size_t variant : variants) {
    const bool enough = drawn.size() > 1 && drawn.back().choice.*size > everything;
    if (enough) break;
    drawn.push_back(OutcomeOfVariant(variant));
  }
  const auto does_something =
      std::find_if(drawn.begin(), drawn.end(), [&drawn](const Outcome& outcome) {
        return outcome.gpu_seconds != drawn.front().gpu_seconds ||
               outcome.hit_rate != drawn.front().hit_rate;
      });
  if (does_something != drawn.end()) drawn.erase(drawn.begin(), does_something - 1);
  return drawn;
}

// Sampling gives hot blocks too much or too little; they are hits at every size, so what is missing
// or too much of the references is added there (SHARDS-adj).
double Plan::HitRate(double blocks) const {
  if (trace.block_references <= 0) return 0;
  const double hits = depths.UpTo(blocks) + (trace.block_references - depth_references);
  return std::clamp(hits / trace.block_references, 0.0, 1.0);
}

void Planner::FillHits(Plan* plan) const {
  plan->depths = histogram_;
  plan->depth_references = followed_references_;
  const double distinct = std::max(facts_.distinct_blocks, 1.0);
  plan->hit_rate_most = plan->HitRate(LruStack::kNever);
  const double most = distinct / options_.fleet.nodes;
  const double least = std::min(16.0, most);
  for (size_t i = 0; i < kHitPoints; ++i) {
    const double blocks = least * std::pow(most / least, static_cast<double>(i) / (kHitPoints - 1));
    plan->hits.push_back({.blocks = blocks,
                          .bytes = blocks * facts_.block_bytes,
                          .share = blocks * options_.fleet.nodes / distinct,
                          .hit_rate = plan->HitRate(blocks)});
  }
  plan->knee = FindKnee(plan->hits);
}

void Planner::FillStages(Plan* plan) const {
  constexpr Stage kOrder[] = {Stage::kDram, Stage::kNvme, Stage::kPeers, Stage::kDurable};
  const TierChoice configured = ChoiceOf(options_.fleet);
  const bool in_fleet[] = {configured.dram_bytes > 0, configured.nvme_bytes > 0, configured.peers,
                           configured.durable};
  Outcome before = plan->without;
  for (size_t i = 0; i < by_stage_.size(); ++i) {
    StagePlan stage{.stage = kOrder[i], .in_fleet = in_fleet[i]};
    stage.possible = kOrder[i] == Stage::kPeers ? options_.fleet.nodes > 1
                     : i < 2                    ? in_fleet[i]
                                                : true;
    stage.outcome = OutcomeOfVariant(by_stage_[i]);
    stage.saved_month = stage.outcome.dollars_saved_month - before.dollars_saved_month;
    stage.cost_month = stage.outcome.dollars_cost_month - before.dollars_cost_month;
    before = stage.outcome;
    plan->stages.push_back(stage);
  }
}

void Planner::FillPurchases(Plan* plan) const {
  for (const PurchaseSizes& sizes : purchases_) {
    Outcome best = OutcomeOfVariant(sizes.variants.front());
    for (const size_t variant : sizes.variants) {
      Outcome outcome = OutcomeOfVariant(variant);
      if (outcome.net_month() > best.net_month()) best = std::move(outcome);
    }
    Purchase purchase{.what = PurchaseText(sizes.what, plan->configured.choice, best.choice),
                      .outcome = std::move(best)};
    purchase.net_month = purchase.outcome.net_month() - plan->configured.net_month();
    plan->purchases.push_back(std::move(purchase));
  }
  std::sort(plan->purchases.begin(), plan->purchases.end(),
            [](const Purchase& a, const Purchase& b) { return a.net_month > b.net_month; });
}

Result<Plan> Planner::Finish() {
  if (facts_.requests == 0) {
    return Status(Code::kInvalid,
                  "there is no request in it. Next step: give a trace as "
                  "docs/formats/trace.md has it");
  }
  if (!begun_) AQ_RETURN_IF_ERROR(Begin());
  facts_.seconds = static_cast<double>(last_ms_ - first_ms_) / 1e3;
  facts_.distinct_blocks = stacks_->distinct_blocks();
  facts_.sampled_one_in = uint32_t{1} << std::min(stacks_->rate_shift(), 31u);
  facts_.memory_bytes = stacks_->bytes();
  Plan plan{.fleet = options_.fleet, .trace = facts_};
  FillHits(&plan);
  plan.without = OutcomeOfVariant(without_);
  plan.configured = OutcomeOfVariant(configured_);
  plan.tiers_hit_rate = OutcomeOfVariant(tiers_alone_).hit_rate;
  if (learned_ != nullptr) {
    plan.learned = LearnedPlan{.hit_rate = learned_->hit_rate(),
                               .references = learned_->references(),
                               .whole = learned_->runs()};
  }
  plan.by_dram = Drawn(by_dram_, &TierChoice::dram_bytes);
  plan.by_nvme = Drawn(by_nvme_, &TierChoice::nvme_bytes);
  FillStages(&plan);
  FillPurchases(&plan);
  Advise(&plan);
  return plan;
}

}  // namespace aquifer
