#include "testing/cache/stepped_cache.h"

#include <utility>

#include "base/check.h"
#include "base/request_progress.h"

namespace aquifer {

SteppedCache::SteppedCache(std::shared_ptr<MemoryMedia> media, const SteppedCacheOptions& options)
    : executor_(&clock_), random_(options.seed) {
  CacheEnvironment environment;
  environment.clock = &clock_;
  environment.random = &random_;
  environment.owner = &executor_;
  environment.workers = &executor_;
  environment.extents = &extents_;
  environment.open_disk = [this, media = std::move(media),
                           options](const std::string&) -> Result<std::unique_ptr<Disk>> {
    auto disk = std::make_unique<MemoryDisk>(media, options.disk, &executor_, &clock_);
    disk->StopAfter(options.stop_disk_after);
    disk_ = disk.get();
    return std::unique_ptr<Disk>(std::move(disk));
  };
  auto core = Core::New({.cache = options.cache,
                         .extent_bytes = options.extent_bytes,
                         .max_blocks = options.max_blocks},
                        environment);
  AQ_CHECK(core.ok());
  core_ = *std::move(core);
  core_->Start([this](const Status& status) { ready_ = status.ok(); });
  Advance(100'000'000);
  const auto client = core_->Attach({}, this);
  AQ_CHECK(client.ok());
  client_ = *client;
}

SteppedCache::~SteppedCache() {
  core_->Detach(client_, nullptr);
  core_.reset();
}

void SteppedCache::OnProgress(Request* request, size_t completed, bool done) {
  RequestProgress::Advance(request, completed, done);
}

bool SteppedCache::Wait(const Request& request, int64_t timeout_nanos) {
  const int64_t start = clock_.NowNanos();
  executor_.RunAll();
  while (!request.done() && clock_.NowNanos() - start < timeout_nanos) {
    if (!executor_.RunNextTimer()) return false;
    executor_.RunAll();
  }
  return request.done();
}

template <auto kCall, class R>
void SteppedCache::Submit(R* request) {
  RequestProgress::Begin(request);
  RequestProgress::SetCalled(request, clock_.NowNanos());
  executor_.Post([this, request] { (core_.get()->*kCall)(client_, request); });
}

void SteppedCache::RegisterLayout(RegisterLayoutRequest* request) {
  Submit<&Core::RegisterLayout>(request);
}
void SteppedCache::Match(MatchRequest* request) { Submit<&Core::Match>(request); }
void SteppedCache::Fetch(FetchRequest* request) { Submit<&Core::Fetch>(request); }
void SteppedCache::Reserve(ReserveRequest* request) { Submit<&Core::Reserve>(request); }
void SteppedCache::Commit(CommitRequest* request) { Submit<&Core::Commit>(request); }
void SteppedCache::Flush(FlushRequest* request) { Submit<&Core::Flush>(request); }
void SteppedCache::Pin(PinRequest* request) { Submit<&Core::Pin>(request); }
void SteppedCache::Prestage(PrestageRequest* request) { Submit<&Core::Prestage>(request); }
void SteppedCache::Evict(EvictRequest* request) { Submit<&Core::Evict>(request); }
void SteppedCache::Drain(DrainRequest* request) { Submit<&Core::Drain>(request); }
void SteppedCache::Stats(StatsRequest* request) { Submit<&Core::Stats>(request); }
void SteppedCache::Release(std::span<const ReleaseOp> leases) {
  while (!leases.empty()) leases = leases.subspan(core_->Release(client_, leases));
}
void SteppedCache::Abort(std::span<const ReservationId> reservations) {
  while (!reservations.empty()) {
    reservations = reservations.subspan(core_->Abort(client_, reservations));
  }
}
void SteppedCache::Hint(const SessionForecast& forecast) {
  if (!forecast.chain.keys.empty()) core_->Hint(client_, forecast, forecast.chain.keys.back());
}
void SteppedCache::ReportPrefill(const PrefillReport& report) {
  core_->ReportPrefill(client_, report);
}
void SteppedCache::Cancel(Request* request) { core_->Cancel(client_, request); }

}  // namespace aquifer
