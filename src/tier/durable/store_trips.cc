#include "tier/durable/store_trips.h"

#include <utility>
#include <vector>

namespace aquifer {

void StoreTrips::Submit(std::shared_ptr<Trip> trip, Done on_done) {
  Trip* const at = trip.get();
  {
    const MutexLock lock(&mutex_);
    at->number = next_number_++;
    under_way_[at->number] = {.trip = std::move(trip), .on_done = std::move(on_done)};
  }
  // The request is destroyed by its completion, maybe while the store is still in it: nothing of
  // the function is touched after the call, which holds on to this object by itself.
  at->request.on_done = [self = shared_from_this(), number = at->number](BlobRequest&) {
    self->OnDone(number);
  };
  store_->Submit(&at->request);
}

void StoreTrips::OnDone(uint64_t number) {
  const std::shared_ptr<StoreTrips> self = shared_from_this();
  UnderWay ended;
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(number);
    if (found->second.cancelling) {
      found->second.done = true;
      return;
    }
    ended = std::move(found->second);
    under_way_.erase(found);
  }
  Tell(std::move(ended));
}

void StoreTrips::Tell(UnderWay ended) {
  executor_->Post([self = shared_from_this(), ended = std::move(ended)] {
    if (!self->closed_) ended.on_done(*ended.trip);
  });
}

void StoreTrips::Cancel(const Trip& trip) {
  const uint64_t number = trip.number;
  BlobRequest* request = nullptr;
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(number);
    if (found == under_way_.end()) return;
    found->second.cancelling = true;
    request = &found->second.trip->request;
  }
  store_->Cancel(request);  // May complete it from inside.
  UnderWay ended;
  {
    const MutexLock lock(&mutex_);
    const auto found = under_way_.find(number);
    found->second.cancelling = false;
    if (!found->second.done) return;
    ended = std::move(found->second);
    under_way_.erase(found);
  }
  Tell(std::move(ended));
}

void StoreTrips::Close() {
  closed_ = true;
  std::vector<std::shared_ptr<Trip>> left;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [number, one] : under_way_) left.push_back(one.trip);
  }
  for (const auto& trip : left) Cancel(*trip);
}

}  // namespace aquifer
