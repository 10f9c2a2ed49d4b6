// Reserve, Commit, Abort and Release: who may read or write which slot.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/planted_bug.h"
#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {
namespace {

constexpr size_t kReserveSlice = 32;
constexpr size_t kCommitSlice = 32;
constexpr size_t kOverdueSlice = 1024;
constexpr size_t kOverdueVoids = 64;  // Of those.
constexpr size_t kReturnSlice = 256;

Refusal WhyNoSlot(Code code) {
  switch (code) {
    case Code::kBusy:
      return Refusal::kWarming;
    case Code::kInvalid:
      return Refusal::kQuota;
    default:
      return Refusal::kFull;
  }
}

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kFull:
      return "full";
    case Refusal::kQuota:
      return "quota";
    case Refusal::kWarming:
      return "warming";
    case Refusal::kDraining:
      return "draining";
    case Refusal::kTooMany:
      return "too many";
  }
  return "unknown";
}

// --- Loans

// Loan 0 is never given out, so that 0 can end lists and name nothing.
uint64_t Core::Lend(ClientNumber client, BlockRef ref, bool reservation) {
  Client& borrower = clients_[client];
  const bool leased = ref != kNoBlock && (reservation || !Planted(PlantedBug::kLeaseNotTaken));
  if (borrower.leases == options_.max_leases_per_client) return 0;
  if (leased && !residency_->Lease(ref)) return 0;
  uint32_t number = free_loan_;
  if (number != 0) {
    free_loan_ = loans_[number].next;
  } else {
    if (loans_.empty()) loans_.emplace_back();
    number = static_cast<uint32_t>(loans_.size());
    loans_.emplace_back().number = number;
  }
  Loan& loan = loans_[number];
  loan.ref = leased ? ref : BlockRef{kNoBlock};
  loan.client = client;
  loan.reservation = reservation;
  loan.used = true;
  loan.overdue = false;
  loan.since_nanos = environment_.clock->NowNanos();
  loan.previous = 0;
  loan.next = borrower.first_loan;
  if (loan.next != 0) loans_[loan.next].previous = number;
  borrower.first_loan = number;
  ++borrower.leases;
  ++lent_;
  return NameLoan(&borrower, &loan);
}

uint64_t Core::NameLoan(Client* client, Loan* loan) {
  std::vector<LoanName>& names = client->loan_names;
  if (names.empty()) names.emplace_back();
  if (client->free_loan_name == 0) {
    client->free_loan_name = static_cast<uint32_t>(names.size());
    names.push_back({.generation = client->first_generation});
  }
  loan->name = client->free_loan_name;
  LoanName& name = names[loan->name];
  name.loan = loan->number;
  client->free_loan_name = std::exchange(name.next_free, 0);
  return uint64_t{name.generation} << 32 | loan->name;
}

Core::Loan* Core::FindLoan(ClientNumber client, uint64_t id, bool reservation) {
  const std::vector<LoanName>& names = clients_[client].loan_names;
  const auto place = static_cast<uint32_t>(id);
  if (place >= names.size()) return nullptr;
  const LoanName& name = names[place];
  if (name.loan == 0 || name.generation != id >> 32) return nullptr;
  Loan& loan = loans_[name.loan];
  return loan.reservation == reservation ? &loan : nullptr;
}

void Core::EndLoan(Loan* loan) {
  Client& borrower = clients_[loan->client];
  if (loan->previous != 0) {
    loans_[loan->previous].next = loan->next;
  } else {
    borrower.first_loan = loan->next;
  }
  if (loan->next != 0) loans_[loan->next].previous = loan->previous;
  if (borrower.void_next == loan->number) borrower.void_next = loan->next;
  --borrower.leases;
  --lent_;
  LoanName& name = borrower.loan_names[loan->name];
  name = {.generation = name.generation + 1, .next_free = borrower.free_loan_name};
  borrower.free_loan_name = loan->name;
  loan->used = false;
  loan->next = free_loan_;
  free_loan_ = loan->number;
  if (loan->ref != kNoBlock) residency_->Unlease(loan->ref);
}

size_t Core::Release(ClientNumber client, std::span<const ReleaseOp> leases) {
  const size_t count = std::min(leases.size(), kReturnSlice);
  for (const ReleaseOp& op : leases.first(count)) {
    Loan* const loan = FindLoan(client, op.lease, false);
    if (loan == nullptr) continue;
    if (op.corrupt && loan->ref != kNoBlock &&
        residency_->at(loan->ref).state == BlockState::kResident) {
      Count(clients_[client].tenant, &CoreCounters::reported_corrupt);
      // Where else it may lie as it was read: nobody is to read it again.
      if (durable_ != nullptr) std::ignore = durable_->Erase(residency_->IdOf(loan->ref));
      residency_->Drop(loan->ref, Leave::kCorrupt);
    }
    EndLoan(loan);
  }
  eraser_->Pump();
  if (loader_->pending() > 0) loader_->Pump();
  Housekeep();
  return count;
}

// --- Reserve

void Core::NewFilling(BlockRef ref, uint32_t engine) {
  uint32_t number = 0;
  if (free_fillings_.empty()) {
    number = static_cast<uint32_t>(fillings_.size());
    fillings_.emplace_back();
  } else {
    number = free_fillings_.back();
    free_fillings_.pop_back();
  }
  Filling& filling = fillings_[number];
  filling.ref = ref;
  filling.engine = engine;
  filling.sums = {};
  filling.covered_heads = 0;
  filling.ranges.clear();
  filling.since_nanos = environment_.clock->NowNanos();
  residency_->SetOwnerData(ref, number + 1);
}

const Core::Filling* Core::FillingOf(const BlockName& name) const {
  const BlockRef ref = residency_->index().Find(name);
  if (ref == kNoBlock || residency_->at(ref).state != BlockState::kFilling) return nullptr;
  return &fillings_[residency_->at(ref).owner_data - 1];
}

void Core::FreeFilling(BlockRef ref) {
  filling(ref).ref = kNoBlock;
  free_fillings_.push_back(residency_->at(ref).owner_data - 1);
  residency_->SetOwnerData(ref, 0);
  TakeOverBusy(residency_->NameOf(ref));
}

double Core::FillWaitMs(const Filling& filling) const {
  const double elapsed_ms =
      static_cast<double>(environment_.clock->NowNanos() - filling.since_nanos) / 1e6;
  return std::max(1.0, average_fill_ms_ - elapsed_ms);
}

NewBlock Core::BlockToFill(ClientNumber client, const ReserveRequest& request, size_t i) const {
  const uint16_t tenant = clients_[client].tenant;
  const int64_t ttl = catalog_.tenant(tenant).options.ttl_seconds;
  return {.name = {.tenant = tenant,
                   .group = request.chain.group,
                   .part = request.chain.part,
                   .key = request.chain.keys[i]},
          .parent = i == 0 ? request.parent : request.chain.keys[i - 1],
          .position = request.position + static_cast<uint32_t>(i),
          .layout = LayoutOf(client, request.chain.layout),
          .state = BlockState::kFilling,
          .expiry_unix_seconds = ttl == 0 ? 0 : UnixIn(ttl),
          .checksum = {},
          .engine_hash = request.engine_hashes.empty() ? 0 : request.engine_hashes[i],
          .now_nanos = environment_.clock->NowNanos()};
}

ReserveOp Core::ReserveOne(ClientNumber client, const ReserveRequest& request, size_t i) {
  const Client& borrower = clients_[client];
  const auto refused = [this, &borrower](Refusal why) {
    Count(borrower.tenant, &CoreCounters::reserve_refused);
    ++counters_.refused_for[static_cast<size_t>(why)];
    ReserveOp op;
    op.refusal = why;
    return op;
  };
  const uint16_t layout = LayoutOf(client, request.chain.layout);
  const uint64_t block_bytes = catalog_.layout(layout).groups[request.chain.group].block_bytes;
  const BlockName name{.tenant = borrower.tenant,
                       .group = request.chain.group,
                       .part = request.chain.part,
                       .key = request.chain.keys[i]};
  ReserveOp op;
  BlockRef ref = residency_->index().Find(name);
  if (ref != kNoBlock && residency_->at(ref).state == BlockState::kResident &&
      residency_->at(ref).expired(NowUnix())) {
    residency_->Drop(ref, Leave::kExpired);
    ref = kNoBlock;
  }
  // The layout is in every key: only a client that makes keys up gets here.
  if (ref != kNoBlock && residency_->at(ref).layout != layout) return refused(Refusal::kFull);
  if (ref != kNoBlock && residency_->at(ref).state == BlockState::kResident) {
    Count(borrower.tenant, &CoreCounters::reserve_have);
    op.outcome = ReserveOutcome::kHave;
    return op;
  }
  if (draining_) return refused(Refusal::kDraining);
  const Filling* const known = ref == kNoBlock ? nullptr : &filling(ref);
  if (known != nullptr && known->engine != borrower.engine) {
    Count(borrower.tenant, &CoreCounters::reserve_being_filled);
    op.outcome = ReserveOutcome::kBeingFilled;
    op.wait_ms = FillWaitMs(*known);
    return op;
  }
  if (borrower.leases == options_.max_leases_per_client) return refused(Refusal::kTooMany);
  if (known == nullptr) {
    const Result<SlotId> slot = residency_->TakeSlot(borrower.tenant, block_bytes);
    if (!slot.ok()) return refused(WhyNoSlot(slot.status().code()));
    const Result<BlockRef> added = residency_->AddFilling(BlockToFill(client, request, i), *slot);
    if (!added.ok()) {
      residency_->FreeSlot(borrower.tenant, *slot);
      return refused(Refusal::kFull);
    }
    ref = *added;
    NewFilling(ref, borrower.engine);
  }
  filling(ref).touched_nanos = environment_.clock->NowNanos();
  op.reservation = Lend(client, ref, true);
  if (op.reservation == 0) return refused(Refusal::kTooMany);
  op.outcome = ReserveOutcome::kSlot;
  op.slot = residency_->SlotBytes(residency_->at(ref).slot).first(block_bytes);
  Count(borrower.tenant, &CoreCounters::reserved);
  return op;
}

void ReserveJob::Reset() {
  AQ_CHECK(asked().ops.size() == asked().chain.keys.size());
  cursor_ = 0;
}

void ReserveJob::Run() {
  const size_t end = std::min(cursor_ + kReserveSlice, asked().ops.size());
  for (; cursor_ < end; ++cursor_)
    asked().ops[cursor_] = core().ReserveOne(client(), asked(), cursor_);
  core().eraser_->Pump();
  core().Housekeep();
  if (cursor_ == asked().ops.size()) return End(cursor_);
  Report(cursor_);
  RunAgain();
}

void ReserveJob::Cancel() {
  request()->status = Status(Code::kLate);
  End(cursor_);
}

// --- Commit

Status Core::Cover(Filling* filling, uint32_t heads, const CommitOp& op, bool* complete) {
  const uint32_t begin = op.head_begin;
  const uint32_t end = op.head_begin == 0 && op.head_end == 0 ? heads : op.head_end;
  if (begin >= end || end > heads) {
    return Status(Code::kInvalid, "head_begin and head_end are not a range of the block's " +
                                      std::to_string(heads) + " heads");
  }
  const std::pair range(begin, end);
  const auto after = std::upper_bound(filling->ranges.begin(), filling->ranges.end(), range);
  const bool overlaps_after = after != filling->ranges.end() && after->first < end;
  const bool overlaps_before = after != filling->ranges.begin() && std::prev(after)->second > begin;
  if (overlaps_after || overlaps_before) {
    return Status(Code::kInvalid, "some of these heads were committed already");
  }
  filling->covered_heads += end - begin;
  filling->sums = filling->sums + op.sums;
  *complete = filling->covered_heads == heads || Planted(PlantedBug::kRankNotAwaited);
  if (!*complete) filling->ranges.insert(after, range);
  return Status();
}

void Core::NoteFilled(const Filling& filling) {
  const double fill_ms =
      static_cast<double>(environment_.clock->NowNanos() - filling.since_nanos) / 1e6;
  average_fill_ms_ += (fill_ms - average_fill_ms_) / 16;
}

void Core::OnPublished(BlockRef ref) {
  if (durable_ != nullptr) durable_->OnCommitted(ref);
  write_down_->Add(ref);  // Which looks whether it is to be durable.
}

void Core::CommitOne(ClientNumber client, CommitOp* op) {
  op->published = false;
  Loan* const loan = FindLoan(client, op->reservation, true);
  if (loan == nullptr) {
    op->status = Status(Code::kInvalid, "no such reservation");
    return;
  }
  const BlockRef ref = loan->ref;
  const BlockEntry& entry = residency_->at(ref);
  if (entry.state != BlockState::kFilling) {
    op->status = WhyNotOpen(entry.state != BlockState::kGone);
    return EndLoan(loan);
  }
  const GroupRecord& group = catalog_.layout(entry.layout).groups[entry.group];
  bool complete = false;
  op->status = Cover(&filling(ref), group.heads, *op, &complete);
  if (!op->status.ok()) return;
  filling(ref).touched_nanos = environment_.clock->NowNanos();
  if (complete) {
    NoteFilled(filling(ref));
    const Checksum checksum = FinishChecksum(filling(ref).sums, group.block_bytes);
    FreeFilling(ref);
    residency_->Publish(ref, checksum);
    OnPublished(ref);
    op->published = true;
    Count(entry.tenant, &CoreCounters::committed);
    Count(entry.tenant, &CoreCounters::committed_bytes, group.block_bytes);
  }
  EndLoan(loan);
}

void CommitJob::Reset() { cursor_ = 0; }

void CommitJob::Run() {
  const size_t end = std::min(cursor_ + kCommitSlice, asked().ops.size());
  for (; cursor_ < end; ++cursor_) core().CommitOne(client(), &asked().ops[cursor_]);
  core().write_down_->PumpSoon();
  if (core().durable_ != nullptr) core().durable_->PumpSoon();
  if (cursor_ == asked().ops.size()) return End(cursor_);
  Report(cursor_);
  RunAgain();
}

// --- Abort

// Nobody will publish it. The slot stays in quarantine until every rank has let go.
void Core::VoidFilling(BlockRef ref) {
  FreeFilling(ref);
  residency_->Drop(ref, Leave::kAsked);
}

bool Core::IsOpen(const Loan& loan) const {
  return loan.reservation && residency_->at(loan.ref).state == BlockState::kFilling;
}

void Core::VoidReservation(const Loan& loan) { VoidFilling(loan.ref); }

Status Core::WhyNotOpen(bool whole) {
  return Status(Code::kInvalid, whole ? "every head was committed already"
                                      : "the reservation is void: another rank gave it up");
}

// One rank's word is enough: what it did not write, nobody else will.
void Core::AbortLoan(Loan* loan) {
  if (IsOpen(*loan)) {
    Count(clients_[loan->client].tenant, &CoreCounters::aborted);
    VoidReservation(*loan);
  }
  EndLoan(loan);
}

// Of clients that are cut off; false when none is left.
bool Core::VoidReservations(size_t max) {
  while (!disconnected_.empty()) {
    uint32_t& next = clients_[disconnected_.front()].void_next;
    for (; next != 0 && max > 0; --max) {
      const Loan& loan = loans_[next];
      next = loan.next;
      if (!IsOpen(loan)) continue;
      Count(clients_[loan.client].tenant, &CoreCounters::aborted);
      VoidReservation(loan);
    }
    if (next != 0) return true;
    disconnected_.pop_front();
  }
  return false;
}

size_t Core::Abort(ClientNumber client, std::span<const ReservationId> reservations) {
  const size_t count = std::min(reservations.size(), kReturnSlice);
  for (const ReservationId id : reservations.first(count)) {
    if (Loan* const loan = FindLoan(client, id, true); loan != nullptr) AbortLoan(loan);
  }
  if (loader_->pending() > 0) loader_->Pump();
  Housekeep();
  return count;
}

// Of clients that are gone; false when none is left.
bool Core::ReturnLoans(size_t max) {
  while (!leaving_.empty()) {
    Client& client = clients_[leaving_.front().client];
    for (; client.first_loan != 0 && max > 0; --max) {
      Loan* const loan = &loans_[client.first_loan];
      loan->reservation ? AbortLoan(loan) : EndLoan(loan);
    }
    if (client.first_loan != 0) return true;
    client.leaving = false;
    const std::function<void()> on_done = std::move(leaving_.front().on_done);
    leaving_.pop_front();
    if (on_done) on_done();
  }
  return false;
}

// A lease is never taken back: someone may be reading. It is only counted. Ranks that died or hang
// in mid-store keep everyone else from storing these blocks: their reservations are void from now
// on, and the slots stay in quarantine until the ranks let go.
bool Core::LookForOverdue() {
  const int64_t limit = environment_.clock->NowNanos() - options_.cache.overdue_nanos;
  size_t max = kOverdueVoids;
  for (size_t step = 0; step < std::min(kOverdueSlice, loans_.size()) && max > 0; ++step) {
    overdue_cursor_ = (overdue_cursor_ + 1) % loans_.size();
    Loan& loan = loans_[overdue_cursor_];
    if (!loan.used || loan.since_nanos > limit || std::exchange(loan.overdue, true)) continue;
    const uint16_t tenant = clients_[loan.client].tenant;
    if (!loan.reservation) Count(tenant, &CoreCounters::overdue_leases);
    if (IsOpen(loan)) {
      Count(tenant, &CoreCounters::overdue);
      VoidReservation(loan);
      --max;
    }
    if (clients_[loan.client].attached) clients_[loan.client].sink->OnOverdue();
  }
  VoidOverdueFillings(limit, &max);
  return max < kOverdueVoids;
}

// Of a block whose other heads never come, no rank has a loan any more.
void Core::VoidOverdueFillings(int64_t limit_nanos, size_t* max) {
  for (size_t step = 0; step < std::min(kOverdueSlice, fillings_.size()) && *max > 0; ++step) {
    filling_cursor_ = (filling_cursor_ + 1) % fillings_.size();
    const Filling& filling = fillings_[filling_cursor_];
    if (filling.ref == kNoBlock || filling.touched_nanos > limit_nanos) continue;
    Count(residency_->at(filling.ref).tenant, &CoreCounters::overdue);
    VoidFilling(filling.ref);
    --*max;
  }
}

}  // namespace aquifer
