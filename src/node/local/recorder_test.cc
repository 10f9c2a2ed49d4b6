#include "node/local/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/chain.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<json> LinesOf(const std::string& path) {
  const std::string text = TextOf(path);
  EXPECT_TRUE(text.empty() || text.back() == '\n') << "the last line is not whole";
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(json::parse(line, nullptr, false));
    EXPECT_FALSE(lines.back().is_discarded()) << line;
  }
  return lines;
}

RecordedCall Asked(uint64_t seed, size_t blocks = 4) {
  const Chain chain(LayoutOfBytes(4096), {.seed = seed, .blocks = blocks});
  return {.client = {.tenant = {}, .engine = 1},
          .tokens_per_block = 16,
          .keys = {chain.keys().begin(), chain.keys().end()}};
}

// Waits for what another thread will do.
void Await(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class RecorderTest : public testing::Test {
 protected:
  std::vector<std::string> TakeLog() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(log_, {});
  }
  RecorderOptions Options() {
    RecorderOptions options;
    options.log = [this](const std::string& line) {
      const std::scoped_lock lock(mutex_);
      log_.push_back(line);
    };
    return options;
  }

  std::mutex mutex_;
  std::vector<std::string> log_;
  ScratchDirectory scratch_;
  const std::string file_ = scratch_.Sub("trace");
};

TEST_F(RecorderTest, WritesALineForEachRequestAndEndsWithAllOfThem) {
  Recorder recorder(Options());
  EXPECT_FALSE(recorder.wanted());
  EXPECT_FALSE(recorder.status().running);
  const auto started = recorder.Start(file_);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  EXPECT_EQ(*started, file_);
  EXPECT_TRUE(recorder.wanted());
  for (uint64_t seed = 1; seed <= 100; ++seed) recorder.Record(Asked(seed));
  ASSERT_TRUE(recorder.Stop().ok());
  EXPECT_FALSE(recorder.wanted());
  EXPECT_THAT(LinesOf(file_), SizeIs(100));
  const RecordingStatus status = recorder.status();
  EXPECT_FALSE(status.running);
  EXPECT_EQ(status.file, file_);
  EXPECT_EQ(status.requests, 100u);
  EXPECT_EQ(status.bytes, std::filesystem::file_size(file_));
  EXPECT_EQ(status.left_out, 0u);
  EXPECT_EQ(status.failure, "");
  EXPECT_EQ(std::filesystem::status(file_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(RecorderTest, OneAtATimeAndStoppedOnce) {
  Recorder recorder(Options());
  EXPECT_EQ(recorder.Stop().code(), Code::kInvalid);
  ASSERT_TRUE(recorder.Start(file_).ok());
  const Status again = recorder.Start(scratch_.Sub("other")).status();
  EXPECT_EQ(again.code(), Code::kInvalid);
  EXPECT_THAT(again.message(), HasSubstr(file_));
  EXPECT_TRUE(recorder.Stop().ok());
  EXPECT_EQ(recorder.Stop().code(), Code::kInvalid);
}

TEST_F(RecorderTest, EachRecordingHasItsOwnFileAndItsOwnSalt) {
  Recorder recorder(Options());
  std::vector<json> ids;
  for (const char* const name : {"", ".1", ".2"}) {
    const auto started = recorder.Start(file_);
    ASSERT_TRUE(started.ok());
    EXPECT_EQ(*started, file_ + name);
    recorder.Record(Asked(1));
    ASSERT_TRUE(recorder.Stop().ok());
    const std::vector<json> lines = LinesOf(*started);
    ASSERT_THAT(lines, SizeIs(1));
    ids.push_back(lines[0].at("hash_ids"));
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NE(ids[0][i], ids[1][i]);
    EXPECT_NE(ids[0][i], ids[2][i]);
  }
}

TEST_F(RecorderTest, LeavesLinksAndDevicesAlone) {
  const std::string target = scratch_.Sub("target");
  std::ofstream(target) << "precious";
  ASSERT_EQ(::symlink(target.c_str(), file_.c_str()), 0);
  Recorder recorder(Options());
  const auto started = recorder.Start(file_);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(*started, file_ + ".1");
  EXPECT_TRUE(recorder.Stop().ok());
  EXPECT_EQ(TextOf(target), "precious");
}

TEST_F(RecorderTest, ADirectoryThatIsNotThereIsSaid) {
  Recorder recorder(Options());
  const Status status = recorder.Start(scratch_.Sub("nowhere/trace")).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("nowhere"));
  EXPECT_FALSE(recorder.wanted());
}

// A disk that takes nothing until it is let go.
class HangingDisk {
 public:
  ssize_t Write(int file, const void* bytes, size_t count) {
    std::unique_lock lock(mutex_);
    ++entered_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
    return ::write(file, bytes, count);
  }
  void AwaitEntered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return entered_ > 0; });
  }
  void Release() {
    const std::scoped_lock lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int entered_ = 0;
  bool released_ = false;
};

TEST_F(RecorderTest, ASlowDiskCostsRequestsAndNotTheOwner) {
  HangingDisk disk;
  RecorderOptions options = Options();
  options.max_queued_calls = 10;
  options.max_queued_keys = 1000;
  options.write = [&disk](int file, const void* bytes, size_t count) {
    return disk.Write(file, bytes, count);
  };
  Recorder recorder(options);
  ASSERT_TRUE(recorder.Start(file_).ok());
  // The second ends the first, whose line is then written, for ever.
  recorder.Record(Asked(1, 4));
  recorder.Record(Asked(1, 5));
  disk.AwaitEntered();
  for (uint64_t seed = 100; seed < 200; ++seed) recorder.Record(Asked(seed));
  EXPECT_EQ(recorder.status().left_out, 90u);
  disk.Release();
  ASSERT_TRUE(recorder.Stop().ok());
  EXPECT_THAT(LinesOf(file_), SizeIs(12));
  EXPECT_EQ(recorder.status().left_out, 90u);
}

TEST_F(RecorderTest, LongRequestsAreBoundedByTheirKeys) {
  HangingDisk disk;
  RecorderOptions options = Options();
  options.max_queued_keys = 1000;
  options.write = [&disk](int file, const void* bytes, size_t count) {
    return disk.Write(file, bytes, count);
  };
  Recorder recorder(options);
  ASSERT_TRUE(recorder.Start(file_).ok());
  recorder.Record(Asked(1, 4));
  recorder.Record(Asked(1, 5));
  disk.AwaitEntered();
  recorder.Record(Asked(2, 999));
  recorder.Record(Asked(3, 2));
  recorder.Record(Asked(4, 1));
  EXPECT_EQ(recorder.status().left_out, 1u);
  disk.Release();
  EXPECT_TRUE(recorder.Stop().ok());
}

TEST_F(RecorderTest, ADiskThatHangsIsNotWaitedForForEver) {
  auto disk = std::make_shared<HangingDisk>();  // Shared with the thread that it holds.
  RecorderOptions options = Options();
  options.stop_wait_nanos = 1'000'000;
  options.write = [disk](int file, const void* bytes, size_t count) {
    return disk->Write(file, bytes, count);
  };
  options.log = {};
  {
    Recorder recorder(options);
    ASSERT_TRUE(recorder.Start(file_).ok());
    recorder.Record(Asked(1));
    EXPECT_EQ(recorder.Stop().code(), Code::kLate);
  }
  disk->Release();
  Await([this] { return !TextOf(file_).empty(); });
}

// As a full disk does: the last write that fits is cut short, and the next one fails.
TEST_F(RecorderTest, AFullDiskEndsItBehindTheLastWholeLine) {
  constexpr rlim_t kRoom = 1000;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = kRoom, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    Recorder recorder(Options());
    ASSERT_TRUE(recorder.Start(file_).ok());
    for (size_t blocks = 1; blocks <= 100; ++blocks) recorder.Record(Asked(1, blocks));
    Await([&] { return !recorder.status().running; });
    const std::vector<std::string> log = TakeLog();
    ASSERT_THAT(log, SizeIs(1));
    EXPECT_THAT(log[0], HasSubstr(file_));
    const RecordingStatus status = recorder.status();
    EXPECT_NE(status.failure, "");
    EXPECT_GT(status.requests, 0u);
    EXPECT_LE(status.bytes, kRoom);
    EXPECT_EQ(LinesOf(file_).size(), status.requests);
    EXPECT_EQ(std::filesystem::file_size(file_), status.bytes);
    recorder.Record(Asked(2));  // Nobody hears it, and nothing breaks.
    const Status stopped = recorder.Stop();
    EXPECT_EQ(stopped.code(), Code::kInvalid);
    EXPECT_THAT(stopped.message(), HasSubstr(status.failure));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    // There is room again.
    ASSERT_TRUE(recorder.Start(file_).ok());
    EXPECT_TRUE(recorder.Stop().ok());
  }
  ::signal(SIGXFSZ, old_handler);
}

TEST_F(RecorderTest, AFileIsNeverLongerThanItMayBe) {
  RecorderOptions options = Options();
  options.max_bytes = 3000;
  Recorder recorder(options);
  ASSERT_TRUE(recorder.Start(file_).ok());
  for (uint64_t seed = 1; recorder.status().running; ++seed) {
    recorder.Record(Asked(seed));
    std::this_thread::yield();
  }
  const RecordingStatus status = recorder.status();
  EXPECT_THAT(status.failure, HasSubstr("3000 bytes"));
  EXPECT_LE(std::filesystem::file_size(file_), 3000u);
  EXPECT_EQ(LinesOf(file_).size(), status.requests);
}

TEST_F(RecorderTest, ClientsWithoutANameAreEnginesOfTheirOwn) {
  Random* const random = SystemRandom();
  const RecordedClient one = RecordedClientOf("a", "engine", random);
  EXPECT_EQ(one.engine, RecordedClientOf("a", "engine", random).engine);
  EXPECT_EQ(one.tenant, RecordedClientOf("a", "", random).tenant);
  EXPECT_NE(one.tenant, RecordedClientOf("b", "engine", random).tenant);
  EXPECT_NE(one.engine, RecordedClientOf("b", "engine", random).engine);
  EXPECT_NE(RecordedClientOf("a", "", random).engine, RecordedClientOf("a", "", random).engine);
}

}  // namespace
}  // namespace aquifer
