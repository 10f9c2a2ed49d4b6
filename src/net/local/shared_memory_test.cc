#include "net/local/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace aquifer {
namespace {

constexpr uint64_t kBytes = 8192;

Descriptor Copy(int descriptor) { return Descriptor(::dup(descriptor)); }

TEST(SharedMemoryTest, TwoMappingsAreTheSameBytes) {
  const Result<SharedMemory> made = SharedMemory::New(kBytes);
  ASSERT_TRUE(made.ok());
  const Result<SharedMemory> mapped = SharedMemory::Map(Copy(made->descriptor()), kBytes);
  ASSERT_TRUE(mapped.ok());
  ASSERT_EQ(mapped->bytes().size(), kBytes);
  EXPECT_EQ(mapped->bytes()[kBytes - 1], std::byte{0});
  made->bytes()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(mapped->bytes()[kBytes - 1], std::byte{7});
}

TEST(SharedMemoryTest, CannotChangeItsSize) {
  const Result<SharedMemory> made = SharedMemory::New(kBytes);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(::ftruncate(made->descriptor(), 4096), 0);
  EXPECT_NE(::ftruncate(made->descriptor(), 2 * kBytes), 0);
}

TEST(SharedMemoryTest, MemoryOfAnotherSizeIsNotMapped) {
  const Result<SharedMemory> made = SharedMemory::New(kBytes);
  ASSERT_TRUE(made.ok());
  for (const uint64_t bytes : {uint64_t{0}, kBytes - 1, kBytes + 1, UINT64_MAX}) {
    EXPECT_EQ(SharedMemory::Map(Copy(made->descriptor()), bytes).status().code(), Code::kInvalid);
  }
  EXPECT_FALSE(SharedMemory::Map(Descriptor(), kBytes).ok());
}

// The other process could shrink it while we touch it, and that would end this process.
TEST(SharedMemoryTest, MemoryThatMayShrinkIsNotMapped) {
  Descriptor descriptor(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(descriptor.get(), static_cast<off_t>(kBytes)), 0);
  EXPECT_EQ(SharedMemory::Map(std::move(descriptor), kBytes).status().code(), Code::kInvalid);
}

TEST(SharedMemoryTest, TheMappingOutlivesItsDescriptorAndMoves) {
  Result<SharedMemory> made = SharedMemory::New(kBytes);
  ASSERT_TRUE(made.ok());
  made->CloseDescriptor();
  EXPECT_LT(made->descriptor(), 0);
  made->bytes()[0] = std::byte{9};
  SharedMemory moved = *std::move(made);
  SharedMemory assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes()[0], std::byte{9});
}

}  // namespace
}  // namespace aquifer
