#include "bench/blob_round.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "bench/peers/bench_memory.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

// Each request takes the next blob when it is done, on the store's thread.
class Round {
 public:
  explicit Round(const BlobRound& round)
      : round_(round),
        requests_(
            std::min(round.names.size(), round.at_once == 0 ? round.places.size() : round.at_once)),
        under_way_(requests_.size()) {}

  Result<double> Run() {
    const Stopwatch watch;
    for (BlobRequest& request : requests_) SendNext(&request);
    while (BlobRequest* const refused = AwaitRefused()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Send(refused);
    }
    const MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    return GigabytesPerSecond(bytes_, watch.Seconds());
  }

 private:
  void SendNext(BlobRequest* request) {
    size_t number = 0;
    {
      const MutexLock lock(&mutex_);
      if (next_ == round_.names.size() || !failure_.ok()) {
        if (--under_way_ == 0) wakes_.NotifyOne();
        return;
      }
      number = next_++;
    }
    const auto slot = static_cast<size_t>(request - requests_.data());
    const std::span<std::byte> place = round_.places[round_.at_once == 0 ? slot : number];
    request->kind = round_.kind;
    request->name = round_.names[number];
    request->head = place.first(kPageBytes);
    request->body = place.subspan(kPageBytes);
    request->body_bytes = request->body.size();
    request->if_absent = round_.if_absent;
    Send(request);
  }

  void Send(BlobRequest* request) {
    request->on_done = [this](BlobRequest& done) { Ended(&done); };
    round_.store->Submit(request);
  }

  void Ended(BlobRequest* request) {
    {
      const MutexLock lock(&mutex_);
      if (request->status.code() == Code::kBusy) {
        refused_.push_back(request);
        wakes_.NotifyOne();
        return;
      }
      Status status = request->existed ? Status(Code::kInvalid, "a blob is there already")
                                       : std::move(request->status);
      if (!status.ok() && failure_.ok()) failure_ = std::move(status);
      bytes_ += request->head.size() + request->body.size();
    }
    SendNext(request);
  }

  // Null: all are done.
  BlobRequest* AwaitRefused() {
    const MutexLock lock(&mutex_);
    while (refused_.empty() && under_way_ > 0) wakes_.Wait(&mutex_);
    if (refused_.empty()) return nullptr;
    BlobRequest* const request = refused_.back();
    refused_.pop_back();
    return request;
  }

  const BlobRound& round_;
  std::vector<BlobRequest> requests_;

  Mutex mutex_;
  Condition wakes_;
  size_t under_way_ AQ_GUARDED_BY(mutex_);
  size_t next_ AQ_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ AQ_GUARDED_BY(mutex_) = 0;
  Status failure_ AQ_GUARDED_BY(mutex_);
  std::vector<BlobRequest*> refused_ AQ_GUARDED_BY(mutex_);
};

}  // namespace

Result<double> RunBlobRound(const BlobRound& round) { return Round(round).Run(); }

}  // namespace aquifer
