// A durable tier for tests of the cache: its store is a map in memory that any number of tiers, of
// caches beside or after each other, use at the same time. It is slow, hangs, fails, loses and
// damages things as a test says.
//
// Everything runs on the executor that a tier was made with; one thread runs all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

// The store that the tiers share, which a test sets and looks at. Outlives them.
struct FakeStore {
  struct Blob {
    BlockMeta meta;
    std::vector<std::byte> bytes;
    DType dtype = DType::kUInt8;
  };
  std::map<BlockId, Blob> blobs;
  std::map<std::pair<TenantId, std::string>, std::vector<std::byte>> notes;

  int64_t latency_nanos = 1'000'000;
  bool hang = false;      // Nothing ends before its deadline.
  bool holds_on = false;  // And then the store still uses the buffer, until LetGo().
  Code fail_looks = Code::kOk;
  Code fail_reads = Code::kOk;
  Code fail_writes = Code::kOk;
  Code fail_erasures = Code::kOk;
  bool hang_notes = false;  // No answer for notes, ever.
  bool fail_notes = false;  // No note is taken; fail_writes fails them too.

  uint64_t looks = 0;  // Blocks, not batches.
  uint64_t look_batches = 0;
  uint64_t reads = 0;
  uint64_t writes = 0;  // That changed something.
  uint64_t erasures = 0;
  uint64_t notes_written = 0;
};

class FakeDurableTier final : public DurableTier {
 public:
  FakeDurableTier(std::string name, FakeStore* store, TierListener* listener, Executor* executor,
                  Clock* clock);
  ~FakeDurableTier() override;

  void SetInService(bool in_service);
  // Ends the batches that hang, and lets go of those that are held.
  void LetGo();

  const std::string& name() const override { return name_; }
  Status why() const override {
    return in_service_ ? Status() : Status(Code::kUnavailable, "taken out by a test");
  }
  void Look(Batch<LookOp>* batch) override;
  void Read(Batch<ReadOp>* batch) override;
  void Write(Batch<WriteOp>* batch) override;
  void Erase(Batch<EraseOp>* batch) override;
  void PutNote(const TenantId& tenant, std::string name, std::vector<std::byte> value,
               int64_t expiry_unix_seconds, std::function<void(Status)> on_done) override;
  void GetNote(const TenantId& tenant, std::string name,
               std::function<void(Result<std::vector<std::byte>>)> on_done) override;
  void EraseAll(const TenantId& tenant, std::function<void(Status)> on_done) override;
  size_t unswept_tenants() const override { return 0; }
  Status Probe(const BlockId& /*id*/) const override { return Status(Code::kBusy); }
  TierUsage Usage() const override { return {}; }
  bool in_service() const override { return in_service_; }
  std::vector<std::pair<std::string, uint64_t>> Counters() const override { return {}; }

 private:
  // A batch that has not been answered.
  struct Open {
    int64_t deadline_nanos = 0;
    std::function<void()> finish;  // As the store is now.
    std::function<void()> late;
  };

  template <class Op>
  void Begin(Batch<Op>* batch, Code fail, void (FakeDurableTier::*one)(Op*));
  template <class Op>
  static void SetInFlight(Op* op, bool in_flight);
  void End(const void* batch, bool late);
  void Later(int64_t nanos, Task task);
  void LookOne(LookOp* op);
  void ReadOne(ReadOp* op);
  void WriteOne(WriteOp* op);
  void EraseOne(EraseOp* op);
  const FakeStore::Blob* Find(const BlockId& id) const;

  const std::string name_;
  FakeStore* const store_;
  TierListener* const listener_;
  Executor* const executor_;
  Clock* const clock_;
  bool in_service_ = true;
  std::map<const void*, Open> open_;         // By batch.
  std::vector<std::function<void()>> held_;  // Told when they are let go.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
