// A durable tier over a store in memory, stepped by hand. For tests.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gtest/gtest.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_blob_store.h"
#include "testing/seeded_random.h"
#include "tier/durable/durable_format.h"
#include "tier/durable/durable_tier.h"
#include "tier/test_keys.h"
#include "tier/tier_contract.h"

namespace aquifer {

struct DurableHarnessListener final : TierListener {
  void OnLost(std::span<const BlockId>, Code) override {}
  std::unique_ptr<ReclaimChoice> OnReclaim() override { return nullptr; }
  void OnHealth(bool in_service, const Status& why) override {
    health.push_back(in_service);
    health_why = why;
  }

  std::vector<bool> health;
  Status health_why;
};

struct DurableHarnessOptions {
  DurableTierOptions tier{};
  MemoryBlobStoreOptions store{};
  bool seal = false;
};

class DurableHarness final : public TierHarness {
 public:
  explicit DurableHarness(const DurableHarnessOptions& with) : options(with) { Mount(); }
  ~DurableHarness() override { Unmount(); }

  void Mount() {
    Mount(std::make_unique<MemoryBlobStore>(blobs, options.store, &executor, &clock));
  }
  void Mount(std::unique_ptr<MemoryBlobStore> on) {
    packer = std::make_unique<Packer>(PackerOptions{.keys = options.seal ? &keys : nullptr}, &clock,
                                      &random);
    store = std::move(on);
    auto tier = NewDurableTier(options.tier, store.get(), packer.get(), &listener, &executor,
                               &executor, &clock, &random);
    AQ_CHECK(tier.ok());
    durable = std::move(*tier);
    executor.RunAll();
  }

  void Unmount() {
    durable.reset();
    store.reset();
    executor.RunAll();
    packer.reset();
  }

  // ---- TierHarness ----

  Tier* tier() override { return durable.get(); }
  void Do(const std::function<void()>& work) override { work(); }
  bool RunUntil(const std::function<bool()>& done) override {
    while (!done() && executor.RunOne()) {
    }
    return done();
  }
  int64_t NowNanos() override { return clock.NowNanos(); }
  bool Advance(int64_t nanos) override {
    executor.AdvanceAndRun(nanos);
    return true;
  }
  bool Hang(bool on) override {
    store->Hang(on, true);
    return true;
  }
  bool Restart() override {
    executor.RunAll();
    Unmount();
    Mount();
    return true;
  }
  Status Probe(const BlockId& id) override {
    EXPECT_EQ(durable->Probe(id).code(), Code::kBusy);
    return Look(id).status;
  }
  uint64_t BlockCount() override { return blobs->Names().size(); }
  std::vector<BlockMeta> Metas() override {
    std::vector<BlockMeta> metas;
    for (const std::string& name : blobs->Names()) {
      const std::vector<std::byte> bytes = blobs->Get(name);
      const Result<BlockMeta> meta = DecodeHead(std::span(bytes).first<kBlobHeadBytes>());
      EXPECT_TRUE(meta.ok()) << name;
      if (meta.ok()) metas.push_back(*meta);
    }
    return metas;
  }

  // ---- One operation each, run until nothing moves ----

  LookOp Look(const BlockId& id) {
    Batch<LookOp> batch;
    batch.ops.push_back({.id = id, .status = {}, .meta = {}});
    bool done = false;
    batch.on_done = [&](Batch<LookOp>&) { done = true; };
    durable->Look(&batch);
    EXPECT_FALSE(done);
    executor.RunAll();
    EXPECT_TRUE(done);
    return batch.ops[0];
  }

  Status Write(const TestBlock& block, bool replace = false, DType dtype = DType::kUInt8) {
    Batch<WriteOp> batch;
    batch.ops.push_back(block.ToWrite());
    batch.ops[0].replace = replace;
    batch.ops[0].dtype = dtype;
    bool done = false;
    batch.on_done = [&](Batch<WriteOp>&) { done = true; };
    durable->Write(&batch);
    executor.RunAll();
    EXPECT_TRUE(done);
    return batch.ops[0].status;
  }

  // Ok only with the very bytes.
  Status Read(const TestBlock& block) { return ReadAs(block.id(), block); }
  Status ReadAs(const BlockId& id, const TestBlock& block) {
    TestBlock target(block.meta().engine_hash + 1'000'000, block.meta().raw_bytes);
    BlockMeta meta;
    Batch<ReadOp> batch;
    batch.ops.push_back(
        {.id = id, .target = target.memory(), .status = {}, .checksum = {}, .meta = &meta});
    bool done = false;
    batch.on_done = [&](Batch<ReadOp>&) { done = true; };
    durable->Read(&batch);
    executor.RunAll();
    EXPECT_TRUE(done);
    if (batch.ops[0].status.ok()) {
      EXPECT_TRUE(std::ranges::equal(target.memory().first(block.raw().size()), block.raw()))
          << "wrong bytes were served";
      EXPECT_EQ(batch.ops[0].checksum, block.meta().checksum);
      EXPECT_EQ(meta.id, id);
      EXPECT_EQ(meta.parent, block.meta().parent);
    }
    return batch.ops[0].status;
  }

  Status Erase(const BlockId& id) {
    Batch<EraseOp> batch;
    batch.ops.push_back({.id = id, .status = {}});
    bool done = false;
    batch.on_done = [&](Batch<EraseOp>&) { done = true; };
    durable->Erase(&batch);
    executor.RunAll();
    EXPECT_TRUE(done);
    return batch.ops[0].status;
  }

  uint64_t Counter(const std::string& name) {
    for (const auto& [key, value] : durable->Counters()) {
      if (key == name) return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  // The only blob there is.
  std::string OnlyName() {
    const std::vector<std::string> names = blobs->Names();
    AQ_CHECK(names.size() == 1);
    return names[0];
  }

  DurableHarnessOptions options;
  ManualClock clock;
  ManualExecutor executor{&clock};
  SeededRandom random{99};
  TestKeys keys;
  DurableHarnessListener listener;
  const std::shared_ptr<MemoryBlobs> blobs = std::make_shared<MemoryBlobs>();
  std::unique_ptr<Packer> packer;
  std::unique_ptr<MemoryBlobStore> store;
  std::unique_ptr<DurableTier> durable;
};

}  // namespace aquifer
