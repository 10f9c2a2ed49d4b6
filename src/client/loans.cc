#include "client/loans.h"

namespace aquifer {

uint64_t Loans::Add(const Loan& loan) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(places_.size()));
    places_.emplace_back();
  }
  const uint32_t at = free_.back();
  free_.pop_back();
  places_[at].loan = loan;
  return uint64_t{places_[at].generation} << 32 | at;
}

const Loan* Loans::Find(uint64_t id, bool reservation) const {
  const auto at = static_cast<uint32_t>(id);
  if (at >= places_.size()) return nullptr;
  const Place& place = places_[at];
  const bool same = place.loan.link != nullptr && place.generation == id >> 32 &&
                    place.loan.reservation == reservation;
  return same ? &place.loan : nullptr;
}

void Loans::Remove(uint64_t id) {
  const auto at = static_cast<uint32_t>(id);
  places_[at].loan.link = nullptr;
  ++places_[at].generation;
  free_.push_back(at);
}

}  // namespace aquifer
