#include "cache/transfer/durable_tiers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kMaxErasures = size_t{1} << 17;  // That wait for a tier: some 250 bytes each.
constexpr int64_t kEraseRetryNanos = 2'000'000'000;
constexpr size_t kSweepSlice = 1024;

WriteBudgetOptions BudgetOf(const DurableTierSource& source) {
  WriteBudgetOptions budget;
  budget.bytes_per_second = source.write_bytes_per_second;
  budget.burst_bytes = std::min(budget.burst_bytes, std::max<uint64_t>(budget.bytes_per_second, 1));
  return budget;
}

// What is written to it is durable.
bool IsLasting(const DurableTierSource& source) {
  return source.lasting && source.writes != DurableWrites::kNothing;
}

}  // namespace

uint8_t DurableTiers::LastingBits(const std::vector<DurableTierSource>& sources) {
  uint8_t bits = 0;
  for (size_t i = 0; i < std::min(sources.size(), kMaxDurableTiers); ++i) {
    if (IsLasting(sources[i])) bits |= TierBit(static_cast<uint8_t>(kTierFirstDurable + i));
  }
  return bits;
}

Result<std::unique_ptr<DurableTiers>> DurableTiers::New(const DurableTiersParts& parts) {
  std::unique_ptr<DurableTiers> tiers(new DurableTiers(parts));
  AQ_RETURN_IF_ERROR(tiers->Build());
  return tiers;
}

DurableTiers::DurableTiers(const DurableTiersParts& parts) : parts_(parts) {}

DurableTiers::~DurableTiers() {
  tasks_.Close();
  Close();
}

Status DurableTiers::Build() {
  const std::vector<DurableTierSource>& sources = parts_.sources;
  if (sources.size() > kMaxDurableTiers) {
    return Status(Code::kInvalid, "there are more than " + std::to_string(kMaxDurableTiers) +
                                      " durable tiers: leave some out");
  }
  std::set<std::string> names;
  for (const DurableTierSource& source : sources) {
    if (!names.insert(source.name).second) {
      return Status(Code::kInvalid, "durable tier " + source.name + " is there twice");
    }
    AQ_RETURN_IF_ERROR(MakeTier(source));
  }
  SessionNotesParts notes{.tiers = {},
                          .read_from = {},
                          .residency = parts_.residency,
                          .catalog = parts_.catalog,
                          .executor = parts_.owner,
                          .clock = parts_.clock,
                          .walk = parts_.walk};
  for (One* const one : lasting_) notes.tiers.push_back(one->tier.get());
  for (const auto& one : tiers_) {
    if (one->source.lasting) notes.read_from.push_back(one->tier.get());
  }
  notes_ = std::make_unique<SessionNotes>(std::move(notes));
  ends_ = std::make_unique<SessionEnds>(SessionEndsParts{.residency = parts_.residency,
                                                         .notes = notes_.get(),
                                                         .clock = parts_.clock,
                                                         .want =
                                                             [this](BlockRef ref) {
                                                               AddWhereWanted(ref, true);
                                                               parts_.want_on_nvme(ref);
                                                             },
                                                         .on_moved = parts_.on_session_moved,
                                                         .bounds = parts_.session_ends});
  return Status();
}

Status DurableTiers::MakeTier(const DurableTierSource& source) {
  auto one = std::make_unique<One>();
  one->source = source;
  one->all = this;
  one->number = static_cast<uint8_t>(tiers_.size());
  Result<std::unique_ptr<DurableTier>> tier = source.make({.owner = parts_.owner,
                                                           .workers = parts_.workers,
                                                           .clock = parts_.clock,
                                                           .random = parts_.random,
                                                           .listener = one.get()});
  if (!tier.ok()) {
    return Status(tier.status().code(),
                  "durable tier " + source.name + ": " + tier.status().message());
  }
  one->tier = *std::move(tier);
  const uint8_t number = one->number;
  one->presence = std::make_unique<Presence>(one->tier.get(), parts_.random->Next64(), parts_.owner,
                                             parts_.clock);
  one->loader =
      std::make_unique<DurableLoader>(DurableLoaderParts{.tier = one->tier.get(),
                                                         .number = number,
                                                         .residency = parts_.residency,
                                                         .catalog = parts_.catalog,
                                                         .presence = one->presence.get(),
                                                         .executor = parts_.owner,
                                                         .clock = parts_.clock,
                                                         .max_bytes = parts_.dram_bytes / 4,
                                                         .on_arrived = parts_.promote});
  one->eraser = std::make_unique<Eraser>(EraserOptions{.enabled = true,
                                                       .max_remembered = kMaxErasures,
                                                       .max_remembered_per_tenant = kMaxErasures,
                                                       .where = source.name,
                                                       .retry_nanos = kEraseRetryNanos},
                                         parts_.owner, parts_.clock);
  one->eraser->SetTarget(one->tier.get());
  one->writer =
      std::make_unique<DurableWriter>(DurableWriterParts{.tier = one->tier.get(),
                                                         .number = number,
                                                         .residency = parts_.residency,
                                                         .eraser = one->eraser.get(),
                                                         .presence = one->presence.get(),
                                                         .loader = one->loader.get(),
                                                         .executor = parts_.owner,
                                                         .clock = parts_.clock,
                                                         .budget = BudgetOf(source),
                                                         .max_held_bytes = parts_.dram_bytes / 4});
  one->writer->load = parts_.load_from_nvme;
  one->eraser->on_erased = [writer = one->writer.get()] { writer->PumpSoon(); };
  if (IsLasting(source)) lasting_.push_back(one.get());
  tiers_.push_back(std::move(one));
  return Status();
}

void DurableTiers::One::OnLost(std::span<const BlockId> ids, Code /*why*/) {
  if (writer == nullptr) return;
  Residency& residency = *all->parts_.residency;
  for (const BlockId& id : ids) {
    presence->Remember(id, false);
    const BlockRef ref = residency.Find(id);
    if (ref == kNoBlock || !residency.in_durable(ref, number)) continue;
    residency.SetDurable(ref, number, false);
    if (all->IsDurable(ref)) all->AddWhereWanted(ref, true);
  }
}

void DurableTiers::One::OnHealth(bool in_service, const Status& why) {
  if (!why.ok()) last_why = why;
  if (writer == nullptr) return;  // It said so while it was made.
  writer->OnHealth(in_service);
  loader->Pump();
  if (in_service) all->SweepSoon();
}

void DurableTiers::Close() {
  if (notes_ != nullptr) notes_->Close();
  for (const auto& one : tiers_) {
    one->presence->Close();
    one->loader->Close();
    one->eraser->SetTarget(nullptr);
    one->writer->Close();
    one->tier.reset();
  }
}

void DurableTiers::Tick() {
  for (const auto& one : tiers_) {
    one->eraser->Pump();
    one->writer->Pump();
    if (one->loader->pending() > 0) one->loader->Pump();
  }
  ends_->Pump();
  notes_->Pump();
  SweepMore();
}

bool DurableTiers::idle() const {
  return notes_->waiting() == 0 && ends_->idle() && !sweeping_ &&
         std::all_of(tiers_.begin(), tiers_.end(), [](const auto& one) {
           return one->eraser->pending() == 0 && one->writer->waiting() == 0 &&
                  one->loader->pending() == 0;
         });
}

// --- Recall

bool DurableTiers::usable() const {
  return std::any_of(tiers_.begin(), tiers_.end(), [](const auto& one) { return one->usable(); });
}

TierCost DurableTiers::Cost(uint8_t tier) const {
  return tiers_[tier]->loader->speed().Cost(parts_.clock->NowNanos());
}

DurablePlace DurableTiers::Recall(const BlockId& id) const {
  DurablePlace place;
  if (!erasing_.empty() && erasing_.contains(id.tenant)) return place;
  double least_ms = 0;
  for (size_t i = 0; i < tiers_.size(); ++i) {
    const One& one = *tiers_[i];
    if (!one.usable()) continue;
    const Presence::Answer answer =
        one.eraser->Owes(id) ? Presence::Answer::kAbsent : one.presence->Recall(id);
    if (answer == Presence::Answer::kUnknown && place.answer == Presence::Answer::kAbsent) {
      place.answer = answer;
    }
    if (answer != Presence::Answer::kThere) continue;
    const double latency_ms = Cost(static_cast<uint8_t>(i)).latency_ms;
    if (place.answer == Presence::Answer::kThere && latency_ms >= least_ms) continue;
    place = {.answer = answer, .tier = static_cast<uint8_t>(i)};
    least_ms = latency_ms;
  }
  return place;
}

void DurableTiers::Find(const ChainNames& chain, std::function<void(const Found&)> on_done) {
  struct Asked {
    size_t open = 1;
    Found found{};
  };
  auto asked = std::make_shared<Asked>();
  const std::function<void(size_t, size_t)> answer = [asked, on_done = std::move(on_done)](
                                                         size_t tier, size_t found) {
    if (tier < kMaxDurableTiers) asked->found[tier] = found;
    if (--asked->open == 0) on_done(asked->found);
  };
  for (size_t i = 0; i < tiers_.size(); ++i) {
    if (!tiers_[i]->usable()) continue;
    ++asked->open;
    tiers_[i]->presence->Find(chain, [answer, i](size_t found) { answer(i, found); });
  }
  tasks_.Post([answer] { answer(kMaxDurableTiers, 0); });
}

DurablePlace DurableTiers::PlaceIn(const Found& found, size_t i, const BlockId& id) const {
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    const One& one = *tiers_[tier];
    if (!one.usable() || i >= found[tier] || one.eraser->Owes(id)) continue;
    if (one.presence->Recall(id) == Presence::Answer::kAbsent) continue;  // Learned since.
    return {.answer = Presence::Answer::kThere, .tier = static_cast<uint8_t>(tier)};
  }
  return {};
}

void DurableTiers::Load(uint8_t tier, const WantedBlock& block, int64_t deadline_nanos,
                        const LoadTicket& ticket) {
  tiers_[tier]->loader->Load(block, deadline_nanos, ticket);
}

void DurableTiers::PumpLoads() {
  for (const auto& one : tiers_) {
    if (one->loader->pending() > 0) one->loader->Pump();
  }
}

// --- Writing

bool DurableTiers::IsDurable(BlockRef ref) const {
  const TenantOptions& options = parts_.catalog->tenant(parts_.residency->at(ref).tenant).options;
  return options.durability == Durability::kDurable || parts_.residency->durable_wanted(ref);
}

void DurableTiers::AddWhereWanted(BlockRef ref, bool durable) {
  if (!parts_.catalog->tenant(parts_.residency->at(ref).tenant).options.may_leave_host) return;
  if (durable) parts_.residency->WantDurable(ref);
  for (size_t i = 0; i < tiers_.size(); ++i) {
    One& one = *tiers_[i];
    const DurableWrites writes = one.source.writes;
    const bool found = parts_.residency->found(ref);
    // What outlived a restart is written once more only where that is promised.
    const bool wanted = writes == DurableWrites::kAll
                            ? durable || !found
                            : writes == DurableWrites::kDurable && durable;
    if (!wanted || parts_.residency->in_durable(ref, static_cast<uint8_t>(i))) continue;
    found ? one.writer->AddFound(ref) : one.writer->Add(ref);
  }
}

bool DurableTiers::MayGoOn(BlockRef ref) const {
  const Residency& residency = *parts_.residency;
  if (lasting_.empty() || residency.at(ref).position == 0) return false;
  const BlockRef parent = residency.index().Parent(ref);
  if (parent == kNoBlock) return false;
  if (residency.found(parent) || residency.in_lasting(parent)) return true;
  // It was computed anew: then it ends there if this one is not there.
  return Recall(residency.IdOf(parent)).answer == Presence::Answer::kThere &&
         Recall(residency.IdOf(ref)).answer != Presence::Answer::kThere;
}

void DurableTiers::OnCommitted(BlockRef ref) {
  if (!IsDurable(ref)) ends_->Follow(ref, MayGoOn(ref));
  AddWhereWanted(ref, IsDurable(ref));
}

void DurableTiers::NameSession(const std::string& session, const BlockName& head, bool own_class) {
  if (own_class) ends_->Add(session, head);
  notes_->Want(session, head, own_class);
}

void DurableTiers::ForgetSession(uint16_t tenant, const std::string& session,
                                 std::function<void(Status)> on_done) {
  ends_->Forget(tenant, session);
  notes_->Forget(tenant, session, std::move(on_done));
}

void DurableTiers::Want(BlockRef ref) { AddWhereWanted(ref, true); }

void DurableTiers::OnExpiryChanged(BlockRef ref) {
  for (const auto& one : tiers_) one->writer->Renew(ref);
}

void DurableTiers::PumpSoon() {
  ends_->Pump();
  for (const auto& one : tiers_) one->writer->PumpSoon();
}

void DurableTiers::SweepSoon() {
  sweeping_ = true;
  sweep_cursor_ = 0;
}

template <class Visit>
bool DurableTiers::VisitSome(BlockRef* cursor, Visit visit) const {
  const Index& index = parts_.residency->index();
  for (size_t step = 0; step < kSweepSlice && *cursor < index.ref_limit(); ++step, ++*cursor) {
    const BlockRef ref = *cursor;
    if (index.Exists(ref) && index.at(ref).state == BlockState::kResident) visit(ref);
  }
  return *cursor < index.ref_limit();
}

bool DurableTiers::SweepMore() {
  if (!sweeping_) return false;
  sweeping_ = VisitSome(&sweep_cursor_, [this](BlockRef ref) {
    if (IsDurable(ref)) AddWhereWanted(ref, true);
  });
  return sweeping_;
}

bool DurableTiers::AddAll(uint16_t tenant, BlockRef* cursor) {
  return VisitSome(cursor, [&](BlockRef ref) {
    if (parts_.residency->at(ref).tenant == tenant) AddWhereWanted(ref, true);
  });
}

bool DurableTiers::CountOthers(uint16_t tenant, BlockRef* cursor, size_t* others) const {
  return VisitSome(cursor, [&](BlockRef ref) {
    const Residency& residency = *parts_.residency;
    const bool other = !residency.in_lasting(ref) && !IsDurable(ref);
    if (residency.at(ref).tenant == tenant && other) ++*others;
  });
}

// --- Flush

bool DurableTiers::lasting_usable() const {
  return std::any_of(lasting_.begin(), lasting_.end(),
                     [](const One* one) { return one->usable(); });
}

bool DurableTiers::notes_usable() const {
  return std::any_of(tiers_.begin(), tiers_.end(),
                     [](const auto& one) { return one->source.lasting && one->usable(); });
}

bool DurableTiers::Owes(uint16_t tenant) const {
  return notes_->waits(tenant) ||
         std::any_of(lasting_.begin(), lasting_.end(),
                     [tenant](const One* one) { return one->writer->Owes(tenant); });
}

std::string DurableTiers::WhyNotUsable() const {
  if (lasting_.empty()) return "none of the durable tiers counts as durable";
  std::string why;
  for (const One* const one : lasting_) {
    if (one->usable()) continue;
    why += (why.empty() ? "" : "; ") + one->source.name + ": " + one->WhyNot().message();
  }
  return why;
}

Status DurableTiers::last_failure() const {
  for (const One* const one : lasting_) {
    if (!one->writer->last_failure().ok()) return one->writer->last_failure();
  }
  return Status();
}

void DurableTiers::AddClient(uint32_t client, uint16_t tenant) {
  for (const One* const one : lasting_) one->writer->AddClient(client, tenant);
}

DurableTiers::FlushId DurableTiers::Flush(uint16_t tenant, uint32_t client, bool everyone,
                                          std::function<void(Status)> on_done) {
  auto joined = std::make_shared<Joined>();
  joined->open = lasting_.size();
  joined->on_done = std::move(on_done);
  FlushId flush;
  const uint16_t of = everyone ? FlushWaits::kEveryone : tenant;
  for (One* const one : lasting_) {
    const auto flushed =
        tasks_.Guard([this, of, joined](const Status& status) { OnFlushed(of, joined, status); });
    flush.push_back(everyone ? one->writer->FlushAll(tenant, client, flushed)
                             : one->writer->Flush(tenant, client, flushed));
  }
  return flush;
}

// One tier that has all of it is enough.
void DurableTiers::OnFlushed(uint16_t of, const std::shared_ptr<Joined>& joined,
                             const Status& status) {
  --joined->open;
  if (!joined->on_done) return;
  if (status.ok()) {
    return notes_->Flush(of, std::exchange(joined->on_done, nullptr));
  }
  joined->status = status;
  if (joined->open == 0) std::exchange(joined->on_done, nullptr)(joined->status);
}

void DurableTiers::EndFlush(const FlushId& flush) {
  for (size_t i = 0; i < flush.size(); ++i) lasting_[i]->writer->EndFlush(flush[i]);
}

// --- Deleting

bool DurableTiers::Erase(const BlockId& id) {
  bool all = true;
  for (const auto& one : tiers_) {
    one->loader->Forget(id);
    one->presence->OnErased(id);
    const bool room = one->eraser->pending() < kMaxErasures;
    if (room) one->eraser->Add(id);
    all = all && room;
  }
  return all;
}

void DurableTiers::OnJoined(const std::shared_ptr<Joined>& joined, const Status& status) {
  if (!status.ok()) joined->status = status;
  if (--joined->open == 0) joined->on_done(joined->status);
}

void DurableTiers::BeginErasingAll(uint16_t tenant) {
  const TenantId& id = parts_.catalog->tenant(tenant).id;
  erasing_.insert(id);
  ends_->BeginForgetting(tenant);
  for (const auto& one : tiers_) one->loader->ForgetTenant(id);
}

void DurableTiers::EndErasingAll(uint16_t tenant) {
  const auto found = erasing_.find(parts_.catalog->tenant(tenant).id);
  if (found != erasing_.end()) erasing_.erase(found);
  // What only the tiers had has no entry here by which it could be named.
  for (const auto& one : tiers_) one->presence->OnErasedMany();
}

void DurableTiers::EraseAll(uint16_t tenant, std::function<void(Status)> on_done) {
  auto joined = std::make_shared<Joined>();
  joined->open = tiers_.size();
  joined->on_done = std::move(on_done);
  const TenantId id = parts_.catalog->tenant(tenant).id;
  for (const auto& one : tiers_) {
    if (!one->usable()) {
      OnJoined(joined,
               Status(Code::kUnavailable,
                      one->source.name + " is out of service: evict again when it is back"));
      continue;
    }
    one->tier->EraseAll(id,
                        tasks_.Guard([joined](const Status& status) { OnJoined(joined, status); }));
  }
}

// First what is being written, then what is to be deleted: a write of a block that is gone adds to
// that.
void DurableTiers::Barrier(uint16_t tenant, std::function<void(Status)> on_done) {
  auto joined = std::make_shared<Joined>();
  joined->open = tiers_.size();
  joined->on_done = std::move(on_done);
  const TenantId id = parts_.catalog->tenant(tenant).id;
  for (const auto& one : tiers_) {
    one->eraser->Pump();
    one->writer->Barrier(tenant, [joined, id, eraser = one->eraser.get()](const Status& writes) {
      eraser->Barrier(id, [joined, writes](const Status& erasures) {
        OnJoined(joined, writes.ok() ? erasures : writes);
      });
    });
  }
}

// --- Stats

std::vector<DurableStats> DurableTiers::Stats() const {
  const int64_t now = parts_.clock->NowNanos();
  std::vector<DurableStats> all;
  for (const auto& one : tiers_) {
    const LoaderStats& loads = one->loader->stats();
    const DurableWriterStats& writes = one->writer->stats();
    const TierSpeed& speed = one->loader->speed();
    const int64_t oldest = one->writer->OldestNanos();
    DurableStats stats;
    stats.name = one->source.name;
    stats.in_service = one->usable();
    stats.why = one->WhyNot().message();
    stats.latency_ms = static_cast<double>(speed.LatencyNanos(now)) / 1e6;
    stats.bytes_per_second = speed.BytesPerSecond(now);
    if (one->tier != nullptr) {
      stats.usage = one->tier->Usage();
      stats.unswept_tenants = one->tier->unswept_tenants();
      stats.counters = one->tier->Counters();
    }
    stats.looks = one->presence->stats().looks;
    stats.looks_found = one->presence->stats().found;
    stats.loaded_blocks = loads.loads;
    stats.loaded_bytes = loads.loaded_bytes;
    stats.failed_loads = loads.failed_loads + loads.late_loads;
    stats.written_blocks = writes.written_blocks;
    stats.written_bytes = writes.written_bytes;
    stats.failed_writes = writes.failed_blocks;
    stats.waiting_loads = one->loader->pending();
    stats.waiting_writes = one->writer->waiting();
    stats.waiting_erasures = one->eraser->pending();
    stats.oldest_unprotected_seconds =
        oldest == INT64_MAX ? 0 : static_cast<double>(now - oldest) / 1e9;
    all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace aquifer
