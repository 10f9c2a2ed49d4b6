#include "net/local/byte_ring.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "net/protocol/frame.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr size_t kDataBytes = 2 * kMaxFrameBytes;

// A ring in memory of this process, where a test can play the other side by hand.
class ByteRingTest : public ::testing::Test {
 protected:
  ByteRingTest() : memory_(new(std::align_val_t{4096}) std::byte[RingBytes(kDataBytes)]) {
    FormatRing(bytes(), kDataBytes);
    writer_ = std::make_unique<RingWriter>(bytes());
    reader_ = std::make_unique<RingReader>(bytes());
  }

  std::span<std::byte> bytes() { return {memory_.get(), RingBytes(kDataBytes)}; }
  RingHeader* header() { return reinterpret_cast<RingHeader*>(memory_.get()); }
  std::byte* data() { return memory_.get() + kRingHeaderBytes; }

  static std::span<const std::byte> Frame(FrameWriter* writer, uint64_t number, size_t body) {
    writer->Begin(1, number);
    for (size_t i = 0; i < body / 8; ++i) writer->U64(number * 1000 + i);
    return writer->Finish();
  }

  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{4096});
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::unique_ptr<RingWriter> writer_;
  std::unique_ptr<RingReader> reader_;
  FrameWriter frame_;
  std::vector<std::byte> got_;
};

TEST_F(ByteRingTest, FramesArriveInOrderAndWholeAcrossTheEnd) {
  SeededRandom random(1);
  uint64_t sent = 0;
  uint64_t received = 0;
  while (received < 2000) {
    while (writer_->Write(Frame(&frame_, sent, random.Below(5000))).ok()) ++sent;
    for (uint64_t take = 1 + random.Below(40); take > 0; --take) {
      if (!reader_->Read(&got_).ok()) break;
      FrameReader frame(got_);
      ASSERT_EQ(frame.header().number, received);
      for (uint64_t i = 0; frame.left() > 0; ++i) ASSERT_EQ(frame.U64(), received * 1000 + i);
      ++received;
    }
  }
}

TEST_F(ByteRingTest, AnEmptyRingIsAMissAndAFullOneIsBusy) {
  EXPECT_EQ(reader_->Read(&got_).code(), Code::kNotFound);
  ASSERT_TRUE(writer_->Write(Frame(&frame_, 1, kMaxFrameBytes - 16)).ok());
  ASSERT_TRUE(writer_->Write(Frame(&frame_, 2, kMaxFrameBytes - 16)).ok());
  EXPECT_EQ(writer_->Write(Frame(&frame_, 3, 0)).code(), Code::kBusy);
  ASSERT_TRUE(reader_->Read(&got_).ok());
  EXPECT_TRUE(writer_->Write(Frame(&frame_, 3, 0)).ok());
}

TEST_F(ByteRingTest, ASleeperIsWokenOnce) {
  EXPECT_FALSE(writer_->MustWake());
  ASSERT_TRUE(reader_->PrepareToSleep());
  EXPECT_FALSE(writer_->reader_awake());
  ASSERT_TRUE(writer_->Write(Frame(&frame_, 1, 0)).ok());
  EXPECT_TRUE(writer_->MustWake());
  EXPECT_FALSE(writer_->MustWake());
  EXPECT_FALSE(reader_->PrepareToSleep());  // There is a frame to read.
  EXPECT_TRUE(writer_->reader_awake());
}

TEST_F(ByteRingTest, AWriterThatWaitsForRoomIsWoken) {
  while (writer_->Write(Frame(&frame_, 1, kMaxFrameBytes - 16)).ok()) {
  }
  ASSERT_TRUE(writer_->PrepareToSleep(kMaxFrameBytes));
  ASSERT_TRUE(reader_->Read(&got_).ok());
  EXPECT_TRUE(reader_->MustWake());
  EXPECT_FALSE(reader_->MustWake());
  EXPECT_FALSE(writer_->PrepareToSleep(kMaxFrameBytes));
}

// ---- The other side lies ----

TEST_F(ByteRingTest, APositionThatCannotBeBreaksTheRingForGood) {
  for (const uint64_t written : {uint64_t{kDataBytes + 8}, UINT64_MAX, uint64_t{4}}) {
    FormatRing(bytes(), kDataBytes);
    RingReader reader(bytes());
    PutU32(data(), 16);
    header()->written = written;
    EXPECT_EQ(reader.Read(&got_).code(), Code::kInvalid) << written;
    header()->written = 16;
    EXPECT_EQ(reader.Read(&got_).code(), Code::kInvalid) << written;
  }
  for (const uint64_t read : {uint64_t{8}, UINT64_MAX}) {
    FormatRing(bytes(), kDataBytes);
    RingWriter writer(bytes());
    header()->read = read;
    EXPECT_EQ(writer.Write(Frame(&frame_, 1, 0)).code(), Code::kInvalid) << read;
    header()->read = 0;
    EXPECT_EQ(writer.Write(Frame(&frame_, 1, 0)).code(), Code::kInvalid) << read;
  }
}

TEST_F(ByteRingTest, ALengthThatCannotBeBreaksTheRing) {
  for (const uint32_t length : {0u, 8u, 17u, 24u, 65536u + 8, UINT32_MAX}) {
    FormatRing(bytes(), kDataBytes);
    RingReader reader(bytes());
    PutU32(data(), length);
    header()->written = 16;  // A frame of 24 bytes is longer than that.
    EXPECT_EQ(reader.Read(&got_).code(), Code::kInvalid) << length;
  }
}

TEST_F(ByteRingTest, MemoryThatIsNoRingIsRefused) {
  EXPECT_TRUE(CheckRing(bytes()).ok());
  EXPECT_FALSE(CheckRing(bytes().first(100)).ok());
  EXPECT_FALSE(CheckRing(bytes().first(kRingHeaderBytes)).ok());
  header()->data_bytes = kDataBytes / 2;
  EXPECT_FALSE(CheckRing(bytes()).ok());
  header()->data_bytes = kDataBytes;
  header()->magic ^= 1;
  EXPECT_FALSE(CheckRing(bytes()).ok());
}

// ---- Two threads, as two processes would ----

// Stands for a descriptor: counts wake-ups.
class Bell {
 public:
  void Ring() {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

TEST_F(ByteRingTest, NobodySleepsThroughAFrameOrThroughRoom) {
  constexpr uint64_t kFrames = 20'000;
  Bell for_reader;
  Bell for_writer;
  std::thread other([&] {
    FrameWriter frame;
    SeededRandom random(2);
    for (uint64_t number = 0; number < kFrames;) {
      const std::span<const std::byte> bytes = Frame(&frame, number, random.Below(3000));
      if (writer_->Write(bytes).ok()) {
        ++number;
        if (writer_->MustWake()) for_reader.Ring();
      } else if (writer_->PrepareToSleep(bytes.size())) {
        for_writer.Wait();
      }
    }
  });
  for (uint64_t number = 0; number < kFrames;) {
    if (reader_->Read(&got_).ok()) {
      FrameReader frame(got_);
      ASSERT_EQ(frame.header().number, number);
      for (uint64_t i = 0; frame.left() > 0; ++i) ASSERT_EQ(frame.U64(), number * 1000 + i);
      ++number;
      if (reader_->MustWake()) for_writer.Ring();
    } else if (reader_->PrepareToSleep()) {
      for_reader.Wait();
    }
  }
  other.join();
}

}  // namespace
}  // namespace aquifer
