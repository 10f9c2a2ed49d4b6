// A cache that hands every call on to another one: tests override what they want otherwise.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "aquifer/cache.h"

namespace aquifer {

class ForwardingCache : public Cache {
 public:
  explicit ForwardingCache(std::unique_ptr<Cache> to) : to_(std::move(to)) {}

  Result<std::unique_ptr<Cache>> Join(const ClientOptions& options) override {
    return to_->Join(options);
  }
  void RegisterLayout(RegisterLayoutRequest* request) override { to_->RegisterLayout(request); }
  void Match(MatchRequest* request) override { to_->Match(request); }
  void Fetch(FetchRequest* request) override { to_->Fetch(request); }
  void Reserve(ReserveRequest* request) override { to_->Reserve(request); }
  void Commit(CommitRequest* request) override { to_->Commit(request); }
  void Flush(FlushRequest* request) override { to_->Flush(request); }
  void Pin(PinRequest* request) override { to_->Pin(request); }
  void Prestage(PrestageRequest* request) override { to_->Prestage(request); }
  void Evict(EvictRequest* request) override { to_->Evict(request); }
  void Drain(DrainRequest* request) override { to_->Drain(request); }
  void Stats(StatsRequest* request) override { to_->Stats(request); }
  void Release(std::span<const ReleaseOp> leases) override { to_->Release(leases); }
  void Abort(std::span<const ReservationId> reservations) override { to_->Abort(reservations); }
  void Hint(const SessionForecast& forecast) override { to_->Hint(forecast); }
  void ReportPrefill(const PrefillReport& report) override { to_->ReportPrefill(report); }
  void Cancel(Request* request) override { to_->Cancel(request); }
  size_t Poll() override { return to_->Poll(); }
  int event_fd() const override { return to_->event_fd(); }
  bool Wait(const Request& request, int64_t timeout_nanos) override {
    return to_->Wait(request, timeout_nanos);
  }

 protected:
  Cache* to() { return to_.get(); }

 private:
  const std::unique_ptr<Cache> to_;
};

}  // namespace aquifer
