#include "node/local/open_request.h"

#include <gtest/gtest.h>

#include <vector>

namespace aquifer {
namespace {

constexpr uint32_t kAnnounced = 1u << 20;

// The frame that begins a request, with the first of its keys.
std::vector<std::byte> FirstFrame(FrameKind kind, std::span<const Key> keys) {
  const ChainCall chain{.layout = 1,
                        .group = 0,
                        .part = 0,
                        .total = kAnnounced,
                        .items = {.keys = keys, .engine_hashes = {}}};
  FrameWriter writer;
  writer.Begin(static_cast<uint16_t>(kind), 1);
  if (kind == FrameKind::kFetch) Encode(FetchCall{.chain = chain, .timeout_nanos = 1}, &writer);
  if (kind == FrameKind::kReserve) {
    Encode(ReserveCall{.chain = chain, .parent = {}, .position = 0}, &writer);
  }
  const std::span<const std::byte> frame = writer.Finish();
  return {frame.begin(), frame.end()};
}

std::vector<std::byte> MoreFrame(std::span<const Key> keys) {
  FrameWriter writer;
  writer.Begin(static_cast<uint16_t>(FrameKind::kMore), 1);
  Encode(KeyItems{.keys = keys, .engine_hashes = {}}, &writer);
  const std::span<const std::byte> frame = writer.Finish();
  return {frame.begin(), frame.end()};
}

class OpenRequestTest : public testing::TestWithParam<FrameKind> {
 protected:
  const std::vector<Key> keys_ = std::vector<Key>(kMaxItemsPerFrame);
};
INSTANTIATE_TEST_SUITE_P(Kinds, OpenRequestTest,
                         testing::Values(FrameKind::kFetch, FrameKind::kReserve));

TEST_P(OpenRequestTest, ThatIsAllowedKeepsItsItems) {
  const auto open = OpenRequest::New(GetParam());
  const std::vector<std::byte> frame = FirstFrame(GetParam(), keys_);
  FrameReader reader(frame);
  ASSERT_TRUE(open->Begin(&reader, kAnnounced).ok());
  EXPECT_FALSE(open->refused);
  EXPECT_EQ(open->lending(), keys_.size());
}

TEST_P(OpenRequestTest, ThatAnnouncesTooMuchOnlyCounts) {
  const auto open = OpenRequest::New(GetParam());
  const std::vector<std::byte> frame = FirstFrame(GetParam(), keys_);
  FrameReader first(frame);
  ASSERT_TRUE(open->Begin(&first, kAnnounced - 1).ok());
  EXPECT_TRUE(open->refused);
  const std::vector<std::byte> more = MoreFrame(keys_);
  while (!open->complete()) {
    FrameReader reader(more);
    ASSERT_TRUE(open->More(&reader).ok());
    ASSERT_EQ(open->lending(), 0u);
  }
  EXPECT_EQ(open->arrived(), kAnnounced);
  FrameReader reader(more);
  EXPECT_EQ(open->More(&reader).code(), Code::kInvalid);
}

TEST_P(OpenRequestTest, ThatIsRefusedForAnotherReasonOnlyCountsToo) {
  const auto open = OpenRequest::New(GetParam());
  open->refused = true;
  const std::vector<std::byte> frame = FirstFrame(GetParam(), keys_);
  FrameReader reader(frame);
  ASSERT_TRUE(open->Begin(&reader, kAnnounced).ok());
  EXPECT_EQ(open->arrived(), keys_.size());
  EXPECT_EQ(open->lending(), 0u);
}

}  // namespace
}  // namespace aquifer
