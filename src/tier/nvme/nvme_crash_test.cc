// The process dies at every single request of a small history, with what is at the drive torn at
// random, and starts again: what was acknowledged is there, what was erased is not, and nothing
// wrong is ever served.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "testing/test_level.h"
#include "tier/nvme/nvme_harness.h"

namespace aquifer {
namespace {

constexpr uint64_t kSegment = 64 << 10;

// What the caller knows about one block.
enum class Known : uint8_t { kNothing, kWritten, kErased, kUnsure };

struct HistoryOptions {
  uint64_t segments = 8;
  int steps = 12;
  bool sync = false;
  bool keep = true;      // What reclaim may keep, it keeps.
  bool replace = false;  // What is there is written again, with another expiry.
  size_t drives = 1;
};

// Writes and erases, one batch after the other, until the disk stops answering.
class History {
 public:
  History(const HistoryOptions& options, uint64_t seed) : history_(options), random_(seed) {
    tier_.segment_bytes = kSegment;
    tier_.capacity_bytes = options.segments * kSegment * options.drives;
    tier_.max_block_bytes = 8192;
    tier_.sync = options.sync;
    for (uint64_t i = 0; i < 48; ++i) {
      blocks_.push_back(std::make_unique<TestBlock>(i, 1 + i * 777 % 8192));
    }
    known_.resize(blocks_.size());
    expiries_.resize(blocks_.size());
    for (size_t i = 0; i < options.drives; ++i) {
      media_.push_back(std::make_shared<MemoryMedia>());
      if (options.sync) media_.back()->set_reorder_until_sync(true);
    }
    Mount();
  }

  ~History() { Stop(); }

  // Stops the disks after `stop_after` requests. True if the history came to its end.
  bool Run(uint64_t stop_after) {
    harness_->disks[0]->StopAfter(stop_after);
    for (int step = 0; step < history_.steps; ++step) {
      if (!Step()) return false;
    }
    harness_->executor.RunAll();
    return true;
  }

  uint64_t requests_done() const { return harness_->disks[0]->requests_done(); }

  void CrashAndRestart() {
    Crash();
    Mount();
  }

  // What a restart at once would find with an expiry is gone when the restart comes after that:
  // no older record without one takes its place.
  void CrashAndRestartLater() {
    Crash();
    const std::vector<std::shared_ptr<MemoryMedia>> media = media_;
    for (auto& copy : media_) copy = copy->Clone();
    Mount();
    const std::map<BlockId, int64_t> expiries = Expiries();
    Stop();
    media_ = media;
    unix_seconds_ += 2 * kLifeSeconds;
    Mount();
    for (const auto& block : blocks_) {
      const auto found = expiries.find(block->id());
      if (found == expiries.end() || found->second == 0) continue;
      EXPECT_FALSE(harness_->Read(*block).ok()) << "past its time, and back";
    }
  }

  void Check() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Status status = harness_->Read(*blocks_[i]);  // Compares the bytes.
      const bool lost =
          lost_.contains(blocks_[i]->id()) || harness_->listener.lost.contains(blocks_[i]->id());
      EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
      if (known_[i] == Known::kWritten && !lost) {
        EXPECT_TRUE(status.ok()) << "an acknowledged block is gone: " << i;
      }
      if (known_[i] == Known::kErased) {
        EXPECT_FALSE(status.ok()) << "an erased block came back: " << i;
      }
    }
    CheckExpiries();
    uint64_t bytes = 0;
    for (const auto& media : media_) bytes += media->used_bytes();
    EXPECT_LE(bytes, tier_.capacity_bytes);
    EXPECT_EQ(harness_->tier()->Usage().queued_ops, 0u);
  }

  // Nothing that is erased now may come back, whatever older copies the crash left behind.
  void EraseAll() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Code code = harness_->Erase(blocks_[i]->id()).code();
      EXPECT_TRUE(code == Code::kOk || code == Code::kNotFound);
      known_[i] = Known::kErased;
    }
    Stop();
    Mount();
    Check();
  }

  // The tier works as if nothing had been.
  void GoOn() {
    ASSERT_TRUE(Step());
    Check();
    harness_->executor.RunAll();
    for (const auto& [id, why] : harness_->listener.lost) lost_[id] = why;
    Stop();
    Mount();
    Check();
  }

  const NvmeRecovery& recovery() { return harness_->nvme()->recovery(); }

 private:
  void Crash() {
    for (const auto& disk : harness_->disks) {
      if (history_.sync) {
        disk->PowerLoss(&random_);
      } else {
        disk->Crash(&random_);
      }
    }
    Stop();
  }

  void Mount() {
    harness_ = std::make_unique<NvmeHarness>(tier_, media_);
    harness_->random = SeededRandom(++mounts_ * 1000);
    harness_->clock.SetUnixSeconds(unix_seconds_);
    if (history_.keep) {
      harness_->listener.choose = [](std::span<const BlockId> ids, std::vector<size_t>* order) {
        for (size_t i = 0; i < ids.size(); ++i) order->push_back(i);
      };
    }
    harness_->Mount();
  }

  void Stop() {
    if (harness_ == nullptr) return;
    for (const auto& [id, why] : harness_->listener.lost) lost_[id] = why;
    harness_.reset();
    writes_.clear();
    erases_.clear();
  }

  // A batch of writes and, a few tasks later, a batch of erases, so that they meet each other and
  // reclaim in every stage. False when the disk stopped answering.
  bool Step() {
    writes_.push_back(std::make_unique<Batch<WriteOp>>());
    erases_.push_back(std::make_unique<Batch<EraseOp>>());
    Batch<WriteOp>& write = *writes_.back();
    Batch<EraseOp>& erase = *erases_.back();
    std::vector<size_t> written;
    std::vector<size_t> erased;
    for (uint64_t n = 1 + random_.Below(5); n > 0; --n) {
      written.push_back(random_.Below(blocks_.size()));
      write.ops.push_back(blocks_[written.back()]->ToWrite());
      if (!history_.replace || known_[written.back()] != Known::kWritten) continue;
      write.ops.back().replace = true;
      write.ops.back().meta.expiry_unix_seconds = unix_seconds_ + kLifeSeconds + ++replacements_;
    }
    for (uint64_t n = random_.Below(4); n > 0; --n) {
      erased.push_back(random_.Below(blocks_.size()));
      erase.ops.push_back({.id = blocks_[erased.back()]->id(), .status = {}});
    }
    // What is known to be there stays there. Otherwise it is open until the answer comes.
    for (size_t n = 0; n < written.size(); ++n) {
      const size_t i = written[n];
      expiries_[i].push_back(write.ops[n].meta.expiry_unix_seconds);
      if (known_[i] != Known::kWritten) known_[i] = Known::kUnsure;
    }
    bool write_done = false;
    bool erase_done = false;
    write.on_done = [&](Batch<WriteOp>&) { write_done = true; };
    erase.on_done = [&](Batch<EraseOp>&) { erase_done = true; };
    harness_->tier()->Write(&write);
    for (uint64_t n = random_.Below(80); n > 0; --n) harness_->executor.RunOne();
    for (const size_t i : erased) {
      if (known_[i] == Known::kWritten) known_[i] = Known::kUnsure;
    }
    harness_->tier()->Erase(&erase);
    harness_->executor.RunAll();
    if (write_done) {
      for (size_t i = 0; i < written.size(); ++i) {
        EXPECT_TRUE(write.ops[i].status.ok()) << write.ops[i].status.ToString();
        OnWritten(written[i], std::ranges::count(erased, written[i]) > 0);
        // One that is there twice has the later one's.
        if (write.ops[i].replace) {
          expiries_[written[i]] = {write.ops[i].meta.expiry_unix_seconds};
        }
      }
    }
    if (erase_done) {
      for (size_t i = 0; i < erased.size(); ++i) {
        const Code code = erase.ops[i].status.code();
        EXPECT_TRUE(code == Code::kOk || code == Code::kNotFound);
        if (code == Code::kOk) known_[erased[i]] = Known::kErased;
      }
    }
    return write_done && erase_done;
  }

  std::map<BlockId, int64_t> Expiries() {
    std::map<BlockId, int64_t> found;
    for (const BlockMeta& meta : harness_->Metas()) found[meta.id] = meta.expiry_unix_seconds;
    return found;
  }

  void CheckExpiries() {
    const std::map<BlockId, int64_t> found = Expiries();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto block = found.find(blocks_[i]->id());
      if (block == found.end()) continue;
      EXPECT_GT(std::ranges::count(expiries_[i], block->second), 0)
          << "block " << i << " has an expiry that was replaced: " << block->second;
    }
  }

  void OnWritten(size_t block, bool erased_too) {
    const BlockId& id = blocks_[block]->id();
    const bool there = harness_->tier()->Probe(id).ok();
    known_[block] = erased_too ? Known::kUnsure : Known::kWritten;
    if (there) {
      harness_->listener.lost.erase(id);
      lost_.erase(id);
    } else if (!erased_too) {
      // Reclaim dropped it again, and said so.
      EXPECT_TRUE(harness_->listener.lost.contains(id));
    }
  }

  static constexpr int64_t kLifeSeconds = 1'000'000;

  const HistoryOptions history_;
  NvmeTierOptions tier_;
  SeededRandom random_;
  std::vector<std::unique_ptr<TestBlock>> blocks_;
  std::vector<Known> known_;
  std::vector<std::vector<int64_t>> expiries_;  // Of each block, those that it may have.
  int64_t unix_seconds_ = 1'700'000'000;
  int64_t replacements_ = 0;
  std::map<BlockId, Code> lost_;  // By reclaim, in earlier mounts.
  std::vector<std::shared_ptr<MemoryMedia>> media_;
  std::vector<std::unique_ptr<Batch<WriteOp>>> writes_;  // Kept until the disk is gone.
  std::vector<std::unique_ptr<Batch<EraseOp>>> erases_;
  std::unique_ptr<NvmeHarness> harness_;
  uint64_t mounts_ = 0;
};

// What comes after the crash.
enum class Then : uint8_t { kGoOn, kEraseAll, kRestartLater };

void CrashEverywhere(const HistoryOptions& options, uint64_t seed, Then then = Then::kGoOn) {
  uint64_t requests = 0;
  {
    History whole(options, seed);
    ASSERT_TRUE(whole.Run(UINT64_MAX));
    requests = whole.requests_done();
  }
  for (uint64_t stop = 0; stop <= requests; ++stop) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", crash after request " << stop);
    History history(options, seed);
    history.Run(stop);
    if (then == Then::kRestartLater) {
      history.CrashAndRestartLater();
    } else {
      history.CrashAndRestart();
      history.Check();
      then == Then::kEraseAll ? history.EraseAll() : history.GoOn();
    }
    if (testing::Test::HasFailure()) return;
  }
}

// One where time is short: every crash of one history says most of what there is to say.
std::vector<uint64_t> Seeds(uint64_t first, uint64_t count) {
  std::vector<uint64_t> seeds(ByTestLevel<uint64_t>(1, count, count));
  std::iota(seeds.begin(), seeds.end(), first);
  return seeds;
}

TEST(NvmeCrashTest, NothingIsLostOrUndoneWhateverRequestTheProcessDiesAt) {
  for (const uint64_t seed : Seeds(1, 4)) CrashEverywhere({}, seed);
}

TEST(NvmeCrashTest, TheSameWhileSegmentsAreReclaimed) {
  for (const uint64_t seed : Seeds(11, 8)) {
    CrashEverywhere({.segments = 4, .steps = 30}, seed);
  }
}

TEST(NvmeCrashTest, AfterACrashInTheMiddleOfMovingBlocksTheyCanBeErasedForGood) {
  for (const uint64_t seed : Seeds(51, 4)) {
    CrashEverywhere({.segments = 4, .steps = 30}, seed, Then::kEraseAll);
  }
}

TEST(NvmeCrashTest, TheSameWhenReclaimKeepsNothing) {
  CrashEverywhere({.segments = 4, .steps = 30, .keep = false}, 21);
}

TEST(NvmeCrashTest, SyncedWritesSurviveTheLossOfPower) {
  for (const uint64_t seed : Seeds(31, 4)) {
    CrashEverywhere({.segments = 4, .steps = 20, .sync = true}, seed);
  }
}

TEST(NvmeCrashTest, ABlockThatIsBeingReplacedIsAlwaysThere) {
  for (const uint64_t seed : Seeds(61, 4)) {
    CrashEverywhere({.steps = 20, .replace = true}, seed);
    CrashEverywhere({.segments = 4, .steps = 30, .replace = true}, seed);
    CrashEverywhere({.segments = 4, .steps = 20, .replace = true, .drives = 2}, seed);
  }
  CrashEverywhere({.segments = 4, .steps = 20, .sync = true, .replace = true}, 65);
}

TEST(NvmeCrashTest, WhatWasReplacedDoesNotComeBackWhenItIsErased) {
  for (const uint64_t seed : Seeds(71, 3)) {
    CrashEverywhere({.segments = 4, .steps = 30, .replace = true}, seed, Then::kEraseAll);
    CrashEverywhere({.steps = 20, .replace = true, .drives = 2}, seed, Then::kEraseAll);
  }
}

TEST(NvmeCrashTest, WhatWasReplacedDoesNotComeBackWhenItsTimeIsOver) {
  for (const uint64_t seed : Seeds(81, 3)) {
    CrashEverywhere({.segments = 4, .steps = 30, .replace = true}, seed, Then::kRestartLater);
    CrashEverywhere({.steps = 20, .replace = true, .drives = 2}, seed, Then::kRestartLater);
  }
}

TEST(NvmeCrashTest, TheSameOverTwoDrives) {
  for (const uint64_t seed : Seeds(41, 2)) {
    CrashEverywhere({.segments = 4, .steps = 20, .drives = 2}, seed);
  }
}

}  // namespace
}  // namespace aquifer
