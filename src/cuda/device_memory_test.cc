// Against a driver that says what a test wants; gpu_test asks a real one.
#include "cuda/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/gpu/fake_cuda_driver.h"

namespace aquifer {
namespace {

using testing::HasSubstr;

// By the numbers of cuda.h.
constexpr int kInvalidValue = 1;
constexpr int kNotInitialized = 3;
constexpr int kInvalidContext = 201;
constexpr int kIllegalAddress = 700;
constexpr uint32_t kHost = 1;
constexpr uint32_t kDevice = 2;

Result<int> Ask(const FakeCudaAnswers& answers) {
  fake_cuda_answers = answers;
  return DeviceOfMemory(&fake_cuda_answers);
}

TEST(DeviceMemoryTest, MemoryIsTheDevicesOrTheHosts) {
  EXPECT_EQ(*Ask({.memory_type = kDevice, .ordinal = 3}), 3);
  EXPECT_EQ(*Ask({.memory_type = kDevice, .is_managed = 1, .ordinal = 3}), kHostMemory);
  EXPECT_EQ(*Ask({.memory_type = kHost}), kHostMemory);  // Pinned.
}

TEST(DeviceMemoryTest, AnAddressThatTheDriverDoesNotKnowIsTheHosts) {
  EXPECT_EQ(*Ask({.result = kInvalidValue}), kHostMemory);
  EXPECT_EQ(*Ask({.result = kNotInitialized}), kHostMemory);
}

// Taken for the host's, device memory would be read by the CPU.
TEST(DeviceMemoryTest, AFailureIsNoAnswer) {
  for (const int result : {kInvalidContext, kIllegalAddress}) {
    const Result<int> device = Ask({.result = result});
    ASSERT_FALSE(device.ok()) << result;
    EXPECT_EQ(device.status().code(), Code::kUnavailable);
    EXPECT_THAT(device.status().message(), HasSubstr(std::to_string(result)));
  }
}

}  // namespace
}  // namespace aquifer
