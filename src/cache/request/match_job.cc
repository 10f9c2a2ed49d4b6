#include "cache/request/match_job.h"

#include <algorithm>
#include <span>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kMatchSlice = 512;
constexpr size_t kProbedSlice = 128;  // Where each is looked up on NVMe too: a drive is out.
constexpr size_t kAskSlice = 64;      // Of which each takes up to a microsecond.
constexpr size_t kFillingSlice = 64;
// The eviction orders hear of so many blocks of a chain; what is behind them fares like these.
constexpr size_t kMaxAsked = 4096;
// Of a request that is itself waited for: a chain takes a store two or three round trips.
constexpr double kMaxAskMs = 100;

// An engine reads DRAM by copying from it: about what one core moves. It is cheap next to any
// prefill, and only its order of magnitude matters.
constexpr TierCost kDramCost{.latency_ms = 0.02, .ms_per_byte = 1e3 / 10e9, .ms_per_op = 0.0005};

}  // namespace

void MatchJob::Reset() {
  refs_.clear();
  names_.clear();
  run_costs_.clear();
  asked_orders_ = {};
  touching_ = further_ = waiting_ = false;
  matched_ = estimated_ = further_begin_ = 0;
  until_nanos_ = 0;
  MatchRequest& match = asked();
  match.matched = 0;
  match.runs.clear();
  match.pays = 0;
  match.load_ms = 0;
  match.recompute_ms = 0;
  const uint16_t layout = cache().clients.LayoutOf(client(), match.chain.layout);
  const uint32_t tokens = cache().catalog.layout(layout).tokens_per_block;
  tokens_per_block_ = tokens;
  saving_ = cache().residency.SavingInDram(tenant(), layout, match.chain.group);
  costs_ = {kDramCost, cache().nvme_speed.Cost(cache().NowNanos())};
  for (size_t i = 0; cache().durable != nullptr && i < cache().durable->size(); ++i) {
    costs_[kTierFirstDurable + i] = cache().durable->Cost(static_cast<uint8_t>(i));
  }
  inquiry_.Reset(cache().durable, NamesOf(match.chain));
  prefill_ = PrefillOrDefault(
      cache().worth, cache().prefill.Find(cache().clients.PrefillNameOf(client(), layout)));
  worth_.emplace(cache().worth,
                 WorthQuery{.tiers = costs_,
                            .tokens_before = static_cast<uint32_t>(match.have * tokens),
                            .tokens_total = static_cast<uint32_t>(match.chain.keys.size() * tokens),
                            .prefill = prefill_});
}

void MatchJob::Cancel() {
  request()->status = Status(Code::kLate);
  End(0);
}

bool MatchJob::AddRun(size_t first, uint8_t cost, RunState state) {
  std::vector<MatchRun>& runs = asked().runs;
  if (!runs.empty() && run_costs_.back() == cost && runs.back().state == state) {
    ++runs.back().count;
    return true;
  }
  if (runs.size() == kMaxMatchRuns) return false;
  const auto tier = static_cast<TierKind>(std::min(cost, kTierFirstDurable));
  runs.push_back({.first = first, .count = 1, .tier = tier, .state = state, .estimated_ms = 0});
  run_costs_.push_back(cost);
  return true;
}

void MatchJob::Run() {
  if (waiting_) return;
  if (touching_) return TouchSlice();
  if (further_) return LookFurther();
  MatchRequest& match = asked();
  const ChainSlice& chain = match.chain;
  const size_t begin = refs_.size();
  const size_t from = match.have + matched_;
  const bool probe = cache().drives.usable() && !cache().drives.tier()->AllInService();
  const size_t steps = std::min(probe ? kProbedSlice : kMatchSlice, chain.keys.size() - from);
  refs_.resize(begin + steps);
  const uint8_t tiers =
      static_cast<uint8_t>(TierBit(kTierDram) | (cache().drives.usable() ? TierBit(kTierNvme) : 0));
  const MatchResult found = cache().residency.index().Match({.tenant = tenant(),
                                                             .group = chain.group,
                                                             .part = chain.part,
                                                             .tiers = tiers,
                                                             .chain = chain.keys,
                                                             .from = from,
                                                             .max_steps = steps,
                                                             .unix_seconds = cache().NowUnix()},
                                                            std::span(refs_).subspan(begin));
  refs_.resize(begin + found.matched);
  for (size_t i = begin; i < refs_.size(); ++i) {
    const BlockEntry& entry = cache().residency.at(refs_[i]);
    const uint8_t tier = entry.in_tier(kTierDram) ? kTierDram : kTierNvme;
    if (probe && tier == kTierNvme && !cache().Reachable(refs_[i])) {
      refs_.resize(i);
      return EndHere();
    }
    const bool asked_for = entry.layout == cache().clients.LayoutOf(client(), chain.layout);
    if (asked_for && AddRun(match.have + matched_, tier, RunState::kReady)) {
      ++matched_;
      continue;
    }
    refs_.resize(i);
    return Finish();
  }
  if (found.end == MatchEnd::kSlice && from + found.matched < chain.keys.size()) {
    if (!match.runs.empty()) EstimateUpTo(match.runs.size() - 1);  // The last one may go on.
    return RunAgain();
  }
  if (found.end == MatchEnd::kFilling) AddFillingRun(match.have + matched_);
  if (found.end == MatchEnd::kMissing) return EndHere();
  Finish();
}

// This host has no more of it.
void MatchJob::EndHere() {
  if (!WorthAsking()) return Finish();
  further_ = true;
  further_begin_ = matched_;
  LookFurther();
}

// What the durable tiers have of the rest, if they say so in time. Waiting for them gains at most
// what recomputing the rest takes more than loading it.
bool MatchJob::WorthAsking() {
  if (cache().durable == nullptr || !cache().durable->usable()) return false;
  if (until_nanos_ != 0) return true;
  double gain_ms = kMaxAskMs;
  if (prefill_) {
    const MatchRequest& match = asked();
    const LayoutRecord& layout =
        cache().catalog.layout(cache().clients.LayoutOf(client(), match.chain.layout));
    const size_t before = match.have + matched_;
    const auto rest = static_cast<double>(match.chain.keys.size() - before);
    const double recompute_ms = prefill_->Milliseconds(
        rest * tokens_per_block_, static_cast<double>(before) * tokens_per_block_);
    const auto bytes = static_cast<double>(layout.groups[match.chain.group].block_bytes);
    double load_ms = 1e18;
    for (size_t i = 0; i < cache().durable->size(); ++i) {
      const TierCost& cost = costs_[kTierFirstDurable + i];
      load_ms =
          std::min(load_ms, cost.latency_ms + rest * (bytes * cost.ms_per_byte + cost.ms_per_op));
    }
    gain_ms = std::min(gain_ms, recompute_ms - load_ms);
  }
  if (gain_ms <= 0) return false;
  until_nanos_ = cache().NowNanos() + static_cast<int64_t>(gain_ms * 1e6);
  return true;
}

void MatchJob::LookFurther() {
  MatchRequest& match = asked();
  for (size_t step = 0; step < kMatchSlice; ++step) {
    const size_t i = match.have + matched_;
    const DurablePlace place = i == match.chain.keys.size() ? DurablePlace{} : PlaceOf(i);
    if (place.answer == Presence::Answer::kUnknown) return WaitForAnswer();
    if (place.answer == Presence::Answer::kAbsent) {
      // Behind a gap there may be more of it here.
      further_ = false;
      return matched_ > further_begin_ && i < match.chain.keys.size() ? RunAgain() : Finish();
    }
    const auto cost = static_cast<uint8_t>(kTierFirstDurable + place.tier);
    if (!AddRun(i, cost, RunState::kReady)) return Finish();
    ++matched_;
  }
  cache().scheduler.CountEntries(kMatchSlice);
  RunAgain();
}

DurablePlace MatchJob::PlaceOf(size_t i) {
  return inquiry_.At(i, [this, run = run()] {
    if (this->run() != run || !std::exchange(waiting_, false)) return;
    Run();
  });
}

void MatchJob::WaitForAnswer() {
  waiting_ = true;
  if (timer_run_ != run()) {
    timer_run_ = run();
    WakeAt(until_nanos_);
  } else if (IsOver(until_nanos_)) {
    OnTimer();  // It has been spent on an earlier answer.
  }
}

// The answer is remembered when it comes: who asks again has it.
void MatchJob::OnTimer() {
  if (!std::exchange(waiting_, false)) return;
  MatchRequest& match = asked();
  const size_t first = match.have + matched_;
  if (AddRun(first, kTierFirstDurable, RunState::kPending)) {
    match.runs.back().count = match.chain.keys.size() - first;
    match.runs.back().estimated_ms = costs_[kTierFirstDurable].latency_ms;
  }
  Finish();
}

void MatchJob::Finish() {
  MatchRequest& match = asked();
  match.matched = matched_;
  EstimateUpTo(match.runs.size());
  const WorthAnswer& worth = worth_->best();
  match.pays = worth.blocks;
  match.load_ms = worth.load_ms;
  if (prefill_) {
    const uint32_t tokens =
        cache()
            .catalog.layout(cache().clients.LayoutOf(client(), match.chain.layout))
            .tokens_per_block;
    match.recompute_ms = prefill_->Milliseconds(static_cast<double>(worth.blocks * tokens),
                                                static_cast<double>(match.have * tokens));
  }
  cache().meters.Count(tenant(), &CacheCounters::match_requests);
  cache().meters.Count(tenant(), &CacheCounters::match_keys, match.chain.keys.size() - match.have);
  cache().meters.Count(tenant(), &CacheCounters::match_hits, match.matched);
  const size_t asked_for = std::min(match.chain.keys.size(), kMaxAsked);
  for (const Key& key : match.chain.keys.first(asked_for)) {
    names_.push_back(cache().residency.OrderName(
        {.tenant = tenant(), .group = match.chain.group, .part = match.chain.part, .key = key}));
  }
  // The caller has its answer; what it asked for is recorded as used behind its back.
  Answer(1);
  touching_ = true;
  TouchSlice();
}

// What another engine computes right now, as far as this one's slice goes. What the caller's own
// does it knows.
void MatchJob::AddFillingRun(size_t first) {
  const ChainSlice& chain = asked().chain;
  const uint32_t own = cache().clients.at(client()).engine;
  double wait_ms = 0;
  for (size_t i = first; i < std::min(first + kFillingSlice, chain.keys.size()); ++i) {
    const Fill* const fill = cache().fills.Find(cache().NameOf(tenant(), chain, i));
    if (fill == nullptr || fill->engine == own) break;
    wait_ms = std::max(wait_ms, cache().fills.WaitMs(*fill));
    if (!AddRun(i, kTierDram, RunState::kBeingFilled)) return;
  }
  if (wait_ms > 0) asked().runs.back().estimated_ms = wait_ms;
}

// How long each run would take to load, and up to where that beats recomputing.
void MatchJob::EstimateUpTo(size_t runs) {
  MatchRequest& match = asked();
  const LayoutRecord& record =
      cache().catalog.layout(cache().clients.LayoutOf(client(), match.chain.layout));
  cache().scheduler.CountEntries(runs - estimated_);
  for (; estimated_ < runs; ++estimated_) {
    MatchRun& run = match.runs[estimated_];
    if (run.state != RunState::kReady) return;
    run.estimated_ms =
        worth_->Add({.tier = run_costs_[estimated_],
                     .blocks = static_cast<uint32_t>(run.count),
                     .tokens_per_block = record.tokens_per_block,
                     .bytes_per_block = record.groups[match.chain.group].block_bytes});
  }
}

bool MatchJob::AskSlice() {
  const AskedChain chain = {.blocks = static_cast<uint32_t>(names_.size()),
                            .full_blocks = static_cast<uint32_t>(names_.size()),
                            .input_tokens = uint64_t{tokens_per_block_} * names_.size(),
                            .saving = saving_,
                            .name = [this](uint32_t position) { return names_[position]; }};
  return cache().residency.Ask(chain, kAskSlice, &asked_orders_);
}

// Leaf first: of a chain, the tail is the first to go.
void MatchJob::TouchSlice() {
  if (AskSlice()) return RunAgain();
  for (size_t touched = 0; touched < kMatchSlice && !refs_.empty(); ++touched) {
    const BlockRef ref = refs_.back();
    refs_.pop_back();
    const Index& index = cache().residency.index();
    if (index.Exists(ref) && index.at(ref).state == BlockState::kResident) {
      cache().residency.Touch(ref);
      cache().write_down.OnUsed(ref);
    }
  }
  if (!refs_.empty()) return RunAgain();
  End(1);
}

}  // namespace aquifer
