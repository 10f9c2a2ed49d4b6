// What the NVMe tier owes when drives fail at the wrong moment. Each was found by the simulator.
#include <memory>
#include <vector>

#include "tier/nvme_harness.h"
#include "tier/nvme_tier.h"

namespace aquifer {
namespace {

constexpr uint64_t kSegment = 128 << 10;
constexpr int64_t kSecond = 1'000'000'000;

NvmeTierOptions Small(uint64_t segments = 8) {
  NvmeTierOptions options;
  options.segment_bytes = kSegment;
  options.capacity_bytes = segments * kSegment;
  options.max_block_bytes = 16 << 10;
  return options;
}

TEST(NvmeFaultsTest, AnErasureWaitsForMarksOnAnotherDriveInsteadOfFailing) {
  NvmeHarness harness(Small(), 2);
  const TestBlock first(1, 8192);
  const TestBlock second(2, 8192);
  ASSERT_TRUE(harness.Write(first).ok());
  ASSERT_TRUE(harness.Write(second).ok());
  // The page that names a block fails on the first drive: it may be there, unmarked.
  bool failed = false;
  harness.disks_[0]->SetFault([&failed](const IoRequest& request) {
    if (request.kind != IoKind::kWrite || request.data.size() != kPageBytes || failed) {
      return Status();
    }
    failed = true;
    return Status(Code::kNoSpace);
  });
  EXPECT_EQ(harness.Write(TestBlock(3, 8192)).code(), Code::kNoSpace);
  ASSERT_TRUE(failed);
  EXPECT_TRUE(harness.Erase(second.id()).ok());
}

}  // namespace
}  // namespace aquifer
