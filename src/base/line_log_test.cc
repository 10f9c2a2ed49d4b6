#include "base/line_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "base/descriptor.h"
#include "testing/manual_clock.h"

namespace aquifer {
namespace {

class LineLogTest : public testing::Test {
 protected:
  LineLogTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reading_ = Descriptor(ends[0]);
    writing_ = Descriptor(ends[1]);
  }

  void Open(LineLogOptions options) {
    options.descriptor = writing_.get();
    log_.emplace(options, &clock_);
  }
  // All that is written until the log ends.
  std::string Close() {
    log_.reset();
    writing_ = Descriptor();
    std::string text;
    char buffer[4096];
    for (ssize_t got = 1; got > 0;) {
      got = ::read(reading_.get(), buffer, sizeof(buffer));
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  // Up to the line that says how many were left out.
  std::string ReadToTheCount() {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 1; got > 0 && CountOf("lines of the log were left out\n", text) == 0;) {
      got = ::read(reading_.get(), buffer, sizeof(buffer));
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  static size_t CountOf(const std::string& line, const std::string& text) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(line, at)) != std::string::npos; ++at) ++count;
    return count;
  }
  void Fill() {
    ASSERT_EQ(::fcntl(writing_.get(), F_SETFL, O_NONBLOCK), 0);
    const std::string many(4096, '.');
    while (::write(writing_.get(), many.data(), many.size()) > 0) {
    }
    ASSERT_EQ(::fcntl(writing_.get(), F_SETFL, 0), 0);
  }

  ManualClock clock_;
  Descriptor reading_;
  Descriptor writing_;
  std::optional<LineLog> log_;
};

TEST_F(LineLogTest, WritesLinesInTheirOrder) {
  Open({.goodbye_nanos = INT64_MAX / 2});
  for (const char* const line : {"one", "two", "three"}) log_->Write(line);
  EXPECT_EQ(Close(), "one\ntwo\nthree\n");
}

TEST_F(LineLogTest, LeavesOutWhatAUserCausesTooFastAndSaysSo) {
  Open({.burst_lines = 2, .lines_per_second = 10, .goodbye_nanos = INT64_MAX / 2});
  for (int i = 0; i < 5; ++i) log_->WriteFor(7, "early");
  clock_.Advance(100'000'000);
  for (int i = 0; i < 5; ++i) log_->WriteFor(7, "late");
  const std::string text = Close();
  EXPECT_EQ(CountOf("early\n", text), 2u) << text;
  EXPECT_EQ(CountOf("late\n", text), 1u) << text;
  EXPECT_GT(CountOf("left out", text), 0u) << text;
}

TEST_F(LineLogTest, NobodyKeepsOutTheProcesssOwnLines) {
  Fill();  // So that what is queued stays there.
  Open({.max_queued_lines = 20, .burst_lines = 1000, .goodbye_nanos = 1'000'000});
  for (int i = 0; i < 500; ++i) log_->WriteFor(7, "noise");
  for (int i = 0; i < 5; ++i) log_->Write("own");
  log_.reset();
  EXPECT_EQ(CountOf("own\n", ReadToTheCount()), 5u);
}

TEST_F(LineLogTest, EachUserHasLinesOfTheirOwn) {
  Open({.burst_lines = 2, .goodbye_nanos = INT64_MAX / 2});
  for (int i = 0; i < 5; ++i) log_->WriteFor(7, "noise");
  log_->WriteFor(8, "quiet");
  const std::string text = Close();
  EXPECT_EQ(CountOf("noise\n", text), 2u) << text;
  EXPECT_EQ(CountOf("quiet\n", text), 1u) << text;
}

TEST_F(LineLogTest, WhoeverWasSilentForLongMakesRoomForOthers) {
  Open({.burst_lines = 2, .lines_per_second = 10, .goodbye_nanos = INT64_MAX / 2});
  for (uint32_t user = 0; user < 1000; ++user) log_->WriteFor(user, "of many");
  clock_.Advance(1'000'000'000);
  for (uint32_t user = 5000; user < 5100; ++user) log_->WriteFor(user, "later");
  EXPECT_EQ(CountOf("later\n", Close()), 100u);
}

// The writing thread stays behind, with what it has.
TEST_F(LineLogTest, NobodyWaitsForALogThatNobodyReads) {
  Fill();
  Open({.max_queued_lines = 100, .goodbye_nanos = 1'000'000});
  for (int i = 0; i < 5000; ++i) log_->Write("a line");
  log_.reset();
  EXPECT_GT(CountOf("a line\n", ReadToTheCount()), 0u);
}

}  // namespace
}  // namespace aquifer
