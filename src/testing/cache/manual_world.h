// A whole cache in one thread, for tests: time stands still until it is moved, every task is run by
// hand, and drives and memory are made of ordinary memory. A restart keeps what is on the drives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "base/request_progress.h"
#include "cache/core.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_disk.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"

namespace aquifer {

class ManualWorld {
 public:
  // `extents` outlives it; by default they are ordinary memory. So does what the durable tiers
  // stand on, which are made anew with every start, and the packer that seals what goes to drives.
  explicit ManualWorld(const CoreOptions& options, ExtentSource* extents = nullptr,
                       std::vector<DurableTierSource> durable_tiers = {}, Packer* packer = nullptr)
      : options_(options),
        real_extents_(extents),
        durable_tiers_(std::move(durable_tiers)),
        packer_(packer) {
    Start();
  }
  ~ManualWorld() { Stop(); }

  // As a crash: nothing that was not done is done.
  void Restart() {
    Stop();
    Start();
  }

  // The same with other options.
  void Restart(const CoreOptions& options) {
    options_ = options;
    Restart();
  }

  void Run() {
    while (owner_->RunAll() + workers_->RunAll() > 0) {
    }
  }
  // Moves time on, in steps small enough for every timer to run at about its time.
  void Advance(int64_t nanos) {
    const int64_t end = clock_.NowNanos() + nanos;
    Run();
    while (clock_.NowNanos() < end) {
      const int64_t step = std::min<int64_t>(10'000'000, end - clock_.NowNanos());
      owner_->AdvanceAndRun(step);
      Run();
    }
  }
  // Until it holds; false when it does not within ten simulated seconds.
  bool RunUntil(const std::function<bool()>& holds) {
    Run();
    for (int step = 0; step < 10'000 && !holds(); ++step) Advance(1'000'000);
    return holds();
  }

  Core& core() { return *core_; }
  Executor* owner() { return owner_.get(); }
  WorkerPool* workers() { return workers_.get(); }
  ManualClock& clock() { return clock_; }
  MemoryExtents& extents() { return extents_; }
  // Waiting on the owner.
  size_t timers() const { return owner_->timers(); }
  // Of the owner's tasks.
  TaskMeter& meter() { return meter_; }
  MemoryDisk& disk(const std::string& directory) { return *mounted_.at(directory); }
  bool mounted(const std::string& directory) const { return mounted_.contains(directory); }
  MemoryMedia& media(const std::string& directory) { return *Media(directory); }
  bool ready() const { return ready_; }
  // Called after each of the owner's tasks, as one of them.
  std::function<void()> after_task;
  // While set, no drive can be opened.
  void FailOpening(Code code) { open_failure_ = code; }
  // While set, this one cannot; the others can.
  void FailOpeningOf(const std::string& directory, bool on) {
    if (on) {
      unopenable_.insert(directory);
    } else {
      unopenable_.erase(directory);
    }
  }
  // Opening this directory does not end; empty ends that.
  void HangOpening(const std::string& directory) {
    hanging_ = directory;
    if (!directory.empty()) return;
    for (Task& open : hanging_openings_) workers_->Run(std::move(open));
    hanging_openings_.clear();
  }
  // Drives that are mounted, now or later, cannot be read.
  void FailReads(bool on) {
    read_failure_ = on ? Code::kUnavailable : Code::kOk;
    for (auto& [directory, disk] : mounted_) disk->FailAll(IoKind::kRead, read_failure_);
  }

 private:
  std::shared_ptr<MemoryMedia> Media(const std::string& directory) {
    std::shared_ptr<MemoryMedia>& media = media_[directory];
    if (media == nullptr) media = std::make_shared<MemoryMedia>();
    return media;
  }

  void Start() {
    owner_ = std::make_unique<ManualExecutor>(&clock_);
    workers_ = std::make_unique<ManualExecutor>(&clock_);
    CacheEnvironment environment;
    environment.clock = &clock_;
    environment.random = &random_;
    environment.owner = owner_.get();
    environment.workers = workers_.get();
    environment.extents = real_extents_ != nullptr ? real_extents_ : &extents_;
    environment.durable_tiers = durable_tiers_;
    environment.meter = &meter_;
    environment.packer = packer_;
    owner_->after_task = [this] {
      meter_.EndTask();
      if (after_task) after_task();
    };
    environment.open_disk = [this](const std::string& directory) -> Result<std::unique_ptr<Disk>> {
      if (open_failure_ != Code::kOk || unopenable_.contains(directory)) {
        return Status(open_failure_ != Code::kOk ? open_failure_ : Code::kUnavailable, "injected");
      }
      auto disk = std::make_unique<MemoryDisk>(Media(directory), MemoryDiskOptions{}, owner_.get(),
                                               &clock_);
      disk->FailAll(IoKind::kRead, read_failure_);
      mounted_[directory] = disk.get();
      return std::unique_ptr<Disk>(std::move(disk));
    };
    environment.run_opening = [this](const std::string& directory, Task open) {
      if (directory == hanging_) {
        hanging_openings_.push_back(std::move(open));
      } else {
        workers_->Run(std::move(open));
      }
    };
    Result<std::unique_ptr<Core>> core = Core::New(options_, environment);
    AQ_CHECK(core.ok());
    core_ = *std::move(core);
    ready_ = false;
    core_->Start([this](const Status& status) { ready_ = status.ok(); });
    AQ_CHECK(RunUntil([this] { return ready_ && core_->pool_complete(); }));
  }

  void Stop() {
    core_->CloseDisks();
    mounted_.clear();
    core_.reset();
    owner_.reset();
    workers_.reset();
  }

  CoreOptions options_;
  ManualClock clock_;
  SeededRandom random_{7};
  MemoryExtents extents_;
  ExtentSource* const real_extents_;
  const std::vector<DurableTierSource> durable_tiers_;
  Packer* const packer_;
  TaskMeter meter_;
  std::map<std::string, std::shared_ptr<MemoryMedia>> media_;  // Outlives every mount.
  std::map<std::string, MemoryDisk*> mounted_;
  Code open_failure_ = Code::kOk;
  std::set<std::string> unopenable_;
  std::string hanging_;
  std::vector<Task> hanging_openings_;
  Code read_failure_ = Code::kOk;
  bool ready_ = false;
  std::unique_ptr<ManualExecutor> owner_;
  std::unique_ptr<ManualExecutor> workers_;
  std::unique_ptr<Core> core_;
};

// A client whose requests complete as the world runs.
class ManualClient final : public ClientSink {
 public:
  ManualClient(ManualWorld* world, const ClientOptions& options, bool sees_all = true)
      : world_(world) {
    Result<ClientNumber> number = world_->core().Attach(options, this, sees_all);
    AQ_CHECK(number.ok());
    number_ = *number;
  }

  ClientNumber number() const { return number_; }
  void Detach() { world_->core().Detach(number_, nullptr); }

  // As tasks of the owner, one behind the other.
  void Release(std::span<const ReleaseOp> leases) {
    while (!leases.empty()) {
      leases = leases.subspan(world_->core().Release(number_, leases));
      world_->meter().EndTask();
    }
  }
  void Abort(std::span<const ReservationId> reservations) {
    while (!reservations.empty()) {
      reservations = reservations.subspan(world_->core().Abort(number_, reservations));
      world_->meter().EndTask();
    }
  }

  // Submits, and runs the world until the request is done.
  template <class R>
  void Do(void (Core::*call)(ClientNumber, R*), R* request) {
    Submit(call, request);
    AQ_CHECK(world_->RunUntil([request] { return request->done(); }));
  }
  template <class R>
  void Submit(void (Core::*call)(ClientNumber, R*), R* request) {
    RequestProgress::Begin(request);
    (world_->core().*call)(number_, request);
    world_->meter().EndTask();  // In production every call is a task.
  }

  void OnProgress(Request* request, size_t completed, bool done) override {
    RequestProgress::Advance(request, completed, done);
  }

 private:
  ManualWorld* const world_;
  ClientNumber number_ = 0;
};

}  // namespace aquifer
