// What a durable tier does beside blocks: erasing all that a tenant has, and the sweep.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tier/durable_harness.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMillisecond = 1'000'000;

// ---- Erasing all of a tenant's ----

class DurableErasure : public testing::Test {
 protected:
  void EraseAll(DurableHarness* harness, const TenantId& tenant) {
    harness->durable->EraseAll(tenant, [this](Status status) { erased_ = std::move(status); });
    EXPECT_FALSE(erased_.has_value()) << "from inside the call";
  }

  std::optional<Status> erased_;
};

TEST_F(DurableErasure, WhoeverGoesOnWritingIsErasedAllTheSame) {
  DurableHarness harness({});
  const TestBlock first(1, 8192);
  ASSERT_TRUE(harness.Write(first).ok());
  const std::string name = harness.OnlyName();
  for (uint64_t seed = 4; seed < 304 && !erased_; seed += 3) {  // Each of the same tenant.
    const TestBlock block(seed, 8192);
    Batch<WriteOp> batch;
    batch.ops.push_back(block.ToWrite());
    harness.store->Hang(true);  // One is under way at every moment.
    harness.durable->Write(&batch);
    if (seed == 4) EraseAll(&harness, first.id().tenant);
    harness.Advance(10 * kMillisecond);
    harness.store->Hang(false);
    harness.executor.RunAll();
  }
  ASSERT_TRUE(erased_.has_value());
  EXPECT_TRUE(erased_->ok()) << erased_->ToString();
  EXPECT_TRUE(harness.blobs->Get(name).empty());
  EXPECT_EQ(harness.Look(TestBlock(4, 8192).id()).status.code(), Code::kNotFound)
      << "it was being written when all was erased";
}

TEST_F(DurableErasure, WhatHangsInTheStoreIsNotWaitedForForEver) {
  DurableHarnessOptions options;
  options.tier.stall_nanos = 1000 * kSecond;
  DurableHarness harness(options);
  const TestBlock block(1, 8192);
  Batch<WriteOp> batch;
  batch.ops.push_back(block.ToWrite());
  harness.store->Hang(true, true);
  harness.durable->Write(&batch);
  EraseAll(&harness, block.id().tenant);
  harness.Advance(10 * kSecond);
  EXPECT_FALSE(erased_.has_value()) << "it may still come";
  harness.Advance(20 * kSecond);
  ASSERT_TRUE(erased_.has_value());
  EXPECT_EQ(erased_->code(), Code::kUnavailable);
  harness.store->Hang(false);
  harness.executor.RunAll();
}

TEST_F(DurableErasure, WhatATenantThatIsDeletedHadIsFoundByItsOldKeyAndNoKeyIsMade) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  const TestBlock later(4, 8192);
  const TestBlock others(2, 8192);
  const TenantId tenant = block.id().tenant;
  for (const TestBlock* one : {&block, &later, &others}) ASSERT_TRUE(harness.Write(*one).ok());
  harness.keys.Destroy(tenant);  // By another node, which may have erased less.
  EXPECT_EQ(harness.Look(block.id()).status.code(), Code::kBusy);
  EXPECT_EQ(harness.Read(block).code(), Code::kBusy);
  EXPECT_TRUE(harness.Erase(block.id()).ok());
  EXPECT_EQ(harness.BlockCount(), 2u);
  EraseAll(&harness, tenant);
  harness.executor.RunAll();
  ASSERT_TRUE(erased_.has_value());
  EXPECT_TRUE(erased_->ok()) << erased_->ToString();
  EXPECT_EQ(harness.BlockCount(), 1u);
  EXPECT_TRUE(harness.Read(others).ok());
  EXPECT_FALSE(harness.keys.Has(tenant)) << "a key was made for a tenant that is gone";
}

TEST_F(DurableErasure, AKeyThatIsNotKnownIsWaitedForAWhile) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  harness.keys.Forget(block.id().tenant);
  EraseAll(&harness, block.id().tenant);
  harness.Advance(10 * kSecond);
  EXPECT_FALSE(erased_.has_value());
  harness.Advance(20 * kSecond);
  ASSERT_TRUE(erased_.has_value());
  EXPECT_EQ(erased_->code(), Code::kUnavailable);
}

// ---- The sweep ----

DurableHarnessOptions Sweeping() {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 100 * kSecond;
  return options;
}

TEST(DurableSweep, WhatAnotherNodeRenewsMeanwhileStays) {
  DurableHarness harness(Sweeping());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  harness.clock.SetUnixSeconds(block.meta().expiry_unix_seconds + 100);
  const std::string name = harness.OnlyName();
  std::vector<std::byte> renewed = harness.blobs->Get(name);
  Result<BlockMeta> meta = DecodeHead(std::span(renewed).first<kBlobHeadBytes>());
  ASSERT_TRUE(meta.ok());
  meta->expiry_unix_seconds = 0;
  EncodeHead(*meta, 2, std::span(renewed).first<kBlobHeadBytes>());
  int removals = 0;
  harness.store->OnRequest([&](const BlobRequest& request) {
    if (request.kind == BlobKind::kRemove && ++removals == 1) harness.blobs->Put(name, renewed);
  });
  harness.Advance(500 * kSecond);
  EXPECT_GE(harness.Counter("sweeps"), 2u);
  EXPECT_EQ(removals, 1);
  EXPECT_EQ(harness.Counter("swept_blobs"), 0u);
  EXPECT_EQ(harness.blobs->Get(name), renewed);
}

TEST(DurableSweep, WhatTenantsThatAreDeletedHaveLeftIsRemoved) {
  DurableHarnessOptions options = Sweeping();
  options.seal = true;
  DurableHarness harness(options);
  const TestBlock block(1, 8192);  // Without an expiry.
  const TestBlock others(2, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  ASSERT_TRUE(harness.Write(others).ok());
  harness.Advance(300 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 2u);
  harness.keys.Destroy(block.id().tenant);
  harness.Advance(300 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 1u);
  EXPECT_EQ(harness.Counter("swept_blobs"), 1u);
  EXPECT_TRUE(harness.Read(others).ok());
}

// A store that forgets what has expired by itself is not swept otherwise.
TEST(DurableSweep, ATenantThatIsDeletedWhileTheStoreIsAwayIsSweptWhenItIsBack) {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 0;
  options.seal = true;
  DurableHarness harness(options);
  const std::vector<TestBlock> blocks = [] {
    std::vector<TestBlock> made;
    for (uint64_t seed = 1; seed <= 3; ++seed) made.emplace_back(seed, 8192);  // A tenant each.
    return made;
  }();
  for (const TestBlock& block : blocks) ASSERT_TRUE(harness.Write(block).ok());
  harness.Advance(300 * kSecond);
  EXPECT_EQ(harness.durable->unswept_tenants(), 0u);
  const auto delete_while_away = [&](const TestBlock& block) {
    const uint64_t before = harness.BlockCount();
    harness.store->Fail(Code::kUnavailable);
    harness.keys.Destroy(block.id().tenant);
    EXPECT_EQ(harness.durable->unswept_tenants(), 1u);
    harness.Advance(300 * kSecond);
    EXPECT_EQ(harness.BlockCount(), before);
    EXPECT_EQ(harness.durable->unswept_tenants(), 1u);
  };
  delete_while_away(blocks[0]);
  harness.store->Fail(Code::kOk);
  harness.Advance(60 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 2u);
  EXPECT_EQ(harness.durable->unswept_tenants(), 0u);
  EXPECT_EQ(harness.Counter("swept_blobs"), 1u);
  delete_while_away(blocks[1]);
  harness.Restart();  // And the store is back.
  EXPECT_EQ(harness.BlockCount(), 1u);
  EXPECT_EQ(harness.durable->unswept_tenants(), 0u);
  EXPECT_TRUE(harness.Read(blocks[2]).ok());
}

TEST(DurableSweep, WhatANodeWroteThatHadNotHeardOfTheDeletionIsSweptToo) {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 0;
  options.seal = true;
  DurableHarness harness(options);
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  const std::string name = harness.OnlyName();
  const std::vector<std::byte> bytes = harness.blobs->Get(name);
  harness.keys.Destroy(block.id().tenant);
  harness.Advance(10 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 0u);
  harness.blobs->Put(name, bytes);
  harness.Advance(60 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 1u);
  harness.Advance(120 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 0u);
}

}  // namespace
}  // namespace aquifer
