// The NVMe tier over disks in memory, stepped by hand. For tests.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "block/record.h"
#include "gtest/gtest.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_disk.h"
#include "testing/seeded_random.h"
#include "tier/nvme/nvme_tier.h"
#include "tier/test_keys.h"
#include "tier/tier_contract.h"

namespace aquifer {

// What is given by a function of all blocks at once.
class ChoiceOfAll final : public ReclaimChoice {
 public:
  using Choose = std::function<void(std::span<const BlockId>, std::vector<size_t>*)>;
  explicit ChoiceOfAll(Choose choose) : choose_(std::move(choose)) {}

  void Add(std::span<const BlockId> ids) override {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  bool MayReclaim(uint64_t) override { return true; }
  std::vector<uint32_t> Order() override {
    std::vector<size_t> order;
    if (choose_) choose_(ids_, &order);
    return {order.begin(), order.end()};
  }

 private:
  const Choose choose_;
  std::vector<BlockId> ids_;
};

struct NvmeHarnessListener final : TierListener {
  void OnLost(std::span<const BlockId> ids, Code why) override {
    for (const BlockId& id : ids) lost[id] = why;
  }
  std::unique_ptr<ReclaimChoice> OnReclaim() override {
    ++reclaims;
    return std::make_unique<ChoiceOfAll>(choose);
  }
  bool MayDrop(const BlockId& id) override { return !pinned.contains(id); }
  void OnFound() override { ++found; }
  void OnDetached() override { ++detached; }
  void OnHealth(bool in_service, const Status& why) override {
    health.push_back(in_service);
    health_why = why;
  }

  ChoiceOfAll::Choose choose;
  std::map<BlockId, Code> lost;
  std::set<BlockId> pinned;
  int reclaims = 0;
  int found = 0;
  int detached = 0;
  std::vector<bool> health;
  Status health_why;
};

class NvmeHarness final : public TierHarness {
 public:
  explicit NvmeHarness(const NvmeTierOptions& tier_options, size_t drives = 1, bool seal = false)
      : options(tier_options) {
    if (seal) {
      packer = std::make_unique<Packer>(PackerOptions{.keys = &keys}, &clock, &random);
      options.packer = packer.get();
    }
    for (size_t i = 0; i < drives; ++i) media.push_back(std::make_shared<MemoryMedia>());
    Mount();
  }
  NvmeHarness(const NvmeTierOptions& tier_options, std::vector<std::shared_ptr<MemoryMedia>> drives)
      : media(std::move(drives)), options(tier_options) {}
  ~NvmeHarness() override { Unmount(); }

  // New disks and a new tier over the media, recovered.
  void Mount() {
    MountWithoutRecovery();
    EXPECT_TRUE(RecoverNow().ok());
  }

  void MountWithoutRecovery() {
    for (size_t i = 0; i < media.size(); ++i) {
      MemoryDiskOptions named = disk_options;
      named.name = "drive" + std::to_string(i);
      disks.push_back(std::make_unique<MemoryDisk>(media[i], named, &executor, &clock));
    }
    std::vector<Disk*> borrowed;
    for (const auto& disk : disks) borrowed.push_back(disk.get());
    auto tier = NewNvmeTier(options, borrowed, &listener, &executor, &executor, &clock, &random);
    AQ_CHECK(tier.ok());
    nvme_tier = std::move(*tier);
  }

  Status RecoverNow() {
    Status result(Code::kBusy);
    nvme_tier->Recover([&](Status status) { result = std::move(status); });
    executor.RunAll();
    return result;
  }

  // The process ends without a word. What is at the disks may be torn.
  void Crash(SeededRandom* tearing) {
    for (const auto& disk : disks) disk->Crash(tearing);
    Unmount();
  }

  void Unmount() {
    nvme_tier.reset();
    disks.clear();
    executor.RunAll();
  }

  Tier* tier() override { return nvme_tier.get(); }
  NvmeTier* nvme() { return nvme_tier.get(); }
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
    for (const auto& disk : disks) disk->Hang(on);
    return true;
  }
  bool Restart() override {
    executor.RunAll();
    Unmount();
    Mount();
    return true;
  }

  std::vector<BlockMeta> Metas() override {
    std::vector<BlockMeta> metas;
    bool done = false;
    nvme_tier->EnumerateInSlices([&](const BlockMeta& meta) { metas.push_back(meta); },
                                 [&] { done = true; });
    EXPECT_TRUE(RunUntil([&] { return done; }));
    return metas;
  }

  // Where a block's payload lies on the first drive: as its last record says.
  struct Place {
    uint32_t file = 0;
    uint64_t offset = 0;
  };
  Place PlaceOf(const BlockId& id) {
    Place place;
    uint64_t sequence = 0;
    for (const DiskFile& file : media[0]->List()) {
      const std::vector<std::byte> bytes = media[0]->Bytes(file.number, 0, file.bytes);
      for (size_t at = 0; at + kRecordBytes <= bytes.size(); at += 8) {
        Record record;
        const auto window = std::span(bytes).subspan(at).first<kRecordBytes>();
        if (DecodeRecord(window, &record) != RecordVerdict::kOk || record.meta.id != id ||
            record.age.sequence < sequence) {
          continue;
        }
        sequence = record.age.sequence;
        place = {.file = file.number, .offset = record.payload_offset};
      }
    }
    EXPECT_GT(place.offset, 0u) << "it has no record";
    return place;
  }

  uint64_t Counter(const std::string& name) {
    for (const auto& [key, value] : nvme_tier->Counters()) {
      if (key == name) return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  // ---- One batch each, run until nothing moves. ----

  std::vector<Status> Write(const std::vector<const TestBlock*>& blocks) {
    Batch<WriteOp> batch;
    for (const TestBlock* block : blocks) batch.ops.push_back(block->ToWrite());
    bool done = false;
    batch.on_done = [&](Batch<WriteOp>&) { done = true; };
    nvme_tier->Write(&batch);
    executor.RunAll();
    EXPECT_TRUE(done);
    std::vector<Status> statuses;
    for (const WriteOp& op : batch.ops) statuses.push_back(op.status);
    return statuses;
  }
  Status Write(const TestBlock& block) { return Write(std::vector{&block})[0]; }

  Status Erase(const BlockId& id) {
    Batch<EraseOp> batch;
    batch.ops.push_back({.id = id, .status = {}});
    bool done = false;
    batch.on_done = [&](Batch<EraseOp>&) { done = true; };
    nvme_tier->Erase(&batch);
    executor.RunAll();
    EXPECT_TRUE(done);
    return batch.ops[0].status;
  }

  // Ok only with the very bytes.
  Status Read(const TestBlock& block) {
    TestBlock target(block.meta().engine_hash + 1'000'000, block.meta().raw_bytes);
    Batch<ReadOp> batch;
    batch.ops.push_back(
        {.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
    bool done = false;
    batch.on_done = [&](Batch<ReadOp>&) { done = true; };
    nvme_tier->Read(&batch);
    executor.RunAll();
    EXPECT_TRUE(done);
    if (batch.ops[0].status.ok()) {
      EXPECT_TRUE(std::ranges::equal(target.memory().first(block.raw().size()), block.raw()))
          << "wrong bytes were served";
    }
    return batch.ops[0].status;
  }

  ManualClock clock;
  ManualExecutor executor{&clock};
  SeededRandom random{99};
  TestKeys keys;
  std::unique_ptr<Packer> packer;  // Null: nothing is sealed.
  NvmeHarnessListener listener;
  std::vector<std::shared_ptr<MemoryMedia>> media;
  std::vector<std::unique_ptr<MemoryDisk>> disks;
  NvmeTierOptions options;
  MemoryDiskOptions disk_options;
  std::unique_ptr<NvmeTier> nvme_tier;
};

}  // namespace aquifer
