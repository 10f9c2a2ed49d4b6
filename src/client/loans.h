// Loans holds the client's leases and reservations of a node's memory. Each has an id that no other
// loan of this client ever had, because ids of different nodes repeat. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace aquifer {

class Link;

struct Loan {
  uint64_t node_id = 0;  // The node's id of the loan.
  // The link that maps the memory. It lives as long as the client holds a loan of it.
  Link* link = nullptr;
  uint32_t extent = 0;
  bool reservation = false;
};

class Loans {
 public:
  uint64_t Add(const Loan& loan);
  // Returns null if there is no loan with that id. The pointer is valid until the next call.
  const Loan* Find(uint64_t id, bool reservation) const;
  // Removes a loan that Find() found.
  void Remove(uint64_t id);

 private:
  struct Place {
    Loan loan;  // The link is null while the place is free.
    uint32_t generation = 1;
  };

  std::deque<Place> places_;
  std::vector<uint32_t> free_;
};

}  // namespace aquifer
