#include "cache/residency/loan_book.h"

#include <algorithm>
#include <utility>

#include "base/planted_bug.h"

namespace aquifer {
namespace {

constexpr size_t kOverdueSlice = 1024;
constexpr size_t kOverdueVoids = 64;  // Of those.

}  // namespace

void LoanBook::AddClient(ClientNumber client, uint16_t tenant, uint32_t first_generation) {
  if (borrowers_.size() <= client) borrowers_.resize(size_t{client} + 1);
  borrowers_[client] = {.tenant = tenant, .first_generation = first_generation};
}

// Loan 0 is never given out, so that 0 can end lists and name nothing.
BlockLoan* LoanBook::Take() {
  if (free_loan_ != 0) {
    BlockLoan* const loan = &loans_[free_loan_];
    free_loan_ = loan->next;
    return loan;
  }
  if (loans_.empty()) loans_.emplace_back();
  BlockLoan* const loan = &loans_.emplace_back();
  loan->number = static_cast<uint32_t>(loans_.size() - 1);
  return loan;
}

uint64_t LoanBook::Lend(ClientNumber client, BlockRef ref, bool reservation) {
  const bool leased = reservation || !Planted(PlantedBug::kLeaseNotTaken);
  if (full(client)) return 0;
  if (leased && !parts_.residency->Lease(ref)) return 0;
  BlockLoan* const loan = Take();
  Borrower& borrower = borrowers_[client];
  *loan = {.ref = leased ? ref : BlockRef{kNoBlock},
           .client = client,
           .reservation = reservation,
           .used = true,
           .since_nanos = parts_.clock->NowNanos(),
           .number = loan->number,
           .next = borrower.first_loan};
  if (loan->next != 0) loans_[loan->next].previous = loan->number;
  borrower.first_loan = loan->number;
  ++borrower.loans;
  ++lent_;
  return GiveName(&borrower, loan);
}

uint64_t LoanBook::GiveName(Borrower* borrower, BlockLoan* loan) {
  std::vector<Name>& names = borrower->names;
  if (names.empty()) names.emplace_back();
  if (borrower->free_name == 0) {
    borrower->free_name = static_cast<uint32_t>(names.size());
    names.push_back({.generation = borrower->first_generation});
  }
  loan->name = borrower->free_name;
  Name& name = names[loan->name];
  name.loan = loan->number;
  borrower->free_name = std::exchange(name.next_free, 0);
  return uint64_t{name.generation} << 32 | loan->name;
}

BlockLoan* LoanBook::Find(ClientNumber client, uint64_t id, bool reservation) {
  const std::vector<Name>& names = borrowers_[client].names;
  const auto place = static_cast<uint32_t>(id);
  if (place >= names.size()) return nullptr;
  const Name& name = names[place];
  if (name.loan == 0 || name.generation != id >> 32) return nullptr;
  BlockLoan& loan = loans_[name.loan];
  return loan.reservation == reservation ? &loan : nullptr;
}

void LoanBook::End(BlockLoan* loan) {
  Borrower& borrower = borrowers_[loan->client];
  if (loan->previous != 0) {
    loans_[loan->previous].next = loan->next;
  } else {
    borrower.first_loan = loan->next;
  }
  if (loan->next != 0) loans_[loan->next].previous = loan->previous;
  if (borrower.void_next == loan->number) borrower.void_next = loan->next;
  --borrower.loans;
  --lent_;
  Name& name = borrower.names[loan->name];
  name = {.generation = name.generation + 1, .next_free = borrower.free_name};
  borrower.free_name = loan->name;
  loan->used = false;
  loan->next = free_loan_;
  free_loan_ = loan->number;
  if (loan->ref != kNoBlock) parts_.residency->Unlease(loan->ref);
}

bool LoanBook::IsOpen(const BlockLoan& loan) const {
  return loan.reservation && parts_.residency->at(loan.ref).state == BlockState::kFilling;
}

void LoanBook::Abort(BlockLoan* loan) {
  if (IsOpen(*loan)) {
    parts_.meters->Count(borrowers_[loan->client].tenant, &CacheCounters::aborted);
    parts_.fills->Void(loan->ref);
  }
  End(loan);
}

uint64_t LoanBook::lent_to(uint16_t tenant) const {
  uint64_t lent = 0;
  for (const Borrower& borrower : borrowers_)
    lent += borrower.tenant == tenant ? borrower.loans : 0;
  return lent;
}

void LoanBook::BeginVoiding(ClientNumber client) {
  borrowers_[client].void_next = borrowers_[client].first_loan;
  voiding_.push_back(client);
}

void LoanBook::BeginReturning(ClientNumber client, std::function<void()> on_done) {
  std::erase(voiding_, client);
  returning_.push_back({client, std::move(on_done)});
}

bool LoanBook::VoidSome(size_t max) {
  while (!voiding_.empty()) {
    Borrower& borrower = borrowers_[voiding_.front()];
    uint32_t& next = borrower.void_next;
    for (; next != 0 && max > 0; --max) {
      const BlockLoan& loan = loans_[next];
      next = loan.next;
      if (!IsOpen(loan)) continue;
      parts_.meters->Count(borrower.tenant, &CacheCounters::aborted);
      parts_.fills->Void(loan.ref);
    }
    if (next != 0) return true;
    voiding_.pop_front();
  }
  return false;
}

bool LoanBook::ReturnSome(size_t max) {
  while (!returning_.empty()) {
    Borrower& borrower = borrowers_[returning_.front().client];
    for (; borrower.first_loan != 0 && max > 0; --max) {
      BlockLoan* const loan = &loans_[borrower.first_loan];
      loan->reservation ? Abort(loan) : End(loan);
    }
    if (borrower.first_loan != 0) return true;
    const std::function<void()> on_done = std::move(returning_.front().on_done);
    returning_.pop_front();
    on_done();
  }
  return false;
}

// Ranks that died or hang in mid-store keep everyone else from storing these blocks: their
// reservations are void from now on, and the slots stay in quarantine until the ranks let go. Of a
// block whose other heads never come, no rank has a loan any more.
bool LoanBook::LookForOverdue(int64_t limit_nanos) {
  size_t max = kOverdueVoids;
  for (size_t step = 0; step < std::min(kOverdueSlice, loans_.size()) && max > 0; ++step) {
    overdue_cursor_ = (overdue_cursor_ + 1) % loans_.size();
    BlockLoan& loan = loans_[overdue_cursor_];
    if (!loan.used || loan.since_nanos > limit_nanos || std::exchange(loan.overdue, true)) continue;
    const uint16_t tenant = borrowers_[loan.client].tenant;
    if (!loan.reservation) parts_.meters->Count(tenant, &CacheCounters::overdue_leases);
    if (IsOpen(loan)) {
      parts_.meters->Count(tenant, &CacheCounters::overdue);
      parts_.fills->Void(loan.ref);
      --max;
    }
    on_overdue(loan.client);
  }
  parts_.fills->VoidOverdue(limit_nanos, &max);
  return max < kOverdueVoids;
}

}  // namespace aquifer
