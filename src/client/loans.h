// What the caller holds of a node's memory: leases and reservations, each under a name that no
// other loan of this client ever had. The nodes' own names repeat from one node to the next. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace aquifer {

class Link;

struct Loan {
  uint64_t node_id = 0;  // The node's name for it.
  Link* link = nullptr;  // Whose memory it is; lives as long as something of it is held.
  uint32_t extent = 0;
  bool reservation = false;
};

class Loans {
 public:
  uint64_t Add(const Loan& loan);
  // Null: there is none of that name. Good until the next call.
  const Loan* Find(uint64_t id, bool reservation) const;
  // Forgets one that Find() finds.
  void Remove(uint64_t id);

 private:
  struct Place {
    Loan loan;  // Its link is null while the place is free.
    uint32_t generation = 1;
  };

  std::deque<Place> places_;
  std::vector<uint32_t> free_;
};

}  // namespace aquifer
