#include "testing/memory_extents.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "io/disk/disk.h"

namespace aquifer {
namespace {

TEST(MemoryExtentsTest, AnExtentIsAlignedZeroedAndPrivate) {
  MemoryExtents extents;
  auto extent = extents.New(3 * kPageBytes);
  ASSERT_TRUE(extent.ok());
  const std::span<std::byte> bytes = (*extent)->bytes();
  EXPECT_EQ(bytes.size(), 3 * kPageBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kPageBytes, 0u);
  EXPECT_EQ(bytes.front(), std::byte{0});
  EXPECT_EQ(bytes.back(), std::byte{0});
  EXPECT_EQ((*extent)->descriptor(), -1);
  EXPECT_FALSE((*extent)->huge_pages());
}

TEST(MemoryExtentsTest, ExtentsTakeFromWhatIsAvailableAndGiveItBack) {
  MemoryExtents extents(3 * kPageBytes);
  auto extent = extents.New(2 * kPageBytes);
  ASSERT_TRUE(extent.ok());
  EXPECT_EQ(extents.AvailableBytes(), kPageBytes);
  EXPECT_EQ(extents.outstanding_bytes(), 2 * kPageBytes);
  EXPECT_EQ(extents.outstanding(), 1u);
  EXPECT_EQ(extents.New(2 * kPageBytes).status().code(), Code::kNoSpace);
  {
    const auto gone = *std::move(extent);
  }
  EXPECT_EQ(extents.AvailableBytes(), 3 * kPageBytes);
  EXPECT_EQ(extents.outstanding(), 0u);
  extents.SetAvailableBytes(0);
  EXPECT_EQ(extents.New(kPageBytes).status().code(), Code::kNoSpace);
}

TEST(MemoryExtentsTest, TheNextCallsFailAsTold) {
  MemoryExtents extents;
  extents.FailNext(1, Code::kUnavailable);
  EXPECT_EQ(extents.New(kPageBytes).status().code(), Code::kUnavailable);
  EXPECT_TRUE(extents.New(kPageBytes).ok());
}

TEST(MemoryExtentsTest, OddSizesAreRefused) {
  MemoryExtents extents;
  EXPECT_EQ(extents.New(0).status().code(), Code::kInvalid);
  EXPECT_EQ(extents.New(100).status().code(), Code::kInvalid);
}

TEST(MemoryExtentsTest, AnExtentMayOutliveItsSource) {
  auto extents = std::make_unique<MemoryExtents>();
  auto extent = extents->New(kPageBytes);
  ASSERT_TRUE(extent.ok());
  extents.reset();
  (*extent)->bytes()[0] = std::byte{1};
}

}  // namespace
}  // namespace aquifer
