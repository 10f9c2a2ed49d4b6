// Several processes write, read and remove blobs in one directory, far more than its cap has room
// for, and are killed at random moments. Now and then all of them stop and every byte in the
// directory is counted: the cap must hold to the byte. No process may ever read a wrong byte, and
// no blob may be removed twice.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "store/posix/posix_paths.h"
#include "store/posix/posix_store.h"
#include "testing/blob_caller.h"
#include "testing/child_process.h"
#include "testing/counted_directory.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;

constexpr const char* kChildFlag = "--posix-child";
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kShared = 150;  // Blobs that all processes write, with the same bytes.
constexpr uint64_t kNotes = 4;     // Blobs that are replaced, each by one of kVersions.
constexpr uint64_t kVersions = 4;
constexpr uint64_t kNoteBytes = 3000;

PosixStoreOptions OptionsFor(const std::string& directory) {
  PosixStoreOptions options;
  options.directory = directory;
  options.grant_bytes = kMiB / 2;
  // Fewer grants than eight processes would like, so that they compete.
  options.capacity_bytes = kPosixOverheadBytes + 10 * options.grant_bytes;
  options.read_threads = 2;
  options.write_threads = 2;
  options.beat_nanos = 20'000'000;
  return options;
}

std::string SharedName(uint64_t number) {
  return fmt::format("generation/{:02x}/{:032x}-0-0", number % 5, number);
}
uint64_t SharedBytes(uint64_t number) { return 5000 + number * 7919 % 250'000; }
std::string NoteName(uint64_t number) { return fmt::format("generation/notes/{}", number); }

// One process's work.
class Worker {
 public:
  Worker(BlobStore* store, uint64_t seed)
      : store_(store), caller_(store), random_(seed), seed_(seed) {}

  void Step() {
    const uint64_t number = random_.Below(kShared);
    const uint64_t note = random_.Below(kNotes);
    switch (random_.Below(10)) {
      case 0:
        Expect(caller_.Remove(SharedName(number)));
        break;
      case 1:
        Expect(caller_.Write(NoteName(note), kNoteBytes,
                             1000 + note * kVersions + random_.Below(kVersions)));
        break;
      case 2:
        ReadNote(note);
        break;
      case 3:
        Expect(caller_.Write(fmt::format("once/{}-{}", seed_, made_++), 20'000, 7));
        break;
      case 4:
        RemoveOneOfThose();
        break;
      case 5:
      case 6:
        Expect(caller_.Read(SharedName(number), SharedBytes(number), number));
        break;
      default:
        Expect(caller_.Put(SharedName(number), SharedBytes(number), number, /*if_absent=*/true)
                   .status);
        break;
    }
  }

 private:
  // Any blob may be missing, and there may be no room; no other failure is allowed.
  void Expect(const Status& status) {
    const Code code = status.code();
    if (code == Code::kOk || code == Code::kNotFound || code == Code::kNoSpace ||
        code == Code::kBusy) {
      return;
    }
    TellParent("wrong " + status.ToString());
  }

  void ReadNote(uint64_t note) {
    for (uint64_t version = 0; version < kVersions; ++version) {
      const Status status =
          caller_.Read(NoteName(note), kNoteBytes, 1000 + note * kVersions + version);
      if (status.code() != Code::kInvalid) return Expect(status);
    }
    // The blob may be replaced between two looks. With four versions that is not likely, so look
    // again.
    for (uint64_t version = 0; version < 16 * kVersions; ++version) {
      const Status status =
          caller_.Read(NoteName(note), kNoteBytes, 1000 + note * kVersions + version % kVersions);
      if (status.code() != Code::kInvalid) return Expect(status);
    }
    TellParent("wrong note");
  }

  void RemoveOneOfThose() {
    std::promise<BlobStore::Names> promise;
    store_->List("once/", "", 5, [&](Result<BlobStore::Names> names) {
      promise.set_value(names.ok() ? *std::move(names) : BlobStore::Names());
    });
    const BlobStore::Names names = promise.get_future().get();
    if (names.empty()) return;
    const std::string& name = names[random_.Below(names.size())].name;
    const Status status = caller_.Remove(name);
    if (status.ok()) TellParent("removed " + name);
    Expect(status);
  }

  BlobStore* const store_;
  const BlobCaller caller_;
  SeededRandom random_;
  const uint64_t seed_;
  uint64_t made_ = 0;
};

int RunChild(const std::string& directory, uint64_t seed) {
  DieWithParent();
  Result<std::unique_ptr<BlobStore>> store = NewPosixStore(OptionsFor(directory));
  AQ_CHECK(store.ok());
  std::atomic<bool> ending = false;
  std::thread listener([&] {
    WaitForParent();
    ending = true;
  });
  Worker worker(store->get(), seed);
  TellParent("ready");
  uint64_t steps = 0;
  for (; !ending; ++steps) worker.Step();
  listener.join();
  TellParent(fmt::format("steps {}", steps));
  return 0;
}

// Bytes of files that have no name any more and are still open in a process.
uint64_t NamelessBytes(pid_t pid) {
  uint64_t bytes = 0;
  const std::string folder = fmt::format("/proc/{}/fd", pid);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    struct stat stat = {};
    if (::stat(entry.path().c_str(), &stat) != 0 || !S_ISREG(stat.st_mode)) continue;
    if (stat.st_nlink == 0) bytes += RoundUpToPage(static_cast<uint64_t>(stat.st_size));
  }
  return bytes;
}

class PosixProcessesTest : public testing::Test {
 protected:
  std::string directory() const { return scratch_.Sub("store"); }

  // The bytes that are not reserved for processes.
  uint64_t Cap() const {
    return OptionsFor(directory()).capacity_bytes - kMaxPosixProcesses * kPosixProcessBytes;
  }

  void StartOne(size_t at) {
    children_[at] = ChildProcess::Start({kChildFlag, directory(), std::to_string(++seed_)});
    ASSERT_TRUE(children_[at]->ReadUntil("ready", milliseconds(60'000)).has_value());
  }

  void Hear(ChildProcess* child, milliseconds timeout) {
    while (const std::optional<std::string> line = child->ReadLine(timeout)) {
      if (line->starts_with("removed ")) {
        EXPECT_TRUE(removed_.insert(*line).second) << *line << " twice";
      }
      if (line->starts_with("steps ")) steps_ += std::strtoull(line->c_str() + 6, nullptr, 10);
      EXPECT_FALSE(line->starts_with("wrong")) << *line;
    }
  }

  void CountAll() {
    for (const auto& child : children_) child->Stop();
    uint64_t bytes = BytesWithoutProcesses(directory());
    for (const auto& child : children_) bytes += NamelessBytes(child->pid());
    EXPECT_LE(bytes, Cap());
    most_bytes_ = std::max(most_bytes_, bytes);
    for (const auto& child : children_) child->Signal(SIGCONT);
  }

  void RunProcesses(size_t processes, int rounds) {
    SeededRandom random(processes);
    children_.resize(processes);
    for (size_t i = 0; i < processes; ++i) StartOne(i);
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      std::this_thread::sleep_for(milliseconds(20 + random.Below(150)));
      for (const auto& child : children_) Hear(child.get(), milliseconds(0));
      CountAll();
      const size_t victim = random.Below(processes);
      children_[victim]->Kill();
      Hear(children_[victim].get(), milliseconds(10'000));
      StartOne(victim);
    }
    for (const auto& child : children_) child->EndInput();
    for (const auto& child : children_) {
      Hear(child.get(), milliseconds(60'000));
      EXPECT_EQ(child->Wait(), 0);
    }
    children_.clear();
  }

  // Checks the blobs that are left with one more process, when no other is there.
  void CheckWhatIsLeft() {
    Result<std::unique_ptr<BlobStore>> store = NewPosixStore(OptionsFor(directory()));
    ASSERT_TRUE(store.ok());
    const BlobCaller caller(store->get());
    uint64_t there = 0;
    for (uint64_t number = 0; number < kShared; ++number) {
      const Status status = caller.Read(SharedName(number), SharedBytes(number), number);
      EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
      if (status.ok()) ++there;
    }
    EXPECT_GT(there, 0u);
    EXPECT_TRUE(caller.Write("last", 20'000, 1).ok());
    store->reset();
    EXPECT_LE(BytesWithoutProcesses(directory()), Cap());
    // Dead processes have left no member file behind, and no half-done work.
    EXPECT_TRUE(std::filesystem::is_empty(PosixPaths(directory()).Processes()));
    EXPECT_FALSE(std::filesystem::exists(PosixPaths(directory()).Reclaim()));
    // A test in which the processes never competed shows nothing.
    EXPECT_GT(removed_.size(), 0u);
    EXPECT_GT(most_bytes_, 3 * kMiB);  // Of five.
    RecordProperty("steps", std::to_string(steps_));
    RecordProperty("most_bytes", std::to_string(most_bytes_));
  }

  ScratchDirectory scratch_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  uint64_t seed_ = 0;
  uint64_t steps_ = 0;
  uint64_t most_bytes_ = 0;
  std::set<std::string> removed_;
};

TEST_F(PosixProcessesTest, TwoAtOnceAreKilledAndTheCapHolds) {
  RunProcesses(2, ByTestLevel(10, 20, 200));
  CheckWhatIsLeft();
}

TEST_F(PosixProcessesTest, EightAtOnceAreKilledAndTheCapHolds) {
  RunProcesses(8, ByTestLevel(10, 20, 200));
  CheckWhatIsLeft();
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == aquifer::kChildFlag) {
    return aquifer::RunChild(argv[2], std::strtoull(argv[3], nullptr, 10));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
