// What a durable tier does beyond the contract of tiers: it trusts nothing that its store says,
// shares it with other nodes, and lives on when it is gone.
#include "tier/durable/durable_tier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "block/record.h"
#include "testing/test_level.h"
#include "tier/durable/durable_harness.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// The header of a blob, changed and summed again: what a thief can do who has no key.
void Forge(MemoryBlobs* blobs, const std::string& name,
           const std::function<void(BlockMeta*)>& change, const std::string& to = "") {
  std::vector<std::byte> bytes = blobs->Get(name);
  Result<BlockMeta> meta = DecodeHead(std::span(bytes).first<kBlobHeadBytes>());
  ASSERT_TRUE(meta.ok());
  change(&*meta);
  EncodeHead(*meta, 1, std::span(bytes).first<kBlobHeadBytes>());
  blobs->Put(to.empty() ? name : to, std::move(bytes));
}

bool Contains(std::span<const std::byte> all, std::span<const std::byte> part) {
  return !std::ranges::search(all, part).empty();
}

// ---- Over all ways of storing ----

struct Way {
  std::string name;
  bool seal = false;
  LosslessUse lossless = LosslessUse::kNever;
};

class DurableWays : public testing::TestWithParam<Way> {
 protected:
  static DurableHarnessOptions Options() {
    DurableHarnessOptions options;
    options.seal = GetParam().seal;
    options.tier.lossless = GetParam().lossless;
    return options;
  }

  DurableHarness harness_{Options()};
};

TEST_P(DurableWays, WhatAnotherNodeWroteIsReadAsOurOwn) {
  const TestBlock block = TestBlock::OfBFloat16(1, 300'000);
  ASSERT_TRUE(harness_.Write(block, false, DType::kBFloat16).ok());
  const BlockMeta stored = harness_.Metas()[0];
  EXPECT_EQ(stored.codec == Codec::kLossless, GetParam().lossless == LosslessUse::kAlways);
  EXPECT_EQ(stored.data_key_id != DataKeyId{}, GetParam().seal);
  ASSERT_TRUE(harness_.Restart());
  EXPECT_TRUE(harness_.Read(block).ok());
  const LookOp look = harness_.Look(block.id());
  ASSERT_TRUE(look.status.ok());
  EXPECT_EQ(look.meta.parent, block.meta().parent);
  EXPECT_EQ(look.meta.checksum, block.meta().checksum);
}

TEST_P(DurableWays, EveryFlippedBitIsRefusedAndCounted) {
  const TestBlock block = TestBlock::OfBFloat16(1, 16'384);
  ASSERT_TRUE(harness_.Write(block, false, DType::kBFloat16).ok());
  const std::string name = harness_.OnlyName();
  const size_t bits = harness_.blobs->Get(name).size() * 8;
  // The record bit by bit, the rest in steps.
  const size_t step = ByTestLevel<size_t>(601, 127, 11);
  uint64_t reads = 0;
  for (size_t bit = 0; bit < bits; bit += bit < kRecordBytes * 8 ? 1 : step) {
    harness_.blobs->FlipBit(name, bit);
    EXPECT_EQ(harness_.Read(block).code(), Code::kCorrupt) << bit;
    ++reads;
    harness_.blobs->FlipBit(name, bit);
  }
  EXPECT_EQ(harness_.Counter("corrupt_blobs") + harness_.Counter("refused_seals") +
                harness_.Counter("refused_names"),
            reads);
  EXPECT_TRUE(harness_.Read(block).ok());
}

TEST_P(DurableWays, WhatIsCutOrGrownIsRefused) {
  const TestBlock block(1, 16'384);
  ASSERT_TRUE(harness_.Write(block).ok());
  const std::string name = harness_.OnlyName();
  const std::vector<std::byte> whole = harness_.blobs->Get(name);
  for (const size_t left : {size_t{0}, size_t{100}, size_t{4096}, size_t{9000}, whole.size() - 1}) {
    harness_.blobs->Truncate(name, left);
    EXPECT_EQ(harness_.Read(block).code(), Code::kCorrupt) << left;
    harness_.blobs->Put(name, whole);
  }
  for (const size_t more : {size_t{1}, size_t{4096}}) {
    std::vector<std::byte> longer = whole;
    longer.resize(whole.size() + more);
    harness_.blobs->Put(name, longer);
    EXPECT_EQ(harness_.Read(block).code(), Code::kCorrupt) << more;
  }
}

TEST_P(DurableWays, TwoBlobsThatWereSwappedAreRefused) {
  const TestBlock one(1, 8192);
  const TestBlock other(4, 8192);  // Of the same tenant.
  ASSERT_EQ(one.id().tenant, other.id().tenant);
  ASSERT_TRUE(harness_.Write(one).ok());
  ASSERT_TRUE(harness_.Write(other).ok());
  const std::vector<std::string> names = harness_.blobs->Names();
  harness_.blobs->Swap(names[0], names[1]);
  EXPECT_EQ(harness_.Read(one).code(), Code::kCorrupt);
  EXPECT_EQ(harness_.Read(other).code(), Code::kCorrupt);
  EXPECT_EQ(harness_.Counter("refused_names"), 2u);
}

TEST_P(DurableWays, AnExpiredBlockIsAMissAndCountedAndIsWrittenAnew) {
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness_.clock.UnixSeconds() + 100;
  ASSERT_TRUE(harness_.Write(block).ok());
  EXPECT_TRUE(harness_.Read(block).ok());
  harness_.clock.SetUnixSeconds(block.meta().expiry_unix_seconds);
  EXPECT_EQ(harness_.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness_.Look(block.id()).status.code(), Code::kNotFound);
  EXPECT_EQ(harness_.Counter("blocks_expired"), 2u);
  block.meta().expiry_unix_seconds += 100;
  EXPECT_TRUE(harness_.Write(block).ok());
  EXPECT_EQ(harness_.Counter("blocks_overwritten"), 1u);
  EXPECT_TRUE(harness_.Read(block).ok());
}

TEST_P(DurableWays, WhatAnotherNodeHasWrittenIsNotWrittenTwice) {
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness_.clock.UnixSeconds() + 1000;
  ASSERT_TRUE(harness_.Write(block).ok());
  ASSERT_TRUE(harness_.Restart());
  const std::vector<std::byte> before = harness_.blobs->Get(harness_.OnlyName());
  block.meta().expiry_unix_seconds += 30;  // It comes a little later.
  EXPECT_TRUE(harness_.Write(block).ok());
  EXPECT_EQ(harness_.Counter("blocks_there"), 1u);
  EXPECT_EQ(harness_.Counter("blocks_written"), 0u);
  EXPECT_EQ(harness_.blobs->Get(harness_.OnlyName()), before);
  // What would be gone long before is replaced.
  block.meta().expiry_unix_seconds += 5000;
  EXPECT_TRUE(harness_.Write(block).ok());
  EXPECT_EQ(harness_.Counter("blocks_overwritten"), 1u);
  EXPECT_EQ(harness_.Metas()[0].expiry_unix_seconds, block.meta().expiry_unix_seconds);
}

TEST_P(DurableWays, ADamagedBlobIsNotThereUntilItIsWrittenAgain) {
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness_.Write(block).ok());
  harness_.blobs->FlipBit(harness_.OnlyName(), 8 * 5000);
  EXPECT_TRUE(harness_.Look(block.id()).status.ok());  // The header is well.
  EXPECT_EQ(harness_.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness_.Look(block.id()).status.code(), Code::kNotFound);
  EXPECT_TRUE(harness_.Write(block).ok());
  EXPECT_TRUE(harness_.Look(block.id()).status.ok());
  EXPECT_TRUE(harness_.Read(block).ok());
}

TEST_P(DurableWays, NotesComeBackToTheirTenantUnderTheirNameOnly) {
  const TenantId tenant = TenantIdOf("a");
  const TenantId other = TenantIdOf("b");
  const auto put = [&](const TenantId& whose, const std::string& name, const std::string& value,
                       int64_t expiry = 0) {
    Status result(Code::kBusy);
    const auto bytes = std::as_bytes(std::span(value));
    harness_.durable->PutNote(whose, name, {bytes.begin(), bytes.end()}, expiry,
                              [&](Status status) { result = std::move(status); });
    EXPECT_EQ(result.code(), Code::kBusy) << "from inside the call";
    harness_.executor.RunAll();
    return result;
  };
  const auto get = [&](const TenantId& whose, const std::string& name) -> Result<std::string> {
    Result<std::vector<std::byte>> result = Status(Code::kBusy);
    harness_.durable->GetNote(
        whose, name, [&](Result<std::vector<std::byte>> value) { result = std::move(value); });
    harness_.executor.RunAll();
    if (!result.ok()) return result.status();
    return std::string(reinterpret_cast<const char*>(result->data()), result->size());
  };
  const auto text = [&](const TenantId& whose, const std::string& name) {
    const Result<std::string> value = get(whose, name);
    return value.ok() ? *value : value.status().ToString();
  };
  EXPECT_EQ(get(tenant, "session").status().code(), Code::kNotFound);
  EXPECT_TRUE(put(tenant, "session", "first").ok());
  EXPECT_TRUE(put(tenant, "session", "second, and longer").ok());
  EXPECT_TRUE(put(tenant, std::string("\0\n", 2), "").ok());
  EXPECT_TRUE(put(tenant, "large", std::string(65536, 'x')).ok());
  EXPECT_EQ(put(tenant, "too large", std::string(65537, 'x')).code(), Code::kInvalid);
  EXPECT_EQ(put(tenant, std::string(513, 'x'), "value").code(), Code::kInvalid);
  EXPECT_EQ(text(tenant, "session"), "second, and longer");
  EXPECT_EQ(text(tenant, std::string("\0\n", 2)), "");
  EXPECT_EQ(text(tenant, "large"), std::string(65536, 'x'));
  EXPECT_EQ(get(other, "session").status().code(), Code::kNotFound);
  ASSERT_TRUE(harness_.Restart());
  EXPECT_EQ(text(tenant, "session"), "second, and longer");
  EXPECT_TRUE(put(tenant, "short", "lived", harness_.clock.UnixSeconds() + 10).ok());
  EXPECT_EQ(text(tenant, "short"), "lived");
  harness_.clock.SetUnixSeconds(harness_.clock.UnixSeconds() + 10);
  EXPECT_EQ(get(tenant, "short").status().code(), Code::kNotFound);
  for (const std::string& name : harness_.blobs->Names()) {
    EXPECT_EQ(name.find("session"), std::string::npos);
    harness_.blobs->FlipBit(name, 8 * 4096);
  }
  EXPECT_EQ(get(tenant, "session").status().code(), Code::kCorrupt);
}

TEST_P(DurableWays, AllOfATenantIsErasedAndNothingOfOthers) {
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = 0; i < 30; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 4096));
    ASSERT_TRUE(harness_.Write(*blocks.back()).ok());
  }
  const TenantId tenant = blocks[0]->id().tenant;
  harness_.durable->PutNote(tenant, "n", {std::byte{1}}, 0, [](const Status&) {});
  harness_.executor.RunAll();
  EXPECT_EQ(harness_.BlockCount(), 31u);
  Status result(Code::kBusy);
  harness_.durable->EraseAll(tenant, [&](Status status) { result = std::move(status); });
  harness_.executor.RunAll();
  EXPECT_TRUE(result.ok()) << result.ToString();
  EXPECT_EQ(harness_.BlockCount(), 20u);
  for (const auto& block : blocks) {
    EXPECT_EQ(harness_.Read(*block).code(),
              block->id().tenant == tenant ? Code::kNotFound : Code::kOk);
  }
}

TEST_P(DurableWays, ATierMayBeDestroyedWithRequestsAtItsStore) {
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness_.Write(block).ok());
  for (const bool holds : {false, true}) {
    harness_.store->Hang(true, holds);
    TestBlock target(2, 8192);
    const TestBlock other(5, 8192);
    Batch<ReadOp> read;
    read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
    read.on_done = [](Batch<ReadOp>&) { ADD_FAILURE() << "the tier is gone"; };
    Batch<WriteOp> write;
    write.ops = {other.ToWrite()};
    write.on_done = [](Batch<WriteOp>&) { ADD_FAILURE() << "the tier is gone"; };
    harness_.durable->Read(&read);
    harness_.durable->Write(&write);
    harness_.executor.RunAll();
    harness_.durable.reset();
    harness_.executor.RunAll();
    harness_.Unmount();
    harness_.Mount();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DurableWays,
    testing::Values(Way{.name = "Plain"}, Way{.name = "Lossless", .lossless = LosslessUse::kAlways},
                    Way{.name = "Sealed", .seal = true},
                    Way{.name = "SealedLossless", .seal = true, .lossless = LosslessUse::kAlways}),
    [](const auto& info) { return info.param.name; });

// ---- Seals ----

TEST(DurableSealTest, NothingAtRestIsPlain) {
  for (const bool seal : {false, true}) {
    DurableHarness harness({.seal = seal});
    TestBlock block(1, 40'000);
    const std::string text = "the quick brown fox jumps over the lazy dog";
    std::memcpy(block.memory().data() + 20'000, text.data(), text.size());
    block.meta().checksum = ChecksumOf(block.raw());
    ASSERT_TRUE(harness.Write(block).ok());
    const std::string name = "a session of somebody";
    const auto value = std::as_bytes(std::span(text));
    harness.durable->PutNote(block.id().tenant, name, {value.begin(), value.end()}, 0,
                             [](const Status& status) { EXPECT_TRUE(status.ok()); });
    harness.executor.RunAll();
    size_t found = 0;
    for (const std::string& blob : harness.blobs->Names()) {
      const std::vector<std::byte> bytes = harness.blobs->Get(blob);
      if (Contains(bytes, value)) ++found;
      EXPECT_FALSE(Contains(bytes, std::as_bytes(std::span(name))));
      // Any 16 bytes of the block, wherever they lie.
      for (size_t at = 0; seal && at + 16 <= block.raw().size(); at += 1024) {
        EXPECT_FALSE(Contains(bytes, block.raw().subspan(at, 16))) << at;
      }
    }
    EXPECT_EQ(found, seal ? 0u : 2u);
  }
}

TEST(DurableSealTest, AForgedHeaderOpensNothing) {
  DurableHarness harness({.seal = true});
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  const std::string name = harness.OnlyName();
  const std::vector<std::byte> honest = harness.blobs->Get(name);
  const std::vector<std::function<void(BlockMeta*)>> forgeries = {
      [](BlockMeta* meta) { meta->expiry_unix_seconds += 1000; },  // Replayed after its time.
      [](BlockMeta* meta) { meta->position ^= 1; },
      [](BlockMeta* meta) { meta->parent.bytes[0] ^= std::byte{1}; },
      [](BlockMeta* meta) { meta->layout_fingerprint[0] ^= std::byte{1}; },
      [](BlockMeta* meta) { meta->checksum.low ^= 1; },
      [](BlockMeta* meta) { meta->engine_hash ^= 1; },
      [](BlockMeta* meta) { meta->nonce[0] ^= std::byte{1}; },
      [](BlockMeta* meta) { meta->tag[0] ^= std::byte{1}; },
      [](BlockMeta* meta) { meta->data_key_id[0] ^= std::byte{1}; },
      [](BlockMeta* meta) { meta->data_key_id = {}; },  // As if it were plain.
  };
  uint64_t refused = 0;
  for (const auto& forgery : forgeries) {
    Forge(harness.blobs.get(), name, forgery);
    EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
    EXPECT_EQ(harness.Counter("refused_seals"), ++refused);
    harness.blobs->Put(name, honest);
  }
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(DurableSealTest, APlainBlockIsNotReadWhereBlocksAreSealed) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  const std::string name = harness.OnlyName();
  std::vector<std::byte> bytes(kBlobHeadBytes);
  EncodeHead(block.meta(), 1, std::span(bytes).first<kBlobHeadBytes>());
  bytes.insert(bytes.end(), block.raw().begin(), block.raw().end());
  harness.blobs->Put(name, bytes);
  EXPECT_EQ(harness.Look(block.id()).status.code(), Code::kCorrupt);
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Counter("refused_seals"), 2u);
}

TEST(DurableSealTest, AnotherTenantsKeyOpensNothing) {
  DurableHarness harness({.seal = true});
  const TestBlock mine(1, 8192);
  TestBlock theirs(1, 8192);
  theirs.meta().id.tenant.bytes[5] = std::byte{77};
  ASSERT_TRUE(harness.Write(mine).ok());
  const SharedDataKey key = harness.keys.KeyOf(theirs.id().tenant);
  // Under their name, with a header that says it is theirs.
  Forge(
      harness.blobs.get(), harness.OnlyName(),
      [&](BlockMeta* meta) {
        meta->id = theirs.id();
        meta->data_key_id = key->id;
      },
      BlobNameOf(theirs.id(), key.get()));
  EXPECT_EQ(harness.Read(theirs).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Counter("refused_seals"), 1u);
}

TEST(DurableSealTest, WithoutItsKeyATenantIsRefusedAndNothingIsWrittenPlain) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.keys.Forget(block.id().tenant);
  EXPECT_EQ(harness.Read(block).code(), Code::kBusy);
  EXPECT_EQ(harness.Look(block.id()).status.code(), Code::kBusy);
  EXPECT_EQ(harness.Write(TestBlock(4, 8192)).code(), Code::kBusy);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kBusy);
  EXPECT_EQ(harness.Counter("without_key"), 4u);
  EXPECT_EQ(harness.BlockCount(), 1u);
}

TEST(DurableSealTest, NobodyWaitsForAKeyThatCannotBeHad) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.keys.Lose(block.id().tenant);
  EXPECT_EQ(harness.Read(block).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Look(block.id()).status.code(), Code::kUnavailable);
  harness.keys.Regain(block.id().tenant);
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(DurableSealTest, AfterItsKeyWasDestroyedNothingOfATenantIsFound) {
  DurableHarness harness({.seal = true});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  const std::string old_name = harness.OnlyName();
  harness.keys.Change(block.id().tenant);  // It was deleted, and made anew.
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  // Replayed under its new name, with and without the new key's id.
  const SharedDataKey key = harness.keys.KeyOf(block.id().tenant);
  const std::string new_name = BlobNameOf(block.id(), key.get());
  harness.blobs->Put(new_name, harness.blobs->Get(old_name));
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  Forge(
      harness.blobs.get(), old_name, [&](BlockMeta* meta) { meta->data_key_id = key->id; },
      new_name);
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Counter("refused_seals"), 2u);
  EXPECT_TRUE(harness.Write(block).ok());
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(DurableSealTest, ABlockThatIsRenewedIsSealedAnew) {
  DurableHarness harness({.seal = true});
  TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  const BlockMeta before = harness.Metas()[0];
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 50;
  ASSERT_TRUE(harness.Write(block, true).ok());
  const BlockMeta after = harness.Metas()[0];
  EXPECT_NE(after.nonce, before.nonce);
  EXPECT_NE(after.tag, before.tag);
  EXPECT_EQ(after.expiry_unix_seconds, block.meta().expiry_unix_seconds);
  EXPECT_TRUE(harness.Read(block).ok());
}

// ---- Memory ----

TEST(DurableMemoryTest, BlocksWaitTheirTurnForScratchMemory) {
  DurableHarnessOptions options{.seal = true};
  options.tier.scratch_bytes = 40'000;  // Two at a time.
  DurableHarness harness(options);
  std::vector<std::unique_ptr<TestBlock>> blocks;
  Batch<WriteOp> batch;
  for (uint64_t i = 0; i < 20; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 16'384));
    batch.ops.push_back(blocks.back()->ToWrite());
  }
  blocks.push_back(std::make_unique<TestBlock>(99, 200'000));  // More than there is.
  batch.ops.push_back(blocks.back()->ToWrite());
  bool done = false;
  batch.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness.store->Hang(true);
  harness.durable->Write(&batch);
  harness.executor.RunAll();
  EXPECT_EQ(harness.store->held(), 2u);
  harness.store->Hang(false);
  harness.executor.RunAll();
  EXPECT_TRUE(done);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(DurableMemoryTest, OnlyWhatIsWrittenFromTheSlotItselfKeepsItBusy) {
  for (const bool seal : {false, true}) {
    DurableHarness harness({.seal = seal});
    const TestBlock block(1, 8192);
    harness.store->Hang(true, true);
    Batch<WriteOp> batch;
    batch.ops = {block.ToWrite()};
    batch.deadline_nanos = harness.clock.NowNanos() + 1000;
    int done = 0;
    int quiescent = 0;
    batch.on_done = [&](Batch<WriteOp>&) { ++done; };
    batch.on_quiescent = [&](Batch<WriteOp>&, size_t) { ++quiescent; };
    harness.durable->Write(&batch);
    harness.executor.AdvanceAndRun(2000);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(batch.ops[0].status.code(), Code::kLate);
    EXPECT_EQ(batch.ops[0].in_flight, !seal);
    EXPECT_EQ(quiescent, 0);
    harness.store->Hang(false);
    harness.executor.RunAll();
    EXPECT_EQ(quiescent, seal ? 0 : 1);
  }
}

TEST(DurableOrderTest, AnErasureWaitsForAWriteThatItsCallerGaveUp) {
  DurableHarness harness({});
  const TestBlock block(1, 8192);
  harness.store->Hang(true, true);
  Batch<WriteOp> write;
  write.ops = {block.ToWrite()};
  write.deadline_nanos = harness.clock.NowNanos() + 1000;
  harness.durable->Write(&write);
  harness.executor.AdvanceAndRun(2000);
  EXPECT_EQ(write.ops[0].status.code(), Code::kLate);
  Batch<EraseOp> erase;
  erase.ops.push_back({.id = block.id(), .status = {}});
  bool erased = false;
  erase.on_done = [&](Batch<EraseOp>&) { erased = true; };
  harness.durable->Erase(&erase);
  harness.executor.RunAll();
  EXPECT_FALSE(erased);
  harness.clock.SetNanos(harness.clock.NowNanos() - 2000);  // So that the late write still lands.
  harness.store->Hang(false);
  harness.executor.RunAll();
  EXPECT_TRUE(erased);
  EXPECT_TRUE(erase.ops[0].status.ok()) << "the write landed, and was removed";
  EXPECT_EQ(harness.BlockCount(), 0u);
}

// ---- Health ----

TEST(DurableHealthTest, ManyFailuresInARowTakeItOutAndAProbeBringsItBack) {
  DurableHarness harness({});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.store->FailNext(BlobKind::kRead, Code::kUnavailable, 7);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(harness.Read(block).code(), Code::kUnavailable);
  EXPECT_TRUE(harness.Read(block).ok());  // One answer, and all is forgiven.
  harness.store->Fail(Code::kUnavailable, "the bucket is gone");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(harness.Read(block).code(), Code::kUnavailable);
  EXPECT_FALSE(harness.durable->in_service());
  EXPECT_EQ(harness.listener.health, std::vector<bool>{false});
  EXPECT_EQ(harness.listener.health_why.message(), "the bucket is gone");
  EXPECT_EQ(harness.durable->why().message(), "the bucket is gone");
  // Refused without a request.
  const uint64_t reads = harness.store->requests(BlobKind::kRead);
  EXPECT_EQ(harness.Read(block).code(), Code::kUnavailable);
  EXPECT_EQ(harness.store->requests(BlobKind::kRead), reads);
  harness.executor.AdvanceAndRun(60 * kSecond);
  EXPECT_FALSE(harness.durable->in_service());
  const uint64_t probes = harness.Counter("probes");
  EXPECT_GE(probes, 4u);
  EXPECT_LE(probes, 10u) << "it asks less and less often";
  harness.store->Fail(Code::kOk);
  harness.executor.AdvanceAndRun(40 * kSecond);
  EXPECT_TRUE(harness.durable->in_service());
  EXPECT_EQ(harness.listener.health, (std::vector<bool>{false, true}));
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(DurableHealthTest, ASilentStoreTakesItOutAndWhoWaitsIsTold) {
  for (const bool holds : {false, true}) {
    DurableHarness harness({});
    const TestBlock block(1, 8192);
    ASSERT_TRUE(harness.Write(block).ok());
    harness.store->Hang(true, holds);
    TestBlock target(2, 8192);
    Batch<ReadOp> read;  // Without a deadline.
    read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
    int done = 0;
    int quiescent = 0;
    read.on_done = [&](Batch<ReadOp>&) { ++done; };
    read.on_quiescent = [&](Batch<ReadOp>&, size_t) { ++quiescent; };
    harness.durable->Read(&read);
    harness.executor.AdvanceAndRun(4 * kSecond);
    EXPECT_TRUE(harness.durable->in_service());
    harness.executor.AdvanceAndRun(4 * kSecond);
    EXPECT_FALSE(harness.durable->in_service());
    EXPECT_EQ(done, 1);
    EXPECT_EQ(read.ops[0].status.code(), Code::kUnavailable);
    if (holds) {
      EXPECT_TRUE(read.ops[0].in_flight);
      EXPECT_EQ(quiescent, 0);
    }
    harness.store->Hang(false);
    harness.executor.AdvanceAndRun(40 * kSecond);
    EXPECT_TRUE(harness.durable->in_service());
    EXPECT_EQ(quiescent, read.ops[0].in_flight ? 1 : 0);
    EXPECT_TRUE(harness.Read(block).ok());
  }
}

TEST(DurableHealthTest, CallersWhoGiveUpSoonStillShowThatTheStoreIsSilent) {
  DurableHarness harness({});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.store->Hang(true);
  for (int i = 0; i < 80; ++i) {
    TestBlock target(2, 8192);
    Batch<ReadOp> read;
    read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
    read.deadline_nanos = harness.clock.NowNanos() + 50'000'000;
    bool done = false;
    read.on_done = [&](Batch<ReadOp>&) { done = true; };
    harness.durable->Read(&read);
    harness.executor.AdvanceAndRun(100'000'000);
    EXPECT_TRUE(done);
    const Code code = read.ops[0].status.code();
    EXPECT_TRUE(code == Code::kLate || code == Code::kUnavailable);
  }
  EXPECT_FALSE(harness.durable->in_service());
  EXPECT_GT(harness.Counter("late"), 0u);
}

TEST(DurableHealthTest, AStoreThatNeverWorkedShowsAtTheStart) {
  DurableHarness harness({});
  harness.Unmount();
  harness.packer = std::make_unique<Packer>(PackerOptions{}, &harness.clock, &harness.random);
  harness.store = std::make_unique<MemoryBlobStore>(harness.blobs, MemoryBlobStoreOptions{},
                                                    &harness.executor, &harness.clock);
  harness.store->Fail(Code::kUnavailable, "access denied");
  auto tier = NewDurableTier({}, harness.store.get(), harness.packer.get(), &harness.listener,
                             &harness.executor, &harness.executor, &harness.clock, &harness.random);
  ASSERT_TRUE(tier.ok());
  harness.executor.RunAll();
  EXPECT_FALSE((*tier)->in_service());
  EXPECT_EQ((*tier)->why().message(), "access denied");
  tier->reset();
}

TEST(DurableHealthTest, AStoreThatTakesNoWritesCanBeRead) {
  DurableHarness harness({});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  for (uint64_t i = 0; i < 50; ++i) {
    harness.store->FailNext(BlobKind::kWrite, Code::kUnavailable);
    EXPECT_EQ(harness.Write(TestBlock(i + 10, 8192)).code(), Code::kUnavailable);
  }
  EXPECT_TRUE(harness.Read(block).ok());
  EXPECT_EQ(harness.Counter("times_left"), 0u);
}

TEST(DurableHealthTest, WritesThatFailSoonShowThatAStoreIsGone) {
  DurableHarness harness({});
  harness.store->Fail(Code::kUnavailable, "no route");
  EXPECT_EQ(harness.Write(TestBlock(1, 8192)).code(), Code::kUnavailable);
  EXPECT_FALSE(harness.durable->in_service());
  EXPECT_EQ(harness.durable->why().message(), "no route");
}

TEST(DurableHealthTest, AFullOrBusyStoreStaysInService) {
  DurableHarness harness({.store = {.capacity_bytes = 20'000}});
  ASSERT_TRUE(harness.Write(TestBlock(1, 8192)).ok());
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(harness.Write(TestBlock(i + 10, 8192)).code(), Code::kNoSpace);
  }
  harness.store->FailNext(BlobKind::kRead, Code::kBusy, 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(harness.Read(TestBlock(1, 8192)).code(), Code::kBusy);
  }
  EXPECT_TRUE(harness.durable->in_service());
  EXPECT_EQ(harness.Counter("times_left"), 0u);
}

// A manifest of Redis with a flipped bit, or a key with a value of another kind: our bytes are
// well.
TEST(DurableDamageTest, WhatIsNoBlobIsReplacedAndNeverHeldAgainstTheBlock) {
  DurableHarness harness({});
  const TestBlock block(1, 8192);
  harness.store->FailNext(BlobKind::kWrite, Code::kCorrupt);
  EXPECT_TRUE(harness.Write(block).ok());
  EXPECT_EQ(harness.store->requests(BlobKind::kWrite), 2u);
  EXPECT_EQ(harness.Counter("blocks_overwritten"), 1u);
  EXPECT_TRUE(harness.Read(block).ok());
  harness.store->FailNext(BlobKind::kWrite, Code::kCorrupt, 2);  // It cannot be replaced, either.
  EXPECT_EQ(harness.Write(TestBlock(2, 8192)).code(), Code::kInvalid);
  EXPECT_EQ(harness.Counter("corrupt_sources"), 0u);
}

TEST(DurableDamageTest, WhatWasDamagedOnItsWayIsThereAgainAfterAWhile) {
  DurableHarness harness({});
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  const std::string name = harness.OnlyName();
  for (const int64_t pause : {2 * kSecond, 4 * kSecond}) {
    harness.blobs->FlipBit(name, size_t{8} * 5000);
    EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
    harness.blobs->FlipBit(name, size_t{8} * 5000);  // The store had it well all the time.
    EXPECT_EQ(harness.Look(block.id()).status.code(), Code::kNotFound);
    harness.Advance(pause - 1);
    EXPECT_EQ(harness.Look(block.id()).status.code(), Code::kNotFound);
    harness.Advance(1);
    EXPECT_TRUE(harness.Look(block.id()).status.ok());
  }
  ASSERT_TRUE(harness.Write(block).ok());
  EXPECT_EQ(harness.Counter("blocks_written"), 2u) << "the next write replaces it all the same";
  EXPECT_TRUE(harness.Look(block.id()).status.ok());
}

// ---- The sweep ----

TEST(DurableSweepTest, WhatHasExpiredIsRemovedAndAllElseStays) {
  DurableHarnessOptions options{.seal = true};
  options.tier.sweep_interval_nanos = 100 * kSecond;
  options.tier.sweep_looks_per_second = 10;
  DurableHarness harness(options);
  for (uint64_t i = 0; i < 300; ++i) {
    TestBlock block(i, 4096);
    const int64_t now = harness.clock.UnixSeconds();
    block.meta().expiry_unix_seconds = i % 3 == 0 ? 0 : i % 3 == 1 ? now + 10 : now + 100'000;
    ASSERT_TRUE(harness.Write(block).ok());
  }
  harness.blobs->Put("somebody/elses", std::vector<std::byte>(5000, std::byte{7}));
  harness.clock.SetUnixSeconds(harness.clock.UnixSeconds() + 65);
  harness.executor.AdvanceAndRun(300 * kSecond);
  EXPECT_GE(harness.Counter("sweeps"), 1u);
  EXPECT_EQ(harness.Counter("swept_blobs"), 0u) << "it is not yet a minute";
  harness.clock.SetUnixSeconds(harness.clock.UnixSeconds() + 10);
  harness.executor.AdvanceAndRun(300 * kSecond);
  EXPECT_EQ(harness.Counter("swept_blobs"), 100u);
  EXPECT_EQ(harness.BlockCount(), 201u);
  EXPECT_TRUE(harness.Read(TestBlock(0, 4096)).ok());
  EXPECT_EQ(harness.Read(TestBlock(1, 4096)).code(), Code::kNotFound);
  EXPECT_TRUE(harness.Read(TestBlock(2, 4096)).ok());
}

}  // namespace
}  // namespace aquifer
