// Tests one connection, with a node that makes every mistake.
#include "client/link.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "testing/node/scripted_node.h"

namespace aquifer {
namespace {

constexpr uint64_t kExtentBytes = uint64_t{64} << 10;

class LinkTest : public testing::Test {
 protected:
  Status Open(const Welcome& welcome) {
    Status status;
    node_.Greet(
        [&] {
          const std::string sockets[] = {node_.socket()};
          auto link = Link::Open(sockets, {.tenant = "local"},
                                 SystemClock()->NowNanos() + ScriptedNode::kPatienceNanos);
          status = link.status();
          if (link.ok()) link_ = *std::move(link);
        },
        welcome);
    return status;
  }
  void Open() {
    const Status status =
        Open({.max_requests = 16, .ring_data_bytes = ScriptedNode::kRingDataBytes});
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // For tests in which the link's destructor has nothing to wait for.
  void TearDown() override {
    node_.Die();
    link_.reset();
  }

  ScriptedNode node_;
  std::unique_ptr<Link> link_;
};

TEST_F(LinkTest, AVersionThatWasNotOfferedIsRefused) {
  for (const int version : {0, kLocalVersion + 1}) {
    const Status status = Open({.version = static_cast<uint16_t>(version),
                                .max_requests = 16,
                                .ring_data_bytes = ScriptedNode::kRingDataBytes});
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_NE(status.message().find("version"), std::string::npos) << status.message();
  }
}

TEST_F(LinkTest, NoRequestsAndMoreThanThereCanBeAreRefused) {
  for (const uint32_t most : {0u, kMaxOpenRequests + 1, UINT32_MAX}) {
    const Status status =
        Open({.max_requests = most, .ring_data_bytes = ScriptedNode::kRingDataBytes});
    EXPECT_EQ(status.code(), Code::kInvalid) << most;
    EXPECT_NE(status.message().find("requests"), std::string::npos) << status.message();
  }
  ASSERT_TRUE(
      Open({.max_requests = kMaxOpenRequests, .ring_data_bytes = ScriptedNode::kRingDataBytes})
          .ok());
}

TEST_F(LinkTest, RingsOfASizeThatCannotBeAreRefused) {
  for (const uint64_t bytes : {uint64_t{0}, UINT64_MAX - kRingHeaderBytes + 1, UINT64_MAX}) {
    EXPECT_EQ(Open({.max_requests = 16, .ring_data_bytes = bytes}).code(), Code::kInvalid) << bytes;
  }
}

TEST_F(LinkTest, AnExtentThatCannotBeMappedIsNotWaitedForAgain) {
  ASSERT_NO_FATAL_FAILURE(Open());
  node_.Offer(7, 2 * kExtentBytes, kExtentBytes);
  for (int i = 0; i < 3; ++i) {
    // If the link had forgotten the failure, it would wait for another offer and report that none
    // came.
    const auto found = link_->Find({.extent = 7, .offset = 0, .bytes = 4096});
    EXPECT_EQ(found.status().message(), "the shared memory has another size than announced");
  }
  EXPECT_FALSE(link_->over());
  EXPECT_EQ(link_->held(), 0u);
  node_.Offer(8, kExtentBytes, kExtentBytes);  // Other extents are not affected.
  EXPECT_TRUE(link_->Find({.extent = 8, .offset = 0, .bytes = 4096}).ok());
  link_->LetGo(8);
}

TEST_F(LinkTest, AnOfferThatCannotBeMappedDoesNotEndTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Open());
  node_.Offer(7, 2 * kExtentBytes, kExtentBytes);
  EXPECT_TRUE(link_->ReadSocket().ok());  // The link thread reads the socket in this way.
}

TEST_F(LinkTest, MemoryThatIsNeverOfferedEndsTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Open());
  EXPECT_FALSE(link_->Find({.extent = 7, .offset = 0, .bytes = 4096}).ok());
  EXPECT_TRUE(link_->over());
}

TEST_F(LinkTest, AnExtentThatIsHeldIsNotReplaced) {
  ASSERT_NO_FATAL_FAILURE(Open());
  node_.Offer(7, kExtentBytes, kExtentBytes);
  const auto found = link_->Find({.extent = 7, .offset = 0, .bytes = 4096});
  ASSERT_TRUE(found.ok());
  node_.Offer(7, kExtentBytes, kExtentBytes);
  EXPECT_EQ(link_->ReadSocket().code(), Code::kInvalid);
  (*found)[0] = std::byte{1};  // The memory is still mapped.
  link_->LetGo(7);
}

TEST_F(LinkTest, ASlotOutsideOfItsExtentIsNotLent) {
  ASSERT_NO_FATAL_FAILURE(Open());
  node_.Offer(7, kExtentBytes, kExtentBytes);
  for (const LentSlot& slot : {LentSlot{.extent = 7, .offset = kExtentBytes, .bytes = 1},
                               LentSlot{.extent = 7, .offset = 4096, .bytes = kExtentBytes},
                               LentSlot{.extent = 7, .offset = UINT64_MAX, .bytes = 2}}) {
    EXPECT_EQ(link_->Find(slot).status().code(), Code::kInvalid);
  }
  EXPECT_EQ(link_->held(), 0u);
}

// The ring is full when the caller goes: the node still reads every frame, the goodbye included.
TEST_F(LinkTest, TheEndWaitsUntilAllIsSent) {
  ASSERT_NO_FATAL_FAILURE(Open());
  constexpr uint32_t kFrames = 5000;  // More frames than fit in the ring.
  FrameWriter writer;
  for (uint32_t i = 0; i < kFrames; ++i) {
    writer.Begin(static_cast<uint16_t>(FrameKind::kAbort), 0);
    const ReservationId reservation = i + 1;
    Encode(std::span<const ReservationId>(&reservation, 1), &writer);
    link_->Send(writer.Finish());
  }
  ASSERT_TRUE(link_->has_unsent());
  link_->SetOver();
  std::thread closer([this] { link_.reset(); });
  uint32_t aborts = 0;
  std::optional<FrameHeader> last;
  while (last = node_.Next(), last.has_value()) {
    if (last->kind != static_cast<uint16_t>(FrameKind::kAbort)) break;
    ++aborts;
  }
  closer.join();
  EXPECT_EQ(aborts, kFrames);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->kind, static_cast<uint16_t>(FrameKind::kGoodbye));
}

}  // namespace
}  // namespace aquifer
