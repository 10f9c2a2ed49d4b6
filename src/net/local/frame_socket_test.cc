#include "net/local/frame_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "net/protocol/frame.h"
#include "testing/cache/slow_to_close.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

class FrameSocketTest : public testing::Test {
 protected:
  FrameSocketTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    here_.emplace(Descriptor(ends[0]));
    there_.emplace(Descriptor(ends[1]));
  }

  std::vector<std::byte> Frame(uint64_t number, size_t words = 1) {
    writer_.Begin(1, number);
    for (size_t i = 0; i < words; ++i) writer_.U64(i);
    const std::span<const std::byte> frame = writer_.Finish();
    return {frame.begin(), frame.end()};
  }
  uint64_t ReceivedNumber() {
    std::vector<std::byte> frame;
    EXPECT_TRUE(there_->Receive(&frame, true).ok());
    return frame.empty() ? 0 : FrameReader(frame).header().number;
  }

  std::optional<FrameSocket> here_;
  std::optional<FrameSocket> there_;
  FrameWriter writer_;
};

TEST_F(FrameSocketTest, FramesArriveInOrderWithTheirDescriptors) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  ASSERT_TRUE(here_->Send(Frame(1)).ok());
  ASSERT_TRUE(here_->Send(Frame(2), std::vector{writing.get()}).ok());
  EXPECT_EQ(ReceivedNumber(), 1u);
  EXPECT_EQ(ReceivedNumber(), 2u);
  const Descriptor arrived = there_->TakeDescriptor();
  ASSERT_TRUE(arrived.valid());
  EXPECT_FALSE(there_->TakeDescriptor().valid());
  ASSERT_EQ(::write(arrived.get(), "x", 1), 1);
  char read = 0;
  EXPECT_EQ(::read(reading.get(), &read, 1), 1);
}

TEST_F(FrameSocketTest, FramesThatTheOtherSideDoesNotReadAreSentLater) {
  size_t sent = 0;
  while (here_->unsent_frames() == 0) ASSERT_TRUE(here_->Send(Frame(++sent, 4000)).ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(here_->Send(Frame(++sent, 4000)).ok());
  EXPECT_FALSE(here_->too_many_descriptors());
  for (size_t number = 1; number <= sent; ++number) {
    std::vector<std::byte> frame;
    while (there_->Receive(&frame, true).code() == Code::kNotFound) {
      ASSERT_TRUE(here_->Flush().ok());
    }
    ASSERT_EQ(FrameReader(frame).header().number, number);
  }
  EXPECT_EQ(here_->unsent_frames(), 0u);
}

// This process would have to close them.
TEST_F(FrameSocketTest, DescriptorsThatNobodyAskedForAreNotTaken) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  ASSERT_TRUE(here_->Send(Frame(1), std::vector{writing.get()}).ok());
  writing = Descriptor();
  std::vector<std::byte> frame;
  EXPECT_EQ(there_->Receive(&frame, false).code(), Code::kInvalid);
  EXPECT_EQ(there_->Receive(&frame, false).code(), Code::kInvalid);
  EXPECT_FALSE(there_->TakeDescriptor().valid());
  char read = 0;
  EXPECT_EQ(::read(reading.get(), &read, 1), -1) << "it is open where it was: on its way";
  // A thread of its own closes them.
  const auto closing = std::make_shared<std::atomic<uint32_t>>(0);
  FrameSocket::Discard(*std::move(there_), closing);
  pollfd closed{.fd = reading.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&closed, 1, 60'000), 1);
  EXPECT_EQ(::read(reading.get(), &read, 1), 0);
}

TEST_F(FrameSocketTest, AFrameWithoutDescriptorsIsReceivedWhereNoneAreAllowed) {
  ASSERT_TRUE(here_->Send(Frame(5, 3000)).ok());
  std::vector<std::byte> frame;
  ASSERT_TRUE(there_->Receive(&frame, false).ok());
  EXPECT_EQ(FrameReader(frame).header().number, 5u);
  EXPECT_EQ(there_->bytes_left(), 0u);
  EXPECT_EQ(there_->Receive(&frame, false).code(), Code::kNotFound);
  here_.reset();
  EXPECT_EQ(there_->Receive(&frame, false).code(), Code::kUnavailable);
}

TEST_F(FrameSocketTest, LookingTakesNothing) {
  EXPECT_EQ(there_->Look(), FrameSocket::News::kNone);
  ASSERT_TRUE(here_->Send(Frame(3)).ok());
  EXPECT_EQ(there_->Look(), FrameSocket::News::kBytes);
  EXPECT_EQ(there_->Look(), FrameSocket::News::kBytes);
  EXPECT_EQ(ReceivedNumber(), 3u);
  here_->EndSending();
  EXPECT_EQ(there_->Look(), FrameSocket::News::kEnd);
}

TEST_F(FrameSocketTest, AClosedSocketIsOver) {
  there_.reset();
  EXPECT_EQ(here_->Send(Frame(1)).code(), Code::kUnavailable);
}

TEST_F(FrameSocketTest, ALengthThereIsNotIsNoFrame) {
  const std::vector<std::byte> garbage(64, std::byte{0xff});
  ASSERT_TRUE(here_->Send(garbage).ok());
  std::vector<std::byte> frame;
  EXPECT_EQ(there_->Receive(&frame, true).code(), Code::kInvalid);
}

TEST_F(FrameSocketTest, ADiscardedSocketWithNothingInItIsClosedAtOnce) {
  const auto closing = std::make_shared<std::atomic<uint32_t>>(0);
  FrameSocket::Discard(*std::move(there_), closing);
  EXPECT_EQ(here_->Look(), FrameSocket::News::kEnd);
  EXPECT_EQ(closing->load(), 0u);
}

// Without the interrupt, a few hundred such files would be all that can be closed.
TEST_F(FrameSocketTest, AFileThatLingersIsNotWaitedForToItsEnd) {
  SlowToClose lingering;
  Descriptor slow = lingering.Take();
  ASSERT_TRUE(here_->Send(Frame(1), std::vector{slow.get()}).ok());
  slow = Descriptor();  // The descriptor is on its way, so this does not close the file.
  const auto closing = std::make_shared<std::atomic<uint32_t>>(0);
  FrameSocket::Discard(*std::move(there_), closing);
  for (int looks = 0; looks < 600 && closing->load() > 0; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(closing->load(), 0u);
}

TEST_F(FrameSocketTest, KnowsWhoIsAtTheOtherEnd) {
  const Result<PeerCredentials> peer = here_->Peer();
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_TRUE(here_->PeerProcess().valid());
}

// Runs as a user that may not exceed the limit, on a thread of its own that alone has that user.
TEST_F(FrameSocketTest, TooManyDescriptorsOnTheirWayAreNotWaitedForAsRoom) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs a user of its own";
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = 32;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  bool noticed = false;
  std::thread([&] {
    constexpr uid_t kNobody = 65533;
    if (::syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0) return;
    for (uint64_t i = 0; i < 200 && !here_->too_many_descriptors(); ++i) {
      if (!here_->Send(Frame(i), std::vector{0}).ok()) return;
    }
    noticed = here_->too_many_descriptors();
    for (std::vector<std::byte> frame; there_->Receive(&frame, true).ok();) {
      while (there_->TakeDescriptor().valid()) {
      }
    }
    noticed = noticed && here_->Flush().ok() && !here_->too_many_descriptors();
  }).join();
  limit.rlim_cur = soft;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(noticed);
  EXPECT_EQ(here_->unsent_frames(), 0u);
}

TEST(ListenOnTest, ReplacesASocketThatNobodyListensOn) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/socket";
  {
    const Result<Descriptor> first = ListenOn(path, true);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(ListenOn(path, true).status().code(), Code::kBusy);
  }
  EXPECT_TRUE(ListenOn(path, true).ok());
}

TEST(ListenOnTest, ANodeThatIsTooBusyToAnswerIsStillThere) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/socket";
  const Result<Descriptor> listener = ListenOn(path, true);
  ASSERT_TRUE(listener.ok());
  std::vector<Descriptor> waiting;
  for (Result<Descriptor> next = ConnectTo(path); next.ok(); next = ConnectTo(path)) {
    waiting.push_back(*std::move(next));
  }
  EXPECT_EQ(ListenOn(path, true).status().code(), Code::kBusy);
}

TEST(ListenOnTest, DoesNotDeleteAFileThatIsNoSocket) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/precious";
  std::ofstream(path) << "data";
  EXPECT_EQ(ListenOn(path, true).status().code(), Code::kInvalid);
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
}

// Hundreds of files whose closing takes for ever would keep all other clients out.
TEST(ListenOnTest, NobodyCanSendDescriptorsWhereTheKernelForbidsIt) {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/socket";
  const Result<Descriptor> listener = ListenOn(path, true);
  ASSERT_TRUE(listener.ok());
  int pass = 1;
  socklen_t bytes = sizeof(pass);
  if (::getsockopt(listener->get(), SOL_SOCKET, kPassRights, &pass, &bytes) != 0) {
    GTEST_SKIP() << "needs Linux 6.16";
  }
  FrameSocket client(*ConnectTo(path));
  FrameSocket accepted(*AcceptOn(*listener));
  FrameWriter writer;
  writer.Begin(1, 1);
  EXPECT_FALSE(client.Send(writer.Finish(), std::vector{listener->get()}).ok());
  EXPECT_EQ(accepted.Look(), FrameSocket::News::kNone);
  writer.Begin(1, 2);
  EXPECT_TRUE(accepted.Send(writer.Finish(), std::vector{listener->get()}).ok());
  std::vector<std::byte> frame;
  EXPECT_TRUE(client.Receive(&frame, /*with_descriptors=*/true).ok());
  EXPECT_TRUE(client.TakeDescriptor().valid());
}

TEST(ListenOnTest, AcceptsNobodyWhereNobodyWaits) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/socket";
  const Result<Descriptor> listener = ListenOn(path, true);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(AcceptOn(*listener).status().code(), Code::kNotFound);
  const Result<Descriptor> client = ConnectTo(path);
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(AcceptOn(*listener).ok());
}

}  // namespace
}  // namespace aquifer
