// A CoreFixture whose drive goes out of service, or is away, with blocks that only it has.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {

class CoreAbsentDriveFixture : public CoreFixture {
 public:
  static constexpr int64_t kSecond = 1'000'000'000;
  static constexpr size_t kBlocks = 8;

 protected:
  enum class Back : uint8_t { kWhole, kReadOnly };

  // The chain is on the drive alone, which is then out of service. With `reading`, because its own
  // blocks were being read; those reads hang as long as the drive does.
  void StoreAndLoseDrive(const CoreOptions& options, bool reading = false,
                         int64_t ttl_seconds = 0) {
    Make(options);
    ASSERT_EQ(Store(chain_), kBlocks);
    ASSERT_EQ(Store(other_), other_.size());
    if (ttl_seconds > 0) Hint(chain_, ttl_seconds);
    ASSERT_TRUE(Flush().ok());
    Restart();
    LoseDrive(reading);
  }
  void LoseDrive(bool reading = false) {
    world_->disk(kDrive).Hang(true);
    Recall(reading ? chain_ : other_);
    world_->Advance(10 * kSecond);
    ASSERT_FALSE(InService());
  }
  void BringDriveBack(Back how = Back::kWhole) {
    if (how == Back::kReadOnly) {
      world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kUnavailable);
    }
    world_->disk(kDrive).Hang(false);
    world_->Advance(5 * kSecond);
    ASSERT_TRUE(InService());
  }
  bool InService() {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.tiers[1].drives[0].in_service;
  }
  uint64_t Bytes(size_t tier) {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.tiers[tier].tenant_bytes;
  }

  std::unique_ptr<ManualClient> AttachRank(const std::string& engine) {
    auto client = std::make_unique<ManualClient>(
        world_.get(), ClientOptions{.tenant = "local", .engine = engine});
    RegisterLayoutRequest request;
    request.layout = layout_;
    client->Do(&Core::RegisterLayout, &request);
    return client;
  }
  // Of all blocks, by a rank of two or, with `rank` 2, by one that has all heads.
  std::vector<CommitOp> Commit(const ReserveRequest& reserved, ManualClient* client,
                               uint32_t rank = 2, uint16_t computation = 1) {
    CommitRequest commit;
    for (size_t i = 0; i < reserved.ops.size(); ++i) {
      if (reserved.ops[i].outcome != ReserveOutcome::kSlot) continue;
      std::span<std::byte> bytes = reserved.ops[i].slot;
      const size_t begin = rank == 1 ? bytes.size() / 2 : 0;
      if (rank < 2) bytes = bytes.subspan(begin, bytes.size() / 2);
      FillPayload(chain_[i], computation, bytes, begin);
      CommitOp& op = commit.ops.emplace_back();
      op.reservation = reserved.ops[i].reservation;
      op.sums = SumLanes(bytes, begin);
      if (rank < 2) op.head_begin = rank;
      if (rank < 2) op.head_end = rank + 1;
    }
    client->Do(&Core::Commit, &commit);
    return std::move(commit.ops);
  }
  static size_t Published(const std::vector<CommitOp>& ops) {
    return static_cast<size_t>(
        std::count_if(ops.begin(), ops.end(), [](const CommitOp& op) { return op.published; }));
  }
  static size_t Count(const ReserveRequest& reserved, ReserveOutcome outcome) {
    return static_cast<size_t>(
        std::count_if(reserved.ops.begin(), reserved.ops.end(),
                      [outcome](const ReserveOp& op) { return op.outcome == outcome; }));
  }
  static std::vector<ReservationId> Given(const ReserveRequest& reserved) {
    std::vector<ReservationId> given;
    for (const ReserveOp& op : reserved.ops) given.push_back(op.reservation);
    return given;
  }
  // Other blocks take all of DRAM.
  void Crowd() {
    for (int chains = 0; chains < 8; ++chains) {
      EXPECT_EQ(Store(Chain(layout_, {.seed = crowd_++, .blocks = 16})), 16u);
    }
  }
  // Nothing of it was ever called damaged.
  void ExpectNoDamage() {
    EXPECT_EQ(Counter("corrupt_blocks"), 0u);
    EXPECT_EQ(Counter("nvme_corrupt_blocks"), 0u);
  }
  void ExpectNothingLeft() {
    for (const char* const name :
         {"blocks", "quarantined_bytes", "pending_erasures", "blocks_only_in_dram", "lent_slots"}) {
      EXPECT_EQ(Counter(name), 0u) << name;
    }
    EXPECT_EQ(Bytes(0), 0u);
    EXPECT_EQ(Bytes(1), 0u);
  }

  const Chain chain_{layout_, {.seed = 1, .blocks = kBlocks}};
  const Chain other_{layout_, {.seed = 2, .blocks = 1}};
  uint64_t crowd_ = 100;  // The next seed.
};

}  // namespace aquifer
