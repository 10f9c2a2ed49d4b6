#include "sim/world/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/request_progress.h"

namespace aquifer {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

Engine::Engine(const EngineOptions& options, const EngineWorld& world)
    : options_(options), world_(world), random_(options.seed) {}

// ---- Coming and going ----

void Engine::Begin() {
  const uint32_t incarnation = ++incarnation_;
  world_.node->Post([this, incarnation] {
    if (incarnation == incarnation_) Attach();
  });
}

void Engine::Attach() {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    clients_[rank] = AttachRank(&handles_[rank]);
  }
  attached_ = true;
  dying_ = false;
  acted_nanos_ = world_.scheduler->now();
  attached_moment_ = world_.truth->Moment();
  world_.trace->Add(TraceKind::kAttached, options_.number, clients_[0], options_.tenant);
  Think();
}

ClientNumber Engine::AttachRank(std::vector<LayoutHandle>* handles) {
  Core* const core = world_.node->core();
  ClientOptions options{.tenant = options_.tenant_name, .engine = {}};
  if (options_.ranks > 1) options.engine = fmt::format("{}.{}", options_.number, incarnation_);
  const Result<ClientNumber> client = core->Attach(options, this);
  if (!client.ok()) {
    world_.truth->Violate("a client could not attach");
    return 0;
  }
  handles->clear();
  for (const Layout& layout : options_.layouts) {
    layout_request_.layout = layout;
    core->RegisterLayout(*client, &layout_request_);
    handles->push_back(layout_request_.handle);
  }
  return *client;
}

void Engine::NodeDied() {
  ++incarnation_;
  attached_ = false;
  awaiting_ = false;
  dying_ = false;
  doing_ = Doing::kNothing;
  leases_.clear();
  slots_.clear();
  unasked_.clear();
  commits_.clear();
}

void Engine::Die() {
  if (!attached_ || dying_) return;
  dying_ = true;
  world_.trace->Add(TraceKind::kClientDies, options_.number, leases_.size(), slots_.size());
  // Requests stay where they are until the core has let go of them.
  world_.node->Post([this] {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      world_.node->core()->Detach(clients_[rank], nullptr);
    }
    for (const Lent& lease : leases_) world_.truth->Released(lease.bytes);
    for (const Slot& slot : slots_) world_.truth->GaveUp(slot.payload, slot.bytes);
    if (awaiting_) world_.truth->Forgotten(request_);
    NodeDied();
    Begin();
  });
}

// ---- Time ----

int64_t Engine::Pause() {
  const int64_t think = options_.think_nanos;
  const auto pause = static_cast<int64_t>(random_.Below(static_cast<uint64_t>(think)));
  return OneIn(16) ? 20 * pause : pause;
}

int64_t Engine::Timeout() {
  switch (random_.Below(4)) {
    case 0:
      return static_cast<int64_t>(100 * kMicro + random_.Below(5 * kMilli));
    case 1:
      return 100 * kMilli;
    case 2:
      return kSecond;
    default:
      return 30 * kSecond;
  }
}

void Engine::WakeIn(int64_t nanos) {
  world_.scheduler->At(world_.scheduler->now() + nanos, 0, [this, incarnation = incarnation_] {
    if (incarnation == incarnation_ && !dying_) Wake();
  });
}

void Engine::Wake() {
  if (awaiting_) return;
  acted_nanos_ = world_.scheduler->now();
  switch (doing_) {
    case Doing::kNothing:
      return stopping_ ? void() : BeginTurn();
    case Doing::kMatching:
      return SeeMatch();
    case Doing::kFetching:
      return SeeFetch();
    case Doing::kHolding:
      return ReleaseSome();
    case Doing::kReserving:
      return SeeReserve();
    case Doing::kJoining:
      return SeeJoin();
    case Doing::kFilling:
      return Fill();
    case Doing::kSharing:
      return CommitRest();
    case Doing::kLettingGo:
      return LetGo(0);
    case Doing::kCommitting:
      return EndTurn();
    default:
      return SeeCare();
  }
}

// ---- Asking and being answered ----

void Engine::OnProgress(Request* request, size_t completed, bool done) {
  RequestProgress::Advance(request, completed, done);
  acted_nanos_ = world_.scheduler->now();
  if (request == &layout_request_) return;
  if (completed < seen_) return world_.truth->Violate("a request went backwards");
  const size_t from = std::exchange(seen_, completed);
  if (request == &fetch_) OnFetched(from, completed);
  if (request == &fetch_ && done) CountAdvised();
  if (request == &reserve_) OnReserved(from, completed);
  if (request == &join_) OnJoined(from, completed);
  if (request == &commit_) OnCommitted(from, completed);
  if (!done) return;
  if (request == &match_ && !match_.status.ok()) match_.matched = 0;
  if (request == &match_) {
    for (size_t i = 0; i < match_.matched; ++i) {
      world_.truth->Matched(blocks_[match_.have + i], request_);
    }
  }
  if (request == &pin_) {
    world_.truth->PinSent(pinned_, pin_.seconds, world_.node->number());
    pinned_until_nanos_ =
        std::max(pinned_until_nanos_, acted_nanos_ + pin_.seconds * 1'000'000'000);
    if (pin_.seconds > 0 && pin_.status.ok() && pin_.pinned == pinned_.size()) {
      world_.truth->Pinned(pinned_, pin_.seconds, request_, world_.calm());
    }
  }
  // What a store does not list yet is not found when everything is deleted.
  const bool all_listed = !evict_.everything || !options_.listings_lag;
  if (request == &evict_ && evict_.status.ok() && all_listed) {
    world_.truth->Evicted(evicted_, request_);
  }
  if (request == &prestage_) {
    Touch(world_.conversations->at(conversation_).blocks);
    SeeSession();
  }
  // A drain says ok when nothing is left to write, whatever was lost before; only its bad news
  // count.
  if (request == &flush_ || (request == &drain_ && !drain_.status.ok())) {
    const TierKind tier = request == &flush_ ? flush_.tier : TierKind::kNvme;
    world_.truth->Flushed(options_.tenant, attached_moment_, sent_moment_, request->status.code(),
                          {.node = world_.node->number(),
                           .drives = tier == TierKind::kNvme && world_.node->drives() > 0,
                           .durable = world_.truth->PromisesDurable(options_.tenant, tier)});
  }
  world_.truth->Answered(request_);
  if ((request == &flush_ || request == &evict_) && request->status.ok()) world_.on_promise();
  awaiting_ = false;
  if (!dying_) Think();
}

void Engine::OnFetched(size_t from, size_t to) {
  Truth& truth = *world_.truth;
  for (size_t i = from; i < to; ++i) {
    const FetchOp& op = fetch_.ops[i];
    const BlockNumber block = blocks_[first_ + i];
    switch (op.status.code()) {
      case Code::kOk:
        if (world_.node->DrivesUse(IoKind::kRead, op.bytes)) {
          truth.Violate("a block was lent while a drive still writes to its memory");
        }
        if (ChecksumOf(op.bytes) != op.checksum) truth.Violate("a fetch gave a wrong checksum");
        truth.Served(block, op.bytes, world_.node->ExtentOf(op.bytes.data()), request_);
        leases_.push_back({.block = block, .id = op.lease, .bytes = op.bytes});
        ++*HitsIn(op.tier);
        break;
      case Code::kNotFound:
        truth.Missed(block, request_, world_.calm(), stores_were_calm_ && world_.stores_calm());
        ++world_.counts->misses;
        break;
      case Code::kCorrupt:
        truth.Corrupt(block);
        ++world_.counts->corrupt;
        break;
      case Code::kLate:
        ++world_.counts->late;
        break;
      default:
        ++world_.counts->failed;
    }
  }
}

uint64_t* Engine::HitsIn(TierKind tier) {
  if (tier == TierKind::kDurable) return &world_.counts->hits_durable;
  return tier == TierKind::kDram ? &world_.counts->hits_dram : &world_.counts->hits_nvme;
}

void Engine::CountAdvised() {
  const bool advised =
      match_.recompute_ms > 0 && first_ == match_.have && fetch_.ops.size() == match_.pays;
  const bool all = std::all_of(fetch_.ops.begin(), fetch_.ops.end(),
                               [](const FetchOp& op) { return op.status.ok(); });
  if (!advised || !all) return;
  const double took_ms = static_cast<double>(world_.scheduler->now() - fetched_nanos_) / 1e6;
  world_.counts->advised =
      world_.counts->advised + AdvisedLoads{.loads = 1,
                                            .worse = took_ms > match_.recompute_ms ? 1u : 0u,
                                            .estimated_ms = match_.load_ms,
                                            .took_ms = took_ms,
                                            .recompute_ms = match_.recompute_ms};
}

void Engine::OnReserved(size_t from, size_t to) {
  Truth& truth = *world_.truth;
  for (size_t i = from; i < to; ++i) {
    const ReserveOp& op = reserve_.ops[i];
    const BlockNumber block = blocks_[first_ + i];
    switch (op.outcome) {
      case ReserveOutcome::kSlot: {
        truth.Missed(block, request_, world_.calm());
        if (world_.node->DrivesUse(IoKind::kRead, op.slot) ||
            world_.node->DrivesUse(IoKind::kWrite, op.slot)) {
          truth.Violate("a slot was lent while a drive still uses it");
        }
        const uint32_t version =
            truth.Reserved(block, op.slot, world_.node->ExtentOf(op.slot.data()), request_);
        slots_.push_back({.payload = {.block = block, .version = version},
                          .reservation = op.reservation,
                          .joined = 0,
                          .bytes = op.slot,
                          .filled = false});
        break;
      }
      case ReserveOutcome::kHave:
        truth.Had(block, request_);
        break;
      case ReserveOutcome::kBeingFilled:
        ++world_.counts->being_filled;
        break;
      case ReserveOutcome::kRefused:
        ++world_.counts->refused;
        break;
    }
  }
}

void Engine::OnCommitted(size_t from, size_t to) {
  for (size_t i = from; i < to; ++i) {
    const CommitOp& op = commit_.ops[i];
    if (!commits_[i].last) {
      if (op.published) world_.truth->Violate("a block was published before all heads were there");
      continue;
    }
    if (op.published != op.status.ok()) {
      world_.truth->Violate("a whole block was committed, but not published");
    }
    world_.truth->Committed(commits_[i].payload, op.published);
    ++(op.published ? world_.counts->stored : world_.counts->voided);
  }
}

void Engine::PlanCancel(Request* request) {
  world_.scheduler->At(
      world_.scheduler->now() + Pause() / 8, 0,
      [this, request, number = request_, incarnation = incarnation_] {
        if (incarnation != incarnation_ || dying_) return;
        if (!awaiting_ || number != request_) return;
        world_.trace->Add(TraceKind::kCancel, options_.number);
        world_.node->Post([this, request] { world_.node->core()->Cancel(clients_[0], request); });
      });
}

ChainSlice Engine::Slice(size_t first, size_t count) const {
  return {.layout = handles_[0][layout_],
          .group = group_,
          .part = 0,
          .keys = std::span(keys_).subspan(first, count)};
}

// ---- A turn ----

void Engine::BeginTurn() {
  conversation_ = world_.conversations->Pick(options_.tenant, &random_);
  if (OneIn(2)) world_.conversations->Grow(conversation_, &random_);
  const Conversation& conversation = world_.conversations->at(conversation_);
  layout_ = conversation.layout;
  group_ = conversation.group;
  keys_.assign(conversation.chain.keys().begin(), conversation.chain.keys().end());
  root_ = conversation.chain.parent(0);
  blocks_ = conversation.blocks;
  if (OneIn(3)) return Care();
  Recall();
}

void Engine::Recall() {
  Touch(blocks_);
  doing_ = Doing::kMatching;
  match_.chain = Slice(0, keys_.size());
  match_.have = OneIn(4) ? random_.Below(keys_.size() + 1) : 0;
  world_.counts->block_operations += keys_.size();
  world_.trace->Add(TraceKind::kMatch, options_.number, keys_.size(), conversation_);
  Submit(&Core::Match, &match_, "match", kSecond);
}

void Engine::SeeMatch() {
  world_.trace->Add(TraceKind::kMatched, options_.number, match_.matched,
                    keys_.size() - match_.have);
  // It takes the answer at its word, or fetches more or less than it was told.
  size_t count = match_.matched;
  if (OneIn(4)) count = random_.Below(keys_.size() - match_.have + 1);
  if (count == 0) return Store();
  doing_ = Doing::kFetching;
  first_ = match_.have;
  fetch_.chain = Slice(first_, count);
  fetch_.timeout_nanos = Timeout();
  world_.counts->block_operations += count;
  world_.trace->Add(TraceKind::kFetch, options_.number, count, conversation_,
                    static_cast<uint64_t>(fetch_.timeout_nanos / kMicro));
  fetched_nanos_ = world_.scheduler->now();
  Submit(&Core::Fetch, &fetch_, "fetch", fetch_.timeout_nanos);
  if (OneIn(12)) PlanCancel(&fetch_);
}

void Engine::SeeFetch() {
  uint64_t missed = 0;
  uint64_t failed = 0;
  for (const FetchOp& op : fetch_.ops) {
    if (op.status.code() == Code::kNotFound) ++missed;
    if (!op.status.ok() && op.status.code() != Code::kNotFound) ++failed;
  }
  world_.trace->Add(TraceKind::kFetched, options_.number, leases_.size(), missed, failed);
  doing_ = Doing::kHolding;
  Think();
}

// Gives back what it holds, at once or in pieces.
void Engine::ReleaseSome() {
  if (leases_.empty()) return Store();
  const size_t count = OneIn(3) ? 1 + random_.Below(leases_.size()) : leases_.size();
  std::vector<ReleaseOp> ops;
  std::vector<BlockNumber> corrupt;
  for (size_t i = 0; i < count; ++i) {
    const Lent lease = leases_.back();
    leases_.pop_back();
    const bool call_corrupt = OneIn(256);
    if (call_corrupt) corrupt.push_back(lease.block);
    world_.truth->Released(lease.bytes);
    ops.push_back({.lease = lease.id, .corrupt = call_corrupt});
  }
  world_.counts->block_operations += count;
  world_.trace->Add(TraceKind::kRelease, options_.number, count, corrupt.size());
  world_.node->Post([this, ops = std::move(ops), corrupt = std::move(corrupt)] {
    for (std::span<const ReleaseOp> left = ops; !left.empty();) {
      left = left.subspan(world_.node->core()->Release(clients_[0], left));
    }
    for (const BlockNumber block : corrupt) world_.truth->ReportedCorrupt(block);
  });
  Think();
}

void Engine::Store() {
  if (stopping_) return EndTurn();
  doing_ = Doing::kReserving;
  // What it did not recall it has computed; now and then it stores from somewhere else.
  first_ = OneIn(6) ? random_.Below(keys_.size()) : std::min(match_.have, keys_.size() - 1);
  const size_t count = OneIn(4) ? 1 + random_.Below(keys_.size() - first_) : keys_.size() - first_;
  reserve_.chain = Slice(first_, count);
  reserve_.parent = first_ == 0 ? root_ : keys_[first_ - 1];
  reserve_.position = static_cast<uint32_t>(first_);
  world_.counts->block_operations += count;
  world_.trace->Add(TraceKind::kReserve, options_.number, count, conversation_, first_);
  reserved_nanos_ = world_.scheduler->now();
  Submit(&Core::Reserve, &reserve_, "reserve", kSecond);
}

void Engine::SeeReserve() {
  uint64_t there = 0;
  uint64_t refused = 0;
  for (const ReserveOp& op : reserve_.ops) {
    if (op.outcome == ReserveOutcome::kRefused) ++refused;
    if (op.outcome == ReserveOutcome::kHave || op.outcome == ReserveOutcome::kBeingFilled) ++there;
  }
  world_.trace->Add(TraceKind::kReserved, options_.number, slots_.size(), there, refused);
  if (slots_.empty()) return EndTurn();
  if (options_.ranks > 1) return Join();
  BeginFilling();
}

void Engine::BeginFilling() {
  doing_ = Doing::kFilling;
  first_rank_ = options_.ranks > 1 ? static_cast<uint32_t>(random_.Below(2)) : 0;
  if (OneIn(24)) return WakeIn(static_cast<int64_t>(random_.Below(90 * kSecond)));  // Overdue.
  Think();
}

void Engine::Fill() {
  if (OneIn(12)) return GiveUp();
  // A piece at a time, as a computation would.
  const auto open =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.filled; });
  const size_t most = OneIn(2) ? slots_.size() : 1 + random_.Below(slots_.size());
  size_t filled = 0;
  for (auto slot = open; slot != slots_.end() && filled < most; ++slot, ++filled) {
    slot->joined == 0 ? WritePayload(slot->payload, slot->bytes) : WriteShare(*slot, first_rank_);
    slot->filled = true;
  }
  if (open != slots_.end()) return Think();
  const bool shared =
      std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.joined != 0; });
  shared ? Commit(first_rank_, false) : Commit(0, true);
}

void Engine::Abort(uint32_t rank, std::vector<ReservationId> reservations) {
  world_.trace->Add(TraceKind::kAbort, options_.number, reservations.size());
  world_.node->Post([this, rank, reservations = std::move(reservations)] {
    for (std::span<const ReservationId> left = reservations; !left.empty();) {
      left = left.subspan(world_.node->core()->Abort(clients_[rank], left));
    }
  });
}

void Engine::EndTurn() {
  if (doing_ == Doing::kCommitting) {
    const auto published = static_cast<uint64_t>(std::count_if(
        commit_.ops.begin(), commit_.ops.end(), [](const CommitOp& op) { return op.published; }));
    world_.trace->Add(TraceKind::kCommitted, options_.number, published,
                      commit_.ops.size() - published);
  }
  doing_ = Doing::kNothing;
  Think();
}

}  // namespace aquifer
