#include "node/local/insider.h"

namespace aquifer {

Result<std::unique_ptr<Insider>> Insider::New(RunningCore* running, const ClientOptions& options) {
  std::unique_ptr<Insider> insider(new Insider(running));
  Result<ClientNumber> client = Status(Code::kUnavailable);
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    ClientSink* const sink = insider.get();
    client = running->core()->AttachAdministrator(options, sink);
    done();
  });
  if (!client.ok()) return client.status();
  insider->client_ = *client;
  insider->attached_ = true;
  return insider;
}

Insider::~Insider() {
  if (!attached_) return;
  RunAndWait(running_->owner(), [this](const std::function<void()>& done) {
    alive_.reset();
    running_->core()->Detach(client_, done);
  });
}

void Insider::EvictWithin(int64_t nanos, EvictRequest* request) {
  running_->owner()->PostAt(SystemClock()->NowNanos() + nanos,
                            [this, request, alive = std::weak_ptr<bool>(alive_)] {
                              if (!alive.expired() && asked_ == request)
                                running_->core()->Cancel(client_, request);
                            });
  Evict(request);
}

// Before the destructor, whose own task is behind this one then.
void Insider::Cancel() {
  running_->owner()->Post([this] {
    if (asked_ != nullptr) running_->core()->Cancel(client_, asked_);
  });
}

void Insider::OnProgress(Request* request, size_t completed, bool done) {
  RequestProgress::Advance(request, completed, done);
  if (!done) return;
  asked_ = nullptr;
  std::exchange(done_, {})();
}

}  // namespace aquifer
