// Match and Fetch.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {
namespace {

constexpr size_t kMatchSlice = 512;
constexpr size_t kProbedSlice = 128;  // Where each is looked up on NVMe too: a drive is out.
constexpr size_t kAskSlice = 64;      // Of which each takes up to a microsecond.
// The eviction orders hear of so many blocks of a chain; what is behind them fares like these.
constexpr size_t kMaxAsked = 4096;
constexpr size_t kFetchSlice = 64;
constexpr size_t kLateSlice = 1024;
constexpr size_t kAdvanceSlice = 2048;
// Of a request that is itself waited for: a chain takes a store two or three round trips.
constexpr double kMaxAskMs = 100;

// An engine reads DRAM by copying from it: about what one core moves. It is cheap next to any
// prefill, and only its order of magnitude matters.
constexpr TierCost kDramCost{.latency_ms = 0.02, .ms_per_byte = 1e3 / 10e9, .ms_per_op = 0.0005};

uint64_t CoreCounters::* CounterOf(Code code, TierKind tier) {
  switch (code) {
    case Code::kOk:
      if (tier == TierKind::kDurable) return &CoreCounters::fetch_hits_durable;
      return tier == TierKind::kDram ? &CoreCounters::fetch_hits_dram
                                     : &CoreCounters::fetch_hits_nvme;
    case Code::kNotFound:
      return &CoreCounters::fetch_misses;
    case Code::kLate:
      return &CoreCounters::fetch_late;
    default:
      return &CoreCounters::fetch_failed;
  }
}

uint64_t CoreCounters::* BytesOf(TierKind tier) {
  if (tier == TierKind::kDurable) return &CoreCounters::fetch_bytes_durable;
  return tier == TierKind::kDram ? &CoreCounters::fetch_bytes_dram
                                 : &CoreCounters::fetch_bytes_nvme;
}

}  // namespace

// Someone may read it now: complete, not expired, and in a tier that is in service.
bool Core::Readable(BlockRef ref) const {
  const BlockEntry& entry = residency_->at(ref);
  if (entry.state != BlockState::kResident || entry.expired(NowUnix())) return false;
  return Reachable(ref);
}

bool Core::Reachable(BlockRef ref) const {
  return residency_->at(ref).in_tier(kTierDram) || DriveServes(ref);
}

bool Core::DriveServes(BlockRef ref) const {
  if (!residency_->at(ref).in_tier(kTierNvme) || !nvme_usable()) return false;
  return nvme_->AllInService() || nvme_->Probe(residency_->IdOf(ref)).code() != Code::kUnavailable;
}

// --- Match

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
  const uint16_t layout = core().LayoutOf(client(), match.chain.layout);
  const uint32_t tokens = core().catalog_.layout(layout).tokens_per_block;
  tokens_per_block_ = tokens;
  saving_ = core().residency_->SavingInDram(tenant(), layout, match.chain.group);
  costs_ = {kDramCost, core().nvme_speed_.Cost(core().environment_.clock->NowNanos())};
  for (size_t i = 0; core().durable_ != nullptr && i < core().durable_->size(); ++i) {
    costs_[kTierFirstDurable + i] = core().durable_->Cost(static_cast<uint8_t>(i));
  }
  inquiry_.Reset(core().durable_.get(), NamesOf(match.chain));
  prefill_ =
      PrefillOrDefault(core().worth_, core().prefill_.Find(core().PrefillNameOf(client(), layout)));
  worth_.emplace(core().worth_,
                 WorthQuery{.tiers = costs_,
                            .tokens_before = static_cast<uint32_t>(match.have * tokens),
                            .tokens_total = static_cast<uint32_t>(match.chain.keys.size() * tokens),
                            .prefill = prefill_});
}

ChainNames Job::NamesOf(const ChainSlice& chain) const {
  return {.tenant = core_->catalog_.tenant(tenant()).id,
          .group = chain.group,
          .part = chain.part,
          .keys = chain.keys};
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
  const bool probe = core().nvme_usable() && !core().nvme_->AllInService();
  const size_t steps = std::min(probe ? kProbedSlice : kMatchSlice, chain.keys.size() - from);
  refs_.resize(begin + steps);
  const uint8_t tiers =
      static_cast<uint8_t>(TierBit(kTierDram) | (core().nvme_usable() ? TierBit(kTierNvme) : 0));
  const MatchResult found = core().residency_->index().Match({.tenant = tenant(),
                                                              .group = chain.group,
                                                              .part = chain.part,
                                                              .tiers = tiers,
                                                              .chain = chain.keys,
                                                              .from = from,
                                                              .max_steps = steps,
                                                              .unix_seconds = core().NowUnix()},
                                                             std::span(refs_).subspan(begin));
  refs_.resize(begin + found.matched);
  for (size_t i = begin; i < refs_.size(); ++i) {
    const BlockEntry& entry = core().residency_->at(refs_[i]);
    const uint8_t tier = entry.in_tier(kTierDram) ? kTierDram : kTierNvme;
    if (probe && tier == kTierNvme && !core().Reachable(refs_[i])) {
      refs_.resize(i);
      return EndHere();
    }
    const bool asked_for = entry.layout == core().LayoutOf(client(), chain.layout);
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
  if (core().durable_ == nullptr || !core().durable_->usable()) return false;
  if (until_nanos_ != 0) return true;
  double gain_ms = kMaxAskMs;
  if (prefill_) {
    const MatchRequest& match = asked();
    const LayoutRecord& layout =
        core().catalog_.layout(core().LayoutOf(client(), match.chain.layout));
    const size_t before = match.have + matched_;
    const auto rest = static_cast<double>(match.chain.keys.size() - before);
    const double recompute_ms = prefill_->Milliseconds(
        rest * tokens_per_block_, static_cast<double>(before) * tokens_per_block_);
    const auto bytes = static_cast<double>(layout.groups[match.chain.group].block_bytes);
    double load_ms = 1e18;
    for (size_t i = 0; i < core().durable_->size(); ++i) {
      const TierCost& cost = costs_[kTierFirstDurable + i];
      load_ms =
          std::min(load_ms, cost.latency_ms + rest * (bytes * cost.ms_per_byte + cost.ms_per_op));
    }
    gain_ms = std::min(gain_ms, recompute_ms - load_ms);
  }
  if (gain_ms <= 0) return false;
  until_nanos_ = core().environment_.clock->NowNanos() + static_cast<int64_t>(gain_ms * 1e6);
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
  core().CountEntries(kMatchSlice);
  RunAgain();
}

BlockName MatchJob::NameOf(size_t i) const {
  const ChainSlice& chain = asked().chain;
  return {.tenant = tenant(), .group = chain.group, .part = chain.part, .key = chain.keys[i]};
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
        core().catalog_.layout(core().LayoutOf(client(), match.chain.layout)).tokens_per_block;
    match.recompute_ms = prefill_->Milliseconds(static_cast<double>(worth.blocks * tokens),
                                                static_cast<double>(match.have * tokens));
  }
  core().Count(tenant(), &CoreCounters::match_requests);
  core().Count(tenant(), &CoreCounters::match_keys, match.chain.keys.size() - match.have);
  core().Count(tenant(), &CoreCounters::match_hits, match.matched);
  const size_t asked_for = std::min(match.chain.keys.size(), kMaxAsked);
  for (const Key& key : match.chain.keys.first(asked_for)) {
    names_.push_back(core().residency_->OrderName(
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
  const uint32_t own = core().clients_[client()].engine;
  double wait_ms = 0;
  for (size_t i = first; i < std::min(first + kFetchSlice, chain.keys.size()); ++i) {
    const Core::Filling* const filling = core().FillingOf(NameOf(i));
    if (filling == nullptr || filling->engine == own) break;
    wait_ms = std::max(wait_ms, core().FillWaitMs(*filling));
    if (!AddRun(i, kTierDram, RunState::kBeingFilled)) return;
  }
  if (wait_ms > 0) asked().runs.back().estimated_ms = wait_ms;
}

// How long each run would take to load, and up to where that beats recomputing.
void MatchJob::EstimateUpTo(size_t runs) {
  MatchRequest& match = asked();
  const LayoutRecord& record =
      core().catalog_.layout(core().LayoutOf(client(), match.chain.layout));
  core().CountEntries(runs - estimated_);
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
  return core().residency_->Ask(chain, kAskSlice, &asked_orders_);
}

// Leaf first: of a chain, the tail is the first to go.
void MatchJob::TouchSlice() {
  if (AskSlice()) return RunAgain();
  for (size_t touched = 0; touched < kMatchSlice && !refs_.empty(); ++touched) {
    const BlockRef ref = refs_.back();
    refs_.pop_back();
    const Index& index = core().residency_->index();
    if (index.Exists(ref) && index.at(ref).state == BlockState::kResident) {
      core().residency_->Touch(ref);
      core().write_down_->OnUsed(ref);
    }
  }
  if (!refs_.empty()) return RunAgain();
  End(1);
}

// --- Fetch

void FetchJob::Reset() {
  AQ_CHECK(asked().ops.size() == asked().chain.keys.size());
  settled_.clear();
  settled_.reserve(asked().ops.size());  // It grows a slice at a time, and is never moved.
  cursor_ = answered_ = reported_ = loading_ = late_cursor_ = usable_ = 0;
  unanswered_.clear();
  inquiry_.Reset(core().durable_.get(), NamesOf(asked().chain));
  deadline_nanos_ = DeadlineIn(asked().timeout_nanos);
  in_slice_ = posted_ = timer_set_ = cancelled_ = refused_ = false;
}

void FetchJob::Run() {
  posted_ = false;
  if (cancelled_) return SettleRestLate();
  if (IsOver(deadline_nanos_)) return Cancel();
  if (cursor_ < asked().chain.keys.size()) FetchSlice();
  if (!unanswered_.empty() && !inquiry_.asking()) FetchUnanswered();
  Advance();
}

void FetchJob::RunOn() {
  if (!std::exchange(posted_, true)) RunAgain();
}

void FetchJob::FetchSlice() {
  in_slice_ = true;
  const ChainSlice& chain = asked().chain;
  const size_t begin = cursor_;
  const size_t end = std::min(begin + kFetchSlice, chain.keys.size());
  std::array<BlockRef, kFetchSlice> refs;
  core().residency_->index().FindMany(tenant(), chain.group, chain.part,
                                      chain.keys.subspan(begin, end - begin), refs);
  settled_.resize(end, 0);
  for (size_t i = begin; i < end; ++i) FetchOne(i, &refs[i - begin]);
  for (size_t i = end; i-- > begin;) {
    const Index& index = core().residency_->index();
    const BlockRef ref = refs[i - begin];
    if (ref != kNoBlock && index.Exists(ref) && index.at(ref).state == BlockState::kResident) {
      core().residency_->Touch(ref);
      core().write_down_->OnUsed(ref);
    }
  }
  cursor_ = end;
  PumpLoads();
  in_slice_ = false;
  if (cursor_ < chain.keys.size()) RunOn();
}

void FetchJob::PumpLoads() {
  if (loading_ > 0) core().loader_->Pump();
  if (loading_ > 0 && core().durable_ != nullptr) core().durable_->PumpLoads();
  if ((loading_ > 0 || !unanswered_.empty()) && !timer_set_) {
    timer_set_ = true;
    WakeAt(deadline_nanos_);
  }
}

// What this host has not, the durable tiers may have. They are asked for all of the rest at once.
void FetchJob::FetchFurther(size_t i) {
  const DurablePlace place = inquiry_.At(i, [this, run = run()] {
    if (this->run() == run) RunOn();
  });
  switch (place.answer) {
    case Presence::Answer::kAbsent:
      return SettleOne(i, Status(Code::kNotFound));
    case Presence::Answer::kUnknown:
      unanswered_.push_back(i);
      return;
    case Presence::Answer::kThere:
      break;
  }
  const ChainSlice& chain = asked().chain;
  ++loading_;
  core().durable_->Load(
      place.tier,
      {.name = {.tenant = tenant(), .group = chain.group, .part = chain.part, .key = chain.keys[i]},
       .layout = core().LayoutOf(client(), chain.layout)},
      deadline_nanos_, {.waiter = this, .run = run(), .op = i | kFromDurable});
}

// Each once: what is still not known is asked for, or waits again.
void FetchJob::FetchUnanswered() {
  in_slice_ = true;
  for (size_t left = std::min(unanswered_.size(), kFetchSlice); left > 0; --left) {
    const size_t i = unanswered_.front();
    unanswered_.pop_front();
    if (settled_[i] == 0) FetchFurther(i);
  }
  PumpLoads();
  in_slice_ = false;
  if (!unanswered_.empty() && !inquiry_.asking()) RunOn();
}

void FetchJob::FetchOne(size_t i, BlockRef* found) {
  // A key that is there twice may have been dropped, as expired, the first time.
  if (*found != kNoBlock && !core().residency_->index().Exists(*found)) *found = kNoBlock;
  // The layout is in every key: under another one's handle it is nothing that was asked for.
  const uint16_t layout = core().LayoutOf(client(), asked().chain.layout);
  if (*found != kNoBlock && core().residency_->at(*found).layout != layout) *found = kNoBlock;
  const BlockRef ref = *found;
  if (ref == kNoBlock || !core().Readable(ref)) {
    if (ref != kNoBlock) {
      const BlockEntry& entry = core().residency_->at(ref);
      if (entry.state == BlockState::kResident && entry.expired(core().NowUnix())) {
        core().residency_->Drop(ref, Leave::kExpired);
      }
      *found = kNoBlock;
    }
    return core().durable_ == nullptr ? SettleOne(i, Status(Code::kNotFound)) : FetchFurther(i);
  }
  if (core().residency_->at(ref).in_tier(kTierDram)) return LendOne(i, ref, TierKind::kDram);
  ++loading_;
  core().loader_->Load(ref, deadline_nanos_, {.waiter = this, .run = run(), .op = i});
}

void FetchJob::LendOne(size_t i, BlockRef ref, TierKind tier) {
  const LeaseId lease = core().Lend(client(), ref, false);
  if (lease == 0) {
    // Said once: a million times over it would be a million allocations.
    const bool said = std::exchange(refused_, true);
    return SettleOne(
        i, said ? Status(Code::kBusy) : Status(Code::kBusy, "too many leases; release some"));
  }
  FetchOp& op = asked().ops[i];
  const BlockEntry& entry = core().residency_->at(ref);
  op.bytes = core().residency_->SlotBytes(entry.slot).first(core().residency_->RawBytes(ref));
  op.lease = lease;
  op.checksum = entry.checksum;
  op.tier = tier;
  if (i == 0) first_position_ = entry.position;
  SettleOne(i, Status());
}

void FetchJob::SettleOne(size_t i, Status status) {
  FetchOp& op = asked().ops[i];
  core().Count(tenant(), CounterOf(status.code(), op.tier));
  if (status.ok()) {
    core().Count(tenant(), BytesOf(op.tier), op.bytes.size());
  }
  op.status = std::move(status);
  settled_[i] = 1;
}

void FetchJob::OnLoaded(size_t ticket, BlockRef ref, const Status& status) {
  --loading_;
  const size_t op = ticket & ~kFromDurable;
  const bool durable = (ticket & kFromDurable) != 0;
  if (settled_[op] != 0) return;  // Late.
  const Code code = status.code();
  const bool elsewhere = durable ? code == Code::kNotFound || code == Code::kCorrupt
                                 : !status.ok() && code != Code::kLate;
  if (status.ok() && core().residency_->at(ref).expired(core().NowUnix())) {
    SettleOne(op, Status(Code::kNotFound));  // It was not when it was asked for.
  } else if (status.ok()) {
    LendOne(op, ref, durable ? TierKind::kDurable : TierKind::kNvme);
  } else if (elsewhere && core().durable_ != nullptr) {
    FetchElsewhere(op, status);
  } else {
    SettleOne(op, status);
  }
  // Once for all that this task brings: the same block may have been asked for very often.
  if (!in_slice_) RunOn();
}

// Where it was, it is not, or cannot be read: another tier may have it. A tier that said so is not
// asked again for this one.
void FetchJob::FetchElsewhere(size_t i, const Status& status) {
  FetchFurther(i);
  if (settled_[i] != 0) asked().ops[i].status = status;  // None has: it is as it was.
  if (!in_slice_) PumpLoads();
}

// Tells the caller how far the answers go without a gap. Behind one that was slow there may be very
// many.
void FetchJob::Advance() {
  const size_t end = std::min(settled_.size(), answered_ + kAdvanceSlice);
  for (; answered_ < end && settled_[answered_] != 0; ++answered_) {
    if (usable_ == answered_ && asked().ops[answered_].status.ok()) ++usable_;
  }
  if (answered_ == asked().ops.size()) {
    CountSaved();
    return End(answered_);
  }
  if (answered_ == end && end < settled_.size()) RunOn();
  if (answered_ == reported_) return;
  reported_ = answered_;
  Report(answered_);
}

void FetchJob::Cancel() {
  if (std::exchange(cancelled_, true)) return;
  late_cursor_ = answered_;
  SettleRestLate();
}

void FetchJob::SettleRestLate() {
  const size_t end = std::min(late_cursor_ + kLateSlice, asked().ops.size());
  if (settled_.size() < end) settled_.resize(end, 0);
  for (; late_cursor_ < end; ++late_cursor_) {
    if (settled_[late_cursor_] == 0) SettleOne(late_cursor_, Status(Code::kLate));
  }
  if (end < asked().ops.size()) return RunOn();
  CountSaved();
  End(end);
}

// Other kv groups and parts belong to the same tokens, which are counted once.
void FetchJob::CountSaved() {
  const ChainSlice& chain = asked().chain;
  if (usable_ == 0 || chain.group != 0 || chain.part != 0) return;
  const Core::Client& caller = core().clients_[client()];
  const uint16_t layout = core().LayoutOf(client(), chain.layout);
  const auto prefill =
      PrefillOrDefault(core().worth_, core().prefill_.Find(core().PrefillNameOf(client(), layout)));
  if (!prefill) return;
  const double tokens = core().catalog_.layout(layout).tokens_per_block;
  const double recompute_ms =
      prefill->Milliseconds(static_cast<double>(usable_) * tokens, first_position_ * tokens);
  const double fetch_ms =
      static_cast<double>(core().environment_.clock->NowNanos() - begun_nanos()) / 1e6;
  // Every rank of the engine fetches the same blocks.
  const double ranks = std::max(1u, core().engines_[caller.engine_name].clients);
  const double saved_ms = (recompute_ms - fetch_ms) / ranks;
  CoreCounters& counters = core().counters_of_[tenant()];
  (saved_ms > 0 ? counters.saved_ms : counters.lost_ms) += std::abs(saved_ms);
}

}  // namespace aquifer
