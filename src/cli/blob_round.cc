#include "cli/blob_round.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/mutex.h"
#include "cli/bench_memory.h"
#include "io/disk.h"

namespace aquifer {
namespace {

class Round {
 public:
  explicit Round(const BlobRound& round) : round_(round), requests_(round.places.size()) {}

  Result<double> Run() {
    const Stopwatch watch;
    for (BlobRequest& request : requests_) {
      SendNext(&request);
    }
    while (under_way_ > 0) {
      BlobRequest* const request = WaitForOne();
      --under_way_;
      if (request->status.code() == Code::kBusy) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        Send(request);
      } else if (!request->status.ok()) {
        if (failure_.ok()) failure_ = request->status;
      } else {
        bytes_ += request->head.size() + request->body.size();
        SendNext(request);
      }
    }
    if (!failure_.ok()) return failure_;
    return GigabytesPerSecond(bytes_, watch.Seconds());
  }

 private:
  void SendNext(BlobRequest* request) {
    if (next_ == round_.names.size() || !failure_.ok()) return;
    const std::span<std::byte> place =
        round_.places[static_cast<size_t>(request - requests_.data())];
    request->kind = round_.kind;
    request->name = round_.names[next_++];
    request->head = place.first(kPageBytes);
    request->body = place.subspan(kPageBytes);
    request->body_bytes = request->body.size();
    Send(request);
  }

  void Send(BlobRequest* request) {
    ++under_way_;
    request->on_done = [this](BlobRequest& done) { Ended(&done); };
    round_.store->Submit(request);
  }

  void Ended(BlobRequest* request) {
    const MutexLock lock(&mutex_);
    ended_.push_back(request);
    wakes_.NotifyOne();
  }

  BlobRequest* WaitForOne() {
    const MutexLock lock(&mutex_);
    while (ended_.empty()) wakes_.Wait(&mutex_);
    BlobRequest* const request = ended_.back();
    ended_.pop_back();
    return request;
  }

  const BlobRound& round_;
  std::vector<BlobRequest> requests_;
  size_t next_ = 0;
  size_t under_way_ = 0;
  uint64_t bytes_ = 0;
  Status failure_;

  Mutex mutex_;
  Condition wakes_;
  std::vector<BlobRequest*> ended_ AQ_GUARDED_BY(mutex_);
};

}  // namespace

Result<double> RunBlobRound(const BlobRound& round) { return Round(round).Run(); }

}  // namespace aquifer
