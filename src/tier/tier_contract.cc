#include "tier/tier_contract.h"

#include <algorithm>
#include <map>
#include <set>

#include "testing/seeded_random.h"

namespace aquifer {
std::vector<Status> TierContract::Write(const std::vector<const TestBlock*>& blocks) {
  Batch<WriteOp> batch;
  for (const TestBlock* block : blocks) batch.ops.push_back(block->ToWrite());
  bool done = false;
  batch.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness_->Do([&] { tier()->Write(&batch); });
  EXPECT_TRUE(harness_->RunUntil([&] { return done; }));
  std::vector<Status> statuses;
  for (const WriteOp& op : batch.ops) statuses.push_back(op.status);
  return statuses;
}

std::vector<Status> TierContract::Erase(const std::vector<BlockId>& ids) {
  Batch<EraseOp> batch;
  for (const BlockId& id : ids) batch.ops.push_back({.id = id, .status = {}});
  bool done = false;
  batch.on_done = [&](Batch<EraseOp>&) { done = true; };
  harness_->Do([&] { tier()->Erase(&batch); });
  EXPECT_TRUE(harness_->RunUntil([&] { return done; }));
  std::vector<Status> statuses;
  for (const EraseOp& op : batch.ops) statuses.push_back(op.status);
  return statuses;
}

Status TierContract::Read(const TestBlock& block) {
  TestBlock target(block.meta().engine_hash + 1'000'000, block.meta().raw_bytes);
  Batch<ReadOp> batch;
  batch.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
  bool done = false;
  batch.on_done = [&](Batch<ReadOp>&) { done = true; };
  harness_->Do([&] { tier()->Read(&batch); });
  EXPECT_TRUE(harness_->RunUntil([&] { return done; }));
  const ReadOp& op = batch.ops[0];
  if (op.status.ok()) {
    EXPECT_TRUE(std::ranges::equal(target.memory().first(block.raw().size()), block.raw()))
        << "wrong bytes were served";
    EXPECT_EQ(op.checksum, block.meta().checksum);
  }
  return op.status;
}

TierUsage TierContract::Usage() {
  TierUsage usage;
  harness_->Do([&] { usage = tier()->Usage(); });
  return usage;
}

TEST_P(TierContract, WhatIsWrittenIsReadWhateverItsSize) {
  for (const uint64_t bytes : {uint64_t{4096}, uint64_t{5000}, uint64_t{64} << 10,
                               uint64_t{1} << 20, uint64_t{8} << 20, uint64_t{64} << 20}) {
    Make({.capacity_bytes = std::max(uint64_t{64} << 20, bytes * 6), .max_block_bytes = bytes});
    const TestBlock block(bytes, bytes);
    EXPECT_EQ(Write(block).code(), Code::kOk) << bytes;
    EXPECT_EQ(Read(block).code(), Code::kOk) << bytes;
    EXPECT_EQ(Probe(block.id()).code(), Code::kOk);
    EXPECT_EQ(BlockCount(), 1u);
    harness_.reset();
  }
}

TEST_P(TierContract, ABlockThatIsReplacedHasTheNewExpiryAndStaysReadable) {
  Make();
  TestBlock block(1, 8192);
  const auto expiry = [this] {
    std::vector<int64_t> found;
    for (const BlockMeta& meta : harness_->Metas()) found.push_back(meta.expiry_unix_seconds);
    return found;
  };
  ASSERT_TRUE(Write(block).ok());
  EXPECT_EQ(expiry(), std::vector<int64_t>{0});
  block.meta().expiry_unix_seconds = INT64_MAX;
  Batch<WriteOp> batch;
  batch.ops.push_back(block.ToWrite());
  batch.ops[0].replace = true;
  bool done = false;
  batch.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness_->Do([&] { tier()->Write(&batch); });
  EXPECT_TRUE(harness_->RunUntil([&] { return done; }));
  EXPECT_TRUE(batch.ops[0].status.ok()) << batch.ops[0].status.ToString();
  EXPECT_EQ(expiry(), std::vector<int64_t>{INT64_MAX});
  EXPECT_EQ(BlockCount(), 1u);
  EXPECT_TRUE(Read(block).ok());
}

TEST_P(TierContract, EachBlockOfABatchHasAStatusOfItsOwn) {
  Make();
  const TestBlock here(1, 8192);
  const TestBlock absent(2, 8192);
  ASSERT_TRUE(Write(here).ok());
  TestBlock first(11, 8192);
  TestBlock second(12, 8192);
  TestBlock third(13, 4096);  // Too small.
  Batch<ReadOp> batch;
  batch.ops.push_back({.id = here.id(), .target = first.memory(), .status = {}, .checksum = {}});
  batch.ops.push_back({.id = absent.id(), .target = second.memory(), .status = {}, .checksum = {}});
  batch.ops.push_back({.id = here.id(), .target = third.memory(), .status = {}, .checksum = {}});
  bool done = false;
  batch.on_done = [&](Batch<ReadOp>&) { done = true; };
  harness_->Do([&] { tier()->Read(&batch); });
  ASSERT_TRUE(harness_->RunUntil([&] { return done; }));
  EXPECT_EQ(batch.ops[0].status.code(), Code::kOk);
  EXPECT_EQ(batch.ops[1].status.code(), Code::kNotFound);
  EXPECT_EQ(batch.ops[2].status.code(), Code::kInvalid);
  EXPECT_TRUE(std::ranges::equal(first.memory(), here.raw()));
  EXPECT_TRUE(std::ranges::equal(second.memory(), TestBlock(12, 8192).raw()))
      << "a miss touched the target";
}

TEST_P(TierContract, ASourceOfTheWrongLengthIsRefusedAndTheOthersAreWritten) {
  Make();
  const TestBlock good(1, 8192);
  const TestBlock bad(2, 8192);
  Batch<WriteOp> batch;
  batch.ops = {bad.ToWrite(), good.ToWrite()};
  batch.ops[0].source = batch.ops[0].source.first(4096);
  bool done = false;
  batch.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness_->Do([&] { tier()->Write(&batch); });
  ASSERT_TRUE(harness_->RunUntil([&] { return done; }));
  EXPECT_EQ(batch.ops[0].status.code(), Code::kInvalid);
  EXPECT_EQ(batch.ops[1].status.code(), Code::kOk);
  EXPECT_EQ(Read(good).code(), Code::kOk);
  EXPECT_EQ(Probe(bad.id()).code(), Code::kNotFound);
}

TEST_P(TierContract, BytesThatDoNotMatchTheirChecksumAreRefusedAndTheOthersAreWritten) {
  if (!GetParam().verifies_sources) GTEST_SKIP() << "not promised by this tier";
  Make();
  const TestBlock good(1, 8192);
  TestBlock bad(2, 8192);
  bad.memory()[100] ^= std::byte{1};
  const std::vector<Status> statuses = Write({&bad, &good});
  EXPECT_EQ(statuses[0].code(), Code::kCorrupt);
  EXPECT_EQ(statuses[1].code(), Code::kOk);
  EXPECT_EQ(Probe(bad.id()).code(), Code::kNotFound);
}

TEST_P(TierContract, CompletionComesOnceAndNeverFromInsideTheCall) {
  Make();
  const TestBlock block(1, 8192);
  TestBlock target(2, 8192);
  int writes = 0;
  int reads = 0;
  int erases = 0;
  Batch<WriteOp> write;
  write.ops = {block.ToWrite()};
  write.on_done = [&](Batch<WriteOp>&) { ++writes; };
  harness_->Do([&] {
    tier()->Write(&write);
    EXPECT_EQ(writes, 0);
  });
  ASSERT_TRUE(harness_->RunUntil([&] { return writes > 0; }));
  Batch<ReadOp> read;
  read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
  read.on_done = [&](Batch<ReadOp>&) { ++reads; };
  harness_->Do([&] {
    tier()->Read(&read);
    EXPECT_EQ(reads, 0);
  });
  ASSERT_TRUE(harness_->RunUntil([&] { return reads > 0; }));
  Batch<EraseOp> erase;
  erase.ops.push_back({.id = block.id(), .status = {}});
  erase.on_done = [&](Batch<EraseOp>&) { ++erases; };
  harness_->Do([&] {
    tier()->Erase(&erase);
    EXPECT_EQ(erases, 0);
  });
  ASSERT_TRUE(harness_->RunUntil([&] { return erases > 0; }));
  harness_->RunUntil([] { return false; });
  EXPECT_EQ(writes, 1);
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(erases, 1);
}

TEST_P(TierContract, AnEmptyBatchCompletes) {
  Make();
  int done = 0;
  Batch<WriteOp> write;
  write.on_done = [&](Batch<WriteOp>&) { ++done; };
  Batch<ReadOp> read;
  read.on_done = [&](Batch<ReadOp>&) { ++done; };
  Batch<EraseOp> erase;
  erase.on_done = [&](Batch<EraseOp>&) { ++done; };
  harness_->Do([&] {
    tier()->Write(&write);
    tier()->Read(&read);
    tier()->Erase(&erase);
    EXPECT_EQ(done, 0);
  });
  EXPECT_TRUE(harness_->RunUntil([&] { return done == 3; }));
}

TEST_P(TierContract, WritingAnIdThatIsThereSucceedsAndChangesNothing) {
  Make();
  const TestBlock block(1, 8192);
  ASSERT_TRUE(Write(block).ok());
  harness_->RunUntil([] { return false; });
  const TierUsage before = Usage();
  EXPECT_TRUE(Write(block).ok());
  harness_->RunUntil([] { return false; });
  const TierUsage after = Usage();
  if (GetParam().counts_bytes) {
    EXPECT_EQ(after.used_bytes, before.used_bytes);
  }
  EXPECT_EQ(BlockCount(), 1u);
  EXPECT_TRUE(Read(block).ok());
}

TEST_P(TierContract, TheSameIdTwiceInOneBatchIsWrittenOnce) {
  Make();
  const TestBlock block(1, 8192);
  for (const Status& status : Write({&block, &block})) EXPECT_TRUE(status.ok());
  EXPECT_EQ(BlockCount(), 1u);
  EXPECT_TRUE(Read(block).ok());
}

TEST_P(TierContract, AnErasedBlockIsGoneAndCanBeWrittenAgain) {
  Make();
  const TestBlock block(1, 8192);
  const TestBlock other(2, 8192);
  ASSERT_TRUE(Write(block).ok());
  ASSERT_TRUE(Write(other).ok());
  const std::vector<Status> statuses = Erase({block.id(), TestBlock(3, 4096).id()});
  EXPECT_EQ(statuses[0].code(), Code::kOk);
  EXPECT_EQ(statuses[1].code(), Code::kNotFound);
  EXPECT_EQ(Read(block).code(), Code::kNotFound);
  EXPECT_EQ(Probe(block.id()).code(), Code::kNotFound);
  EXPECT_EQ(Erase(block.id()).code(), Code::kNotFound);
  EXPECT_TRUE(Read(other).ok());
  EXPECT_EQ(BlockCount(), 1u);
  EXPECT_TRUE(Write(block).ok());
  EXPECT_TRUE(Read(block).ok());
}

TEST_P(TierContract, AFullQueueRefusesAtOnceAndNeverWaits) {
  Make({.max_queued_ops = 8});
  std::vector<std::unique_ptr<TestBlock>> blocks;
  Batch<WriteOp> batch;
  for (uint64_t i = 0; i < 40; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 4096));
    batch.ops.push_back(blocks.back()->ToWrite());
  }
  bool done = false;
  batch.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness_->Do([&] {
    tier()->Write(&batch);
    EXPECT_LE(tier()->Usage().queued_ops, 8u);
  });
  ASSERT_TRUE(harness_->RunUntil([&] { return done; }));
  size_t written = 0;
  for (size_t i = 0; i < batch.ops.size(); ++i) {
    const Code code = batch.ops[i].status.code();
    EXPECT_TRUE(code == Code::kOk || code == Code::kBusy);
    if (code == Code::kOk) ++written;
    EXPECT_EQ(Probe(blocks[i]->id()).ok(), code == Code::kOk);
  }
  EXPECT_GE(written, 8u);
  if (written < 40) {
    for (size_t i = 0; i < batch.ops.size(); ++i) EXPECT_TRUE(Write(*blocks[i]).ok());
  }
  EXPECT_EQ(Usage().queued_ops, 0u);
}

TEST_P(TierContract, ADeadlineThatHasPassedSettlesAsLate) {
  Make();
  const TestBlock block(1, 8192);
  ASSERT_TRUE(Write(block).ok());
  const TestBlock other(2, 8192);
  TestBlock target(3, 8192);
  Batch<WriteOp> write;
  write.ops = {other.ToWrite()};
  write.deadline_nanos = harness_->NowNanos() - 1;
  Batch<ReadOp> read;
  read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
  read.deadline_nanos = harness_->NowNanos() - 1;
  int done = 0;
  int quiescent = 0;
  write.on_done = [&](Batch<WriteOp>&) { ++done; };
  read.on_done = [&](Batch<ReadOp>&) { ++done; };
  write.on_quiescent = [&](Batch<WriteOp>&, size_t) { ++quiescent; };
  read.on_quiescent = [&](Batch<ReadOp>&, size_t) { ++quiescent; };
  harness_->Do([&] {
    tier()->Write(&write);
    tier()->Read(&read);
  });
  ASSERT_TRUE(harness_->RunUntil([&] { return done == 2; }));
  EXPECT_EQ(write.ops[0].status.code(), Code::kLate);
  EXPECT_EQ(read.ops[0].status.code(), Code::kLate);
  const int in_flight = (write.ops[0].in_flight ? 1 : 0) + (read.ops[0].in_flight ? 1 : 0);
  harness_->RunUntil([&] { return quiescent == in_flight; });
  EXPECT_EQ(quiescent, in_flight);
}

TEST_P(TierContract, AHangingDeviceIsLateAtTheDeadlineAndQuiescentWhenItLetsGo) {
  Make();
  const TestBlock block(1, 8192);
  ASSERT_TRUE(Write(block).ok());
  if (!harness_->Hang(true)) GTEST_SKIP() << "this tier's device cannot hang";
  TestBlock target(3, 8192);
  Batch<ReadOp> read;
  read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
  read.deadline_nanos = harness_->NowNanos() + 1'000'000;
  int done = 0;
  std::vector<size_t> quiescent;
  read.on_done = [&](Batch<ReadOp>&) { ++done; };
  read.on_quiescent = [&](Batch<ReadOp>&, size_t index) {
    EXPECT_EQ(done, 1);
    quiescent.push_back(index);
  };
  harness_->Do([&] { tier()->Read(&read); });
  harness_->RunUntil([&] { return done > 0; });
  EXPECT_EQ(done, 0);
  ASSERT_TRUE(harness_->Advance(1'000'000));
  EXPECT_TRUE(harness_->RunUntil([&] { return done == 1; }));
  EXPECT_EQ(read.ops[0].status.code(), Code::kLate);
  EXPECT_TRUE(read.ops[0].in_flight);
  EXPECT_TRUE(quiescent.empty());
  harness_->Hang(false);
  EXPECT_TRUE(harness_->RunUntil([&] { return !quiescent.empty(); }));
  EXPECT_EQ(quiescent, std::vector<size_t>{0});
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(Read(block).ok());
}

TEST_P(TierContract, EnumerateVisitsEveryBlockOnceWithParentsFirst) {
  if (!GetParam().enumerates) GTEST_SKIP() << "this tier must be asked";
  Make();
  std::map<BlockId, BlockMeta> expected;
  std::vector<std::unique_ptr<TestBlock>> blocks;
  // Children are written before their parents.
  for (uint32_t i = 20; i-- > 0;) {
    blocks.push_back(std::make_unique<TestBlock>(i, 5000 + i, i));
    blocks.back()->meta().expiry_unix_seconds = INT64_MAX - i;
    blocks.back()->meta().data_key_id[3] = std::byte{9};
    blocks.back()->meta().nonce[5] = static_cast<std::byte>(i);
    expected[blocks.back()->id()] = blocks.back()->meta();
    ASSERT_TRUE(Write(*blocks.back()).ok());
  }
  ASSERT_TRUE(Erase(blocks[0]->id()).ok());
  expected.erase(blocks[0]->id());
  uint32_t last_position = 0;
  size_t visited = 0;
  for (const BlockMeta& meta : harness_->Metas()) {
    ++visited;
    EXPECT_GE(meta.position, last_position);
    last_position = meta.position;
    ASSERT_TRUE(expected.contains(meta.id));
    const BlockMeta& want = expected[meta.id];
    EXPECT_EQ(meta.parent, want.parent);
    EXPECT_EQ(meta.position, want.position);
    EXPECT_EQ(meta.layout_fingerprint, want.layout_fingerprint);
    EXPECT_EQ(meta.raw_bytes, want.raw_bytes);
    EXPECT_EQ(meta.stored_bytes, want.stored_bytes);
    EXPECT_EQ(meta.checksum, want.checksum);
    EXPECT_EQ(meta.expiry_unix_seconds, want.expiry_unix_seconds);
    EXPECT_EQ(meta.engine_hash, want.engine_hash);
    EXPECT_EQ(meta.data_key_id, want.data_key_id);
    EXPECT_EQ(meta.nonce, want.nonce);
  }
  EXPECT_EQ(visited, expected.size());
}

TEST_P(TierContract, AtCapacityTheCapHoldsToTheByteAndWhatIsThereIsRight) {
  if (!GetParam().counts_bytes) GTEST_SKIP() << "its store's own tests hold it to its cap";
  Make({.capacity_bytes = uint64_t{16} << 20, .max_block_bytes = 256 << 10});
  std::vector<std::unique_ptr<TestBlock>> blocks;
  size_t refused = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    std::vector<const TestBlock*> batch;
    for (uint64_t j = 0; j < 4; ++j) {
      blocks.push_back(std::make_unique<TestBlock>(i * 4 + j, 256 << 10));
      batch.push_back(blocks.back().get());
    }
    for (const Status& status : Write(batch)) {
      EXPECT_TRUE(status.ok() || status.code() == Code::kNoSpace) << status.ToString();
      if (!status.ok()) ++refused;
    }
    const TierUsage usage = Usage();
    EXPECT_LE(usage.used_bytes, usage.capacity_bytes);
    EXPECT_LE(usage.live_bytes, usage.used_bytes);
    EXPECT_LE(usage.capacity_bytes, uint64_t{16} << 20);
  }
  if (GetParam().reclaims) {
    EXPECT_EQ(refused, 0u);
  } else {
    EXPECT_GT(refused, 0u);
  }
  size_t there = 0;
  for (const auto& block : blocks) {
    const Status probe = Probe(block->id());
    const Status read = Read(*block);
    EXPECT_EQ(probe.code(), read.code());
    EXPECT_TRUE(read.ok() || read.code() == Code::kNotFound);
    if (read.ok()) ++there;
  }
  EXPECT_EQ(there, BlockCount());
  EXPECT_GT(there, 0u);
}

TEST_P(TierContract, ARandomHistoryAgreesWithAMap) {
  Make();
  SeededRandom random(7);
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = 0; i < 24; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 1 + random.Below(20'000)));
  }
  std::set<size_t> model;
  for (int step = 0; step < 400; ++step) {
    const size_t i = random.Below(blocks.size());
    switch (random.Below(4)) {
      case 0:
      case 1: {
        const size_t j = random.Below(blocks.size());
        for (const Status& status : Write({blocks[i].get(), blocks[j].get()})) {
          ASSERT_TRUE(status.ok()) << status.ToString();
        }
        model.insert(i);
        model.insert(j);
        break;
      }
      case 2:
        ASSERT_EQ(Erase(blocks[i]->id()).code(), model.erase(i) ? Code::kOk : Code::kNotFound);
        break;
      default:
        ASSERT_EQ(Read(*blocks[i]).code(), model.contains(i) ? Code::kOk : Code::kNotFound);
    }
    ASSERT_EQ(BlockCount(), model.size());
    if (step % 100 == 99) harness_->Restart();
  }
}

TEST_P(TierContract, BlocksAndErasuresSurviveARestart) {
  Make();
  const TestBlock kept(1, 5000);
  const TestBlock erased(2, 5000);
  ASSERT_TRUE(Write(kept).ok());
  ASSERT_TRUE(Write(erased).ok());
  ASSERT_TRUE(Erase(erased.id()).ok());
  if (!harness_->Restart()) GTEST_SKIP() << "this tier forgets";
  EXPECT_TRUE(Read(kept).ok());
  EXPECT_EQ(Read(erased).code(), Code::kNotFound);
  EXPECT_EQ(BlockCount(), 1u);
}

}  // namespace aquifer
