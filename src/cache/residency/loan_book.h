// Leases and reservations: which client holds which block, for reading or for writing, and by what
// name it gives it back. Each loan holds a lease of the block's entry in the index, so that the
// entry outlives it. A loan is never taken back from a live client, for someone may be reading:
// what is overdue is counted and told, and a reservation that is overdue only cannot be committed
// any more.
//
// What a client knows its loans by is its own: numbers of the whole cache would tell it what others
// fetch.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "cache/residency/cache_meters.h"
#include "cache/residency/fill_table.h"
#include "cache/residency/residency.h"

namespace aquifer {

using ClientNumber = uint32_t;

struct BlockLoan {
  BlockRef ref = kNoBlock;
  ClientNumber client = 0;
  uint32_t name = 0;  // The client's for it.
  bool reservation = false;
  bool used = false;
  bool overdue = false;  // Counted as such.
  int64_t since_nanos = 0;
  uint32_t number = 0;
  uint32_t next = 0;  // In the client's list, or of the free ones.
  uint32_t previous = 0;
};

struct LoanBookParts {
  uint32_t max_loans_per_client = 0;
  Residency* residency = nullptr;
  FillTable* fills = nullptr;
  CacheMeters* meters = nullptr;
  Clock* clock = nullptr;
};

class LoanBook {
 public:
  explicit LoanBook(const LoanBookParts& parts) : parts_(parts) {}

  // A client that has the number from now on. Its loans' names begin with a random generation, so
  // that an earlier client's hardly is one.
  void AddClient(ClientNumber client, uint16_t tenant, uint32_t first_generation);

  // Returns the client's name for the loan; 0: it has too many, or the block is leased too often.
  uint64_t Lend(ClientNumber client, BlockRef ref, bool reservation);
  // Null: the client has no such loan.
  BlockLoan* Find(ClientNumber client, uint64_t id, bool reservation);
  void End(BlockLoan* loan);
  // The same of a reservation that its rank gives up. One rank's word is enough to make the block's
  // fill void: what that rank did not write, nobody else will.
  void Abort(BlockLoan* loan);

  // Returns true if some rank may still commit a part of the reservation's block.
  bool IsOpen(const BlockLoan& loan) const;
  // Returns true if the client can be lent nothing more.
  bool full(ClientNumber client) const {
    return borrowers_[client].loans == parts_.max_loans_per_client;
  }
  uint64_t lent() const { return lent_; }
  uint64_t lent_to(uint16_t tenant) const;

  // The client is cut off: its reservations become void, a slice at a time, and its leases stay.
  void BeginVoiding(ClientNumber client);
  // The client is gone: all that it has comes back, a slice at a time, and then `on_done` runs.
  void BeginReturning(ClientNumber client, std::function<void()> on_done);
  // A slice of each, of up to `max` loans. Return true if there is more.
  bool VoidSome(size_t max);
  bool ReturnSome(size_t max);

  // Looks at a slice of the loans and fills for what has been held since `limit_nanos` or longer.
  // Returns true if there was much, and there may be more.
  bool LookForOverdue(int64_t limit_nanos);
  // Called with a client that has held something for too long.
  std::function<void(ClientNumber)> on_overdue;

 private:
  struct Name {
    uint32_t loan = 0;  // 0: free.
    uint32_t generation = 0;
    uint32_t next_free = 0;
  };
  struct Borrower {
    uint16_t tenant = 0;
    uint32_t loans = 0;
    uint32_t first_loan = 0;    // A list through loans_; 0 ends it.
    uint32_t void_next = 0;     // The next to be looked at by VoidSome(); 0: none.
    std::vector<Name> names{};  // The first is nobody's.
    uint32_t free_name = 0;     // A list; 0 ends it.
    uint32_t first_generation = 0;
  };
  struct Returning {
    ClientNumber client = 0;
    std::function<void()> on_done;
  };

  BlockLoan* Take();
  uint64_t GiveName(Borrower* borrower, BlockLoan* loan);

  const LoanBookParts parts_;
  std::deque<BlockLoan> loans_;  // Grows without moving what is there. Loan 0 is nobody's.
  uint32_t free_loan_ = 0;
  uint64_t lent_ = 0;
  std::vector<Borrower> borrowers_;
  std::deque<ClientNumber> voiding_;
  std::deque<Returning> returning_;
  size_t overdue_cursor_ = 0;
};

}  // namespace aquifer
