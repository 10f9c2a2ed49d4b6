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

TEST_F(LineLogTest, LeavesOutWhatComesTooFastAndSaysSo) {
  Open({.burst_lines = 2, .lines_per_second = 10, .goodbye_nanos = INT64_MAX / 2});
  for (int i = 0; i < 5; ++i) log_->Write("early");
  clock_.Advance(100'000'000);
  for (int i = 0; i < 5; ++i) log_->Write("late");
  const std::string text = Close();
  size_t early = 0;
  size_t late = 0;
  for (size_t at = 0; (at = text.find("early\n", at)) != std::string::npos; ++at) ++early;
  for (size_t at = 0; (at = text.find("late\n", at)) != std::string::npos; ++at) ++late;
  EXPECT_EQ(early, 2u) << text;
  EXPECT_EQ(late, 1u) << text;
  EXPECT_NE(text.find("left out"), std::string::npos) << text;
}

// The writing thread stays behind, with what it has.
TEST_F(LineLogTest, NobodyWaitsForALogThatNobodyReads) {
  Fill();
  Open({.max_queued_lines = 100, .burst_lines = 10'000, .goodbye_nanos = 1'000'000});
  for (int i = 0; i < 5000; ++i) log_->Write("a line");
  log_.reset();
  std::string text;
  while (text.find("lines of the log were left out\n") == std::string::npos) {
    char buffer[4096];
    const ssize_t got = ::read(reading_.get(), buffer, sizeof(buffer));
    ASSERT_GT(got, 0);
    text.append(buffer, static_cast<size_t>(got));
  }
  EXPECT_NE(text.find("a line\n"), std::string::npos);
}

}  // namespace
}  // namespace aquifer
