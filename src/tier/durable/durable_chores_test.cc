// What a durable tier does beside blocks: erasing all that a tenant has, and the sweep.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tier/durable/durable_harness.h"

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
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound) << "it goes with its generation";
  EraseAll(&harness, tenant);
  harness.executor.RunAll();
  ASSERT_TRUE(erased_.has_value());
  EXPECT_TRUE(erased_->ok()) << erased_->ToString();
  EXPECT_EQ(harness.BlockCount(), 1u);
  EXPECT_TRUE(harness.Read(others).ok());
  EXPECT_FALSE(harness.keys.Has(tenant)) << "a key was made for a tenant that is gone";
}

// Erasures wait while a store is away, and are tried again when the tenant may have another key.
TEST_F(DurableErasure, WhatWasToBeErasedUnderAKeyThatIsGoneIsNotErasedUnderTheNextOne) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  const TenantId tenant = block.id().tenant;
  ASSERT_TRUE(harness.Write(block).ok());
  harness.store->Fail(Code::kUnavailable);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kUnavailable);
  harness.keys.Destroy(tenant);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound) << "there is nothing to try again";
  harness.Advance(60 * kSecond);
  ASSERT_FALSE(harness.durable->in_service());
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  harness.store->Fail(Code::kOk);
  harness.Advance(60 * kSecond);
  ASSERT_TRUE(harness.Write(block).ok());  // The tenant is back, with the same prompt.
  EXPECT_TRUE(harness.Read(block).ok());
  EXPECT_EQ(harness.BlockCount(), 1u) << "the sweep took the old one";
  EXPECT_TRUE(harness.Erase(block.id()).ok()) << "it is its own to erase";
  EXPECT_EQ(harness.BlockCount(), 0u);
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

// It would take all that others have.
TEST(DurableSweep, AHostWhoseClockIsAheadOfTheStoresRemovesNothingBeforeItsTime) {
  DurableHarness harness(Sweeping());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 3600;
  ASSERT_TRUE(harness.Write(block).ok());
  constexpr int64_t kAhead = 86'400;
  harness.clock.SetUnixSeconds(harness.clock.UnixSeconds() + kAhead);
  harness.store->SetClockAhead(-kAhead);
  harness.Advance(500 * kSecond);
  EXPECT_GE(harness.Counter("sweeps"), 2u);
  EXPECT_EQ(harness.BlockCount(), 1u);
  harness.clock.SetUnixSeconds(harness.clock.UnixSeconds() + 3600 + 100);
  harness.Advance(500 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 0u);
}

TEST(DurableSweep, AStoreWhoseClockIsAheadOfOursIsNotBelieved) {
  DurableHarness harness(Sweeping());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 3600;
  ASSERT_TRUE(harness.Write(block).ok());
  harness.store->SetClockAhead(86'400);
  harness.Advance(500 * kSecond);
  EXPECT_GE(harness.Counter("sweeps"), 2u);
  EXPECT_EQ(harness.BlockCount(), 1u);
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

// A bucket with an object lock, or credentials that may not delete.
TEST(DurableSweep, WhereNothingMayBeRemovedOthersAreServedAllTheSame) {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 0;
  options.seal = true;
  DurableHarness harness(options);
  std::vector<TestBlock> blocks;
  for (uint64_t seed = 1; seed <= 61; seed += 3) blocks.emplace_back(seed, 8192);  // One tenant.
  const TestBlock other(2, 8192);
  for (const TestBlock& block : blocks) ASSERT_TRUE(harness.Write(block).ok());
  ASSERT_TRUE(harness.Write(other).ok());
  harness.store->FailNext(BlobKind::kRemove, Code::kUnavailable, 1 << 30);  // As 403 is explained.
  harness.keys.Destroy(blocks[0].id().tenant);
  for (int second = 0; second < 3600; ++second) {
    harness.Advance(kSecond);
    ASSERT_TRUE(harness.Read(other).ok()) << second;
  }
  EXPECT_EQ(harness.Counter("times_left"), 0u);
  EXPECT_EQ(harness.durable->unswept_tenants(), 1u);
  const uint64_t asked = harness.store->requests(BlobKind::kRemove);
  EXPECT_LT(asked, 20 * blocks.size());
  EXPECT_GE(asked, 10u);
  harness.store->FailNext(BlobKind::kRemove, Code::kUnavailable, 0);
  harness.Advance(600 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 1u);
  EXPECT_EQ(harness.durable->unswept_tenants(), 0u);
}

// Some names cannot be removed.
class StubbornStore final : public MemoryBlobStore {
 public:
  using MemoryBlobStore::MemoryBlobStore;

  void Submit(BlobRequest* request) override {
    if (request->kind == BlobKind::kRemove && request->name.starts_with(stuck)) {
      return Complete(request, Status(Code::kUnavailable, "object lock"));
    }
    MemoryBlobStore::Submit(request);
  }
  void List(std::string_view prefix, std::string_view after, size_t max,
            std::function<void(Result<Names>)> on_done) override {
    ++lists;
    MemoryBlobStore::List(prefix, after, max, std::move(on_done));
  }
  // Goes through all names, as Redis does.
  void ListAny(std::vector<std::string> prefixes, std::string_view after, size_t max,
               std::function<void(Result<Names>)> on_done) override {
    EXPECT_LE(prefixes.size(), at_once);
    const auto begins = [prefixes](const BlobName& blob) {
      return std::ranges::any_of(
          prefixes, [&](const std::string& prefix) { return blob.name.starts_with(prefix); });
    };
    List("", after, SIZE_MAX, [begins, max, on_done](Result<Names> names) {
      if (names.ok()) std::erase_if(*names, std::not_fn(begins));
      if (names.ok() && names->size() > max) names->resize(max);
      on_done(std::move(names));
    });
  }
  size_t prefixes_at_once() const override { return at_once; }

  std::string stuck = "none";
  int lists = 0;
  size_t at_once = 1;
};

StubbornStore* MountStubborn(DurableHarness* harness) {
  harness->Unmount();
  auto store = std::make_unique<StubbornStore>(harness->blobs, harness->options.store,
                                               &harness->executor, &harness->clock);
  StubbornStore* const stubborn = store.get();
  harness->Mount(std::move(store));
  return stubborn;
}

// Each node does this at its start, for all who were ever deleted.
TEST(DurableSweep, AStoreThatGoesThroughAllNamesDoesSoOnceForAllTenants) {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 0;
  options.seal = true;
  DurableHarness harness(options);
  StubbornStore* const store = MountStubborn(&harness);
  store->at_once = 40;
  for (uint64_t seed = 1; seed <= 300; ++seed) {  // Of three tenants.
    ASSERT_TRUE(harness.Write(TestBlock(seed, 4096)).ok());
  }
  TenantId tenant = TestBlock(1, 4096).id().tenant;
  harness.keys.Destroy(tenant);
  for (uint8_t earlier = 1; earlier < 100; ++earlier) {
    tenant.bytes[5] = static_cast<std::byte>(earlier);
    harness.keys.Destroy(tenant);
  }
  harness.Advance(60 * kSecond);
  EXPECT_EQ(harness.BlockCount(), 200u);
  EXPECT_EQ(harness.durable->unswept_tenants(), 0u);
  EXPECT_EQ(store->lists, 4) << "three times 40 tenants at most, and behind the names of one";
}

TEST(DurableSweep, ATenantThatCannotBeRemovedKeepsNoOtherFromBeingSwept) {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 0;
  options.seal = true;
  for (size_t i = 0; i < 6; ++i) {
    DurableHarness harness(options);
    StubbornStore* const store = MountStubborn(&harness);
    store->at_once = i < 3 ? 1 : 100;
    std::vector<TestBlock> blocks;
    for (uint64_t seed = 1; seed <= 3; ++seed) blocks.emplace_back(seed, 8192);  // A tenant each.
    for (const TestBlock& block : blocks) ASSERT_TRUE(harness.Write(block).ok());
    store->stuck = harness.blobs->Names()[i % 3].substr(0, 32);
    for (const TestBlock& block : blocks) harness.keys.Destroy(block.id().tenant);
    harness.Advance(10 * kSecond);
    EXPECT_TRUE(harness.OnlyName().starts_with(store->stuck));
    EXPECT_EQ(harness.durable->unswept_tenants(), 1u);
    EXPECT_TRUE(harness.durable->in_service());
    store->stuck = "none";
    harness.Advance(10 * kSecond);
    EXPECT_EQ(harness.BlockCount(), 0u) << "it is tried again";
    EXPECT_EQ(harness.durable->unswept_tenants(), 0u);
  }
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
