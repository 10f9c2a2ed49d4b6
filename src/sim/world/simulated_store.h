// A blob store on simulated time: a server that outlives the nodes and is shared by them, and a
// connection to it for each life of a node. It answers late, in any order, fails, hangs, loses
// answers to what it has done, is full, damaged or emptied, and lists what was there a while ago.
//
// One thread. What a connection is asked for happens at the server at one moment, and the answer
// comes later. A request that is given up in between has happened or never will: this server
// carries out nothing late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "sim/world/scheduler.h"
#include "store/blob_store.h"
#include "testing/seeded_random.h"

namespace aquifer {

struct SimulatedStoreOptions {
  std::string name = "store";
  int64_t latency_nanos = 1'000'000;  // Of a request, there and back; at least.
  int64_t jitter_nanos = 1'000'000;   // Up to so much more.
  uint64_t bytes_per_second = 0;      // 0: no limit.
  size_t max_queued = 1024;
  uint64_t capacity_bytes = 0;    // 0: no cap.
  bool holds_buffers = false;     // A request that hangs keeps its memory past its deadline.
  bool forgets_expired = false;   // By its own clock, as Redis does.
  int64_t listing_lag_nanos = 0;  // List() shows what was there so long ago.
  uint64_t seed = 1;
};

class SimulatedStore {
 public:
  // `clock` is the store's own; its calendar never jumps.
  SimulatedStore(const SimulatedStoreOptions& options, Scheduler* scheduler)
      : options_(options), scheduler_(scheduler), random_(options.seed) {}

  class Connection;
  // `clock` is the node's. What the party has scheduled is gone when the node has died.
  std::unique_ptr<Connection> Connect(Scheduler::Party party, const Clock* clock);

  // ---- Faults ----

  void SetSlow(int64_t nanos) { slow_nanos_ = nanos; }
  void Hang(bool on);
  void FailNext(uint64_t requests) { failing_ = requests; }
  // The next changes are made, and answered with "unavailable".
  void LoseAnswers(uint64_t changes) { losing_ = changes; }
  void SetFull(bool on) { full_ = on; }
  // Changes one byte of one blob, or cuts it short. False: there is none.
  bool DamageOne(SeededRandom* random);
  // An administrator removes everything. Returns how many blobs.
  size_t Empty();
  // Ends every fault that lasts.
  void Heal();

  size_t blobs() const { return blobs_.size(); }
  uint64_t used_bytes() const { return used_bytes_; }
  const SimulatedStoreOptions& options() const { return options_; }
  int64_t UnixSeconds() const { return scheduler_->unix_seconds(); }

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct Blob {
    Bytes bytes;  // Shared with the answers that are on their way.
    uint64_t version = 0;
    int64_t expiry_unix_seconds = 0;
  };
  // A name that was listed, or will be.
  struct Listed {
    int64_t since_nanos = 0;
    int64_t until_nanos = INT64_MAX;
    uint64_t bytes = 0;
  };
  // What the server makes of a request.
  struct Outcome {
    Status status;
    bool existed = false;
    std::string version;
    Bytes bytes;  // What is read.
  };

  int64_t TripNanos(uint64_t bytes);
  Outcome CarryOut(const BlobRequest& request);
  Outcome Write(const BlobRequest& request);
  Outcome Remove(const BlobRequest& request);
  Outcome Read(const BlobRequest& request);
  void Erase(std::map<std::string, Blob>::iterator at);
  void ForgetExpired();
  BlobStore::Names List(const std::vector<std::string>& prefixes, std::string_view after,
                        size_t max) const;

  const SimulatedStoreOptions options_;
  Scheduler* const scheduler_;
  SeededRandom random_;
  std::map<std::string, Blob> blobs_;
  std::map<std::string, Listed> listed_;
  uint64_t used_bytes_ = 0;
  uint64_t next_version_ = 1;
  int64_t slow_nanos_ = 0;
  bool hangs_ = false;
  bool full_ = false;
  uint64_t failing_ = 0;
  uint64_t losing_ = 0;
  std::vector<std::pair<Scheduler::Party, Task>> hanging_;  // They go on when it does.
};

class SimulatedStore::Connection final : public BlobStore {
 public:
  Connection(SimulatedStore* store, Scheduler::Party party, const Clock* clock)
      : store_(store), party_(party), clock_(clock) {}
  ~Connection() override;

  // The node dies: what is under way has happened or never will, and no memory of it is touched.
  void Abandon();

  void Submit(BlobRequest* request) override;
  void Cancel(BlobRequest* request) override;
  void List(std::string_view prefix, std::string_view after, size_t max,
            std::function<void(Result<Names>)> on_done) override;
  void ListAny(std::vector<std::string> prefixes, std::string_view after, size_t max,
               std::function<void(Result<Names>)> on_done) override;
  size_t prefixes_at_once() const override { return 4; }
  BlobUsage Usage() const override;
  int64_t ClockAheadSeconds() const override { return ahead_seconds_; }
  std::string Describe() const override { return "simulated " + store_->options_.name; }
  std::vector<std::pair<std::string, uint64_t>> Counters() const override { return {}; }

 private:
  struct UnderWay {
    uint64_t number = 0;
    BlobRequest* request = nullptr;
    bool at_store = false;  // It has happened; the answer is on its way.
    bool hangs = false;
  };
  using Entry = std::map<uint64_t, UnderWay>::iterator;

  Entry Find(const BlobRequest* request);
  void Schedule(int64_t nanos, Task task) {
    store_->scheduler_->At(store_->scheduler_->now() + nanos, party_, std::move(task));
  }
  // `task` when the store does not hang.
  void WhenGoing(Task task);
  void Arrive(uint64_t number);
  void Answer(uint64_t number, Outcome outcome);
  void GiveUp(uint64_t number, const char* why);
  void Heard() { ahead_seconds_ = store_->UnixSeconds() - clock_->UnixSeconds(); }

  SimulatedStore* const store_;
  const Scheduler::Party party_;
  const Clock* const clock_;
  std::map<uint64_t, UnderWay> under_way_;
  uint64_t next_number_ = 1;
  bool abandoned_ = false;
  int64_t ahead_seconds_ = 0;
};

}  // namespace aquifer
