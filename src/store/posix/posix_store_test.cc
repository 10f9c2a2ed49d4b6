// The contract of blob_store.h over a directory, and what a directory adds: the cap, what crashes
// and other processes leave, and file systems that are full, read-only, gone or hang.
#include "store/posix/posix_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "base/descriptor.h"
#include "gtest/gtest.h"
#include "store/blob_store_contract.h"
#include "store/posix/posix_grants.h"
#include "store/posix/posix_label.h"
#include "store/posix/posix_paths.h"
#include "testing/blob_caller.h"
#include "testing/counted_directory.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlobBytes = 100'000;

// Waits for what a thread of the store does by itself.
bool Eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 30'000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

PosixStoreOptions OptionsFor(const std::string& directory) {
  PosixStoreOptions options;
  options.directory = directory;
  options.capacity_bytes = 256 * kMiB;
  options.grant_bytes = 16 * kMiB;
  options.read_threads = 4;
  options.write_threads = 4;
  options.beat_nanos = 20'000'000;
  return options;
}

// Small enough that a few hundred blobs go around it: eight grants of 1 MiB.
PosixStoreOptions SmallOptionsFor(const std::string& directory) {
  PosixStoreOptions options = OptionsFor(directory);
  options.grant_bytes = kMiB;
  options.capacity_bytes = kPosixOverheadBytes + 8 * kMiB;
  return options;
}

std::unique_ptr<BlobStore> OpenStore(const PosixStoreOptions& options) {
  Result<std::unique_ptr<BlobStore>> store = NewPosixStore(options);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? *std::move(store) : nullptr;
}

uint64_t WithoutProcesses(const PosixStoreOptions& options) {
  return options.capacity_bytes - kMaxPosixProcesses * kPosixProcessBytes;
}

class PosixHarness final : public BlobStoreHarness {
 public:
  std::unique_ptr<BlobStore> Open(size_t max_queued) override {
    PosixStoreOptions options = OptionsFor(directory());
    options.most_queued = max_queued;
    return OpenStore(options);
  }
  int64_t NowNanos() override { return SystemClock()->NowNanos(); }
  bool RunUntil(const std::function<bool()>& done) override { return Eventually(done); }
  bool CutShort(const std::string& name, uint64_t bytes) override {
    const std::string path = PosixPaths(directory()).Blob(name);
    return ::truncate(path.c_str(), static_cast<off_t>(kPageBytes + bytes)) == 0;
  }
  bool Disconnect(bool on) override {
    const std::string away = directory() + "-away";
    std::filesystem::rename(on ? directory() : away, on ? away : directory());
    return true;
  }

 private:
  std::string directory() const { return scratch_.Sub("store"); }
  ScratchDirectory scratch_;
};

INSTANTIATE_TEST_SUITE_P(Posix, BlobStoreContract,
                         testing::Values(BlobStoreParam{
                             .name = "Directory",
                             .make = [] { return std::make_unique<PosixHarness>(); }}),
                         [](const auto& info) { return info.param.name; });

class PosixStoreTest : public testing::Test {
 protected:
  std::string directory() const { return scratch_.Sub("store"); }
  PosixPaths paths() const { return PosixPaths(directory()); }

  static std::string NameOf(uint64_t number) {
    return fmt::format("0123456789abcdef/{:02x}/{:032x}-0-0", number % 7, number);
  }

  // The grants that are there, and what their folders end in.
  std::vector<std::string> GrantStates() const {
    std::vector<std::string> states;
    for (const auto& grant : std::filesystem::directory_iterator(paths().Grants())) {
      for (const auto& folder : std::filesystem::directory_iterator(grant.path())) {
        states.push_back(folder.path().filename().string().substr(17));
      }
    }
    return states;
  }

  ScratchDirectory scratch_;
};

// --- Names, labels and options -------------------------------------------------------------------

TEST_F(PosixStoreTest, EveryNameHasAPathOfItsOwnAndComesBackFromIt) {
  const std::string longest(512, 'a');
  std::set<std::string> paths;
  for (const std::string& name :
       {std::string("a"), std::string("a/a"), std::string("a/a/a"), std::string("a.b-c/d"), longest,
        longest.substr(1), std::string(200, 'a'), std::string(200, 'a') + "/a",
        std::string(201, 'a'), "a/" + std::string(400, 'b') + "/c"}) {
    const std::string path = EncodeBlobName(name);
    EXPECT_EQ(DecodeBlobName(path), name);
    EXPECT_TRUE(paths.insert(path).second) << name;
    for (size_t at = 0; at < path.size(); at = path.find('/', at) + 1) {
      EXPECT_LE(std::min(path.find('/', at), path.size()) - at, 255u) << name;
      if (path.find('/', at) == std::string::npos) break;
    }
  }
  for (const std::string path : {"", "a", "_blob/a", "a_/b", "a_blob/b_blob_"}) {
    EXPECT_EQ(DecodeBlobName(path), "") << path;
  }
}

TEST_F(PosixStoreTest, ANameOf512CharactersWithoutAFolderIsABlob) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  const std::string longest(512, 'a');
  ASSERT_TRUE(caller.Write(longest, 5000, 1).ok());
  ASSERT_TRUE(caller.Write(longest.substr(1), 5000, 2).ok());
  EXPECT_TRUE(caller.Read(longest, 5000, 1).ok());
  EXPECT_TRUE(caller.Remove(longest).ok());
  EXPECT_TRUE(caller.Read(longest.substr(1), 5000, 2).ok());
}

TEST_F(PosixStoreTest, OptionsThatCannotWorkAreRefused) {
  const auto code = [](PosixStoreOptions options) {
    return NewPosixStore(std::move(options)).status().code();
  };
  PosixStoreOptions options = OptionsFor("relative");
  EXPECT_EQ(code(options), Code::kInvalid);
  options = OptionsFor(directory());
  options.capacity_bytes = kPosixOverheadBytes + 2 * options.grant_bytes - 1;
  EXPECT_EQ(code(options), Code::kInvalid);
  options.grant_bytes = 0;
  options.capacity_bytes = 1000;
  EXPECT_EQ(code(options), Code::kInvalid);
  options = OptionsFor(directory());
  options.read_threads = 0;
  EXPECT_EQ(code(options), Code::kInvalid);
}

TEST_F(PosixStoreTest, MemoryThatIsNotAlignedWorksToo) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  std::vector<std::byte> bytes(10'001);
  SeededRandom(3).Fill(bytes);
  const std::span<std::byte> all(bytes);
  ASSERT_TRUE(caller
                  .Do({.kind = BlobKind::kWrite,
                       .name = "odd",
                       .head = all.subspan(1, 100),
                       .body = all.subspan(101),
                       .body_bytes = 9000})
                  .status.ok());
  std::vector<std::byte> back(9100);
  const BlobRequest read = caller.Do({.kind = BlobKind::kRead,
                                      .name = "odd",
                                      .head = std::span(back).first(7),
                                      .body = std::span(back).subspan(7)});
  ASSERT_TRUE(read.status.ok()) << read.status.ToString();
  EXPECT_EQ(read.blob_bytes, 9100u);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin() + 1));
}

TEST_F(PosixStoreTest, WhatLiesBehindABlobInMemoryDoesNotReachTheFile) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", 5000, 1).ok());
  const Descriptor file(::open(paths().Blob("a").c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> rest(4 * kPageBytes);
  const ssize_t length = ::pread(file.get(), rest.data(), rest.size(), 2 * kPageBytes + 5000);
  ASSERT_EQ(length, ssize_t{2 * kPageBytes - 5000});
  EXPECT_TRUE(std::all_of(rest.begin(), rest.begin() + length,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(PosixStoreTest, SyncedBlobsAreBlobs) {
  PosixStoreOptions options = OptionsFor(directory());
  options.sync = true;
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write(NameOf(1), kBlobBytes, 1).ok());
  ASSERT_TRUE(caller.Write(NameOf(1), kBlobBytes, 2).ok());
  EXPECT_TRUE(caller.Put(NameOf(1), kBlobBytes, 3, true).existed);
  EXPECT_TRUE(caller.Read(NameOf(1), kBlobBytes, 2).ok());
  EXPECT_TRUE(caller.Remove(NameOf(1)).ok());
  EXPECT_EQ(caller.Look(NameOf(1)).code(), Code::kNotFound);
}

// --- The cap -------------------------------------------------------------------------------------

class PosixCapTest : public PosixStoreTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Files, PosixCapTest, testing::Bool(), [](const auto& info) {
  return info.param ? "AreUsedAgain" : "AreRemoved";
});

TEST_P(PosixCapTest, TheOldestGoWhenTheCapIsReachedAndItHoldsAtEveryStep) {
  PosixStoreOptions options = SmallOptionsFor(directory());
  options.reuse_files = GetParam();
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  constexpr uint64_t kBlobs = 300;  // Several times what there is room for.
  for (uint64_t i = 0; i < kBlobs; ++i) {
    const Status status = caller.Write(NameOf(i), kBlobBytes, i);
    ASSERT_TRUE(status.ok()) << i << " " << status.ToString();
    if (i % 10 != 0) continue;
    ASSERT_LE(BytesWithoutProcesses(directory()), WithoutProcesses(options)) << i;
  }
  EXPECT_LE(BytesWithoutProcesses(directory()), WithoutProcesses(options));
  uint64_t there = 0;
  for (uint64_t i = 0; i < kBlobs; ++i) {
    const Status status = caller.Read(NameOf(i), kBlobBytes, i);
    ASSERT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
    if (status.ok()) ++there;
  }
  EXPECT_GT(there, 40u);
  EXPECT_TRUE(caller.Read(NameOf(kBlobs - 1), kBlobBytes, kBlobs - 1).ok());
  EXPECT_EQ(caller.Look(NameOf(0)).code(), Code::kNotFound);
  EXPECT_GT(caller.Counter("grants_reclaimed"), 5u);
  const bool reuse = GetParam() && IsOnThisHost(directory());
  EXPECT_EQ(caller.Counter("files_reused") > 50, reuse);
  EXPECT_LE(store->Usage().used_bytes, options.capacity_bytes);
}

// Of any size, after any other: smaller ones leave room, larger ones take that of several.
TEST_F(PosixStoreTest, FilesThatAreUsedAgainHoldTheirNewBlobAndNothingElse) {
  const PosixStoreOptions options = SmallOptionsFor(directory());
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  SeededRandom random(5);
  std::map<uint64_t, uint64_t> sizes;
  for (uint64_t i = 0; i < 250; ++i) {
    sizes[i] = random.Below(250'000);
    const Status status = caller.Write(NameOf(i), sizes[i], i);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(caller.Read(NameOf(i), sizes[i], i).ok()) << i;
    if (i % 10 != 0) continue;
    ASSERT_LE(BytesWithoutProcesses(directory()), WithoutProcesses(options)) << i;
  }
  for (const auto& [number, bytes] : sizes) {
    const Status status = caller.Read(NameOf(number), bytes, number);
    EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
  }
}

TEST_F(PosixStoreTest, WhatIsRemovedOrReplacedLeavesNoBytes) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("first", 10, 1).ok());
  const CountedDirectory before = CountDirectory(directory());
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(caller.Write("a/b", kBlobBytes, i).ok());
  EXPECT_TRUE(caller.Read("a/b", kBlobBytes, 19).ok());
  ASSERT_TRUE(caller.Remove("a/b").ok());
  const CountedDirectory after = CountDirectory(directory());
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.files, before.files);
  EXPECT_EQ(after.folders, before.folders);  // Folders that are empty go too.
}

TEST_F(PosixStoreTest, WhatIsReadStaysLonger) {
  const auto store = OpenStore(SmallOptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write(NameOf(0), kBlobBytes, 0).ok());
  // When its grant was used, as the keeper noted it: a number that grows with every grant.
  const auto used = [&] {
    const auto folder = std::filesystem::directory_iterator(paths().Grant(0))->path();
    std::ifstream file(folder / "used");
    uint64_t value = 0;
    file >> std::hex >> value;
    return value;
  };
  for (uint64_t i = 1; i < 120; ++i) {
    ASSERT_TRUE(caller.Write(NameOf(i), kBlobBytes, i).ok());
    ASSERT_TRUE(caller.Read(NameOf(0), kBlobBytes, 0).ok()) << i;
    const uint64_t grants = caller.Counter("grants_taken");
    ASSERT_TRUE(grants <= 2 || Eventually([&] { return used() + 1 >= grants; }));
  }
  EXPECT_EQ(caller.Look(NameOf(20)).code(), Code::kNotFound);
}

TEST_F(PosixStoreTest, WhatIsBeingReadIsNotReclaimed) {
  const PosixStoreOptions options = SmallOptionsFor(directory());
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write(NameOf(0), kBlobBytes, 0).ok());
  // As a reader in any process has it.
  Descriptor reader(::open(paths().Blob(NameOf(0)).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(reader.get(), LOCK_SH), 0);
  for (uint64_t i = 1; i < 200; ++i) ASSERT_TRUE(caller.Write(NameOf(i), kBlobBytes, i).ok());
  EXPECT_TRUE(caller.Read(NameOf(0), kBlobBytes, 0).ok());
  EXPECT_EQ(caller.Look(NameOf(1)).code(), Code::kNotFound);  // Of the same grant.
  EXPECT_LE(BytesWithoutProcesses(directory()), WithoutProcesses(options));
  reader = Descriptor();
  for (uint64_t i = 200; i < 220; ++i) ASSERT_TRUE(caller.Write(NameOf(i), kBlobBytes, i).ok());
  EXPECT_EQ(caller.Look(NameOf(0)).code(), Code::kNotFound);
}

TEST_F(PosixStoreTest, WhatIsRemovedWhileItIsReadGoesWhenThatEnds) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", kBlobBytes, 1).ok());
  Descriptor reader(::open(paths().Blob("a").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(reader.get(), LOCK_SH), 0);
  ASSERT_TRUE(caller.Remove("a").ok());
  EXPECT_EQ(caller.Look("a").code(), Code::kNotFound);
  struct stat stat = {};
  ASSERT_EQ(::fstat(reader.get(), &stat), 0);
  EXPECT_GT(static_cast<uint64_t>(stat.st_size), kBlobBytes);  // Whole, for its reader.
  ASSERT_EQ(::flock(reader.get(), LOCK_UN), 0);
  EXPECT_TRUE(Eventually([&] { return ::fstat(reader.get(), &stat) == 0 && stat.st_nlink == 0; }));
}

TEST_F(PosixStoreTest, ABlobThatNoGrantHasRoomForIsRefused) {
  const auto store = OpenStore(SmallOptionsFor(directory()));
  const BlobCaller caller(store.get());
  EXPECT_EQ(caller.Write("large", kMiB, 1).code(), Code::kNoSpace);
  EXPECT_TRUE(caller.Write("small", kBlobBytes, 1).ok());
}

TEST_F(PosixStoreTest, ASmallerCapGivesBackWhatItHasNoRoomFor) {
  PosixStoreOptions options = SmallOptionsFor(directory());
  {
    const auto store = OpenStore(options);
    const BlobCaller caller(store.get());
    for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(caller.Write(NameOf(i), kBlobBytes, i).ok());
  }
  options.capacity_bytes = kPosixOverheadBytes + 3 * kMiB;
  const auto store = OpenStore(options);
  EXPECT_TRUE(
      Eventually([&] { return BytesWithoutProcesses(directory()) <= WithoutProcesses(options); }));
  EXPECT_TRUE(BlobCaller(store.get()).Write(NameOf(99), kBlobBytes, 1).ok());
}

TEST_F(PosixStoreTest, WhoeverMadeTheDirectoryDecidesOnItsGrants) {
  PosixStoreOptions options = SmallOptionsFor(directory());
  const auto first = OpenStore(options);
  ASSERT_TRUE(BlobCaller(first.get()).Write("a", 10, 1).ok());
  options.grant_bytes = 2 * kMiB;
  const auto second = OpenStore(options);
  const BlobCaller caller(second.get());
  EXPECT_EQ(caller.Write("large", kMiB + 1, 1).code(), Code::kNoSpace);
  EXPECT_TRUE(caller.Write("small", kBlobBytes, 1).ok());
}

TEST_F(PosixStoreTest, AGrantThatWasLeftHalfEmptyIsTakenUpAgain) {
  for (uint64_t life = 0; life < 6; ++life) {
    const auto store = OpenStore(SmallOptionsFor(directory()));
    ASSERT_TRUE(BlobCaller(store.get()).Write(NameOf(life), kBlobBytes, life).ok());
  }
  EXPECT_EQ(GrantStates().size(), 1u);
  const auto store = OpenStore(SmallOptionsFor(directory()));
  for (uint64_t life = 0; life < 6; ++life) {
    EXPECT_TRUE(BlobCaller(store.get()).Read(NameOf(life), kBlobBytes, life).ok());
  }
}

TEST_F(PosixStoreTest, WhereGrantsAreFewWhoIsIdleGivesItsOwnUp) {
  PosixStoreOptions options = SmallOptionsFor(directory());
  options.capacity_bytes = kPosixOverheadBytes + 2 * kMiB;
  std::vector<std::unique_ptr<BlobStore>> stores;
  for (uint64_t i = 0; i < 5; ++i) {
    stores.push_back(OpenStore(options));
    const BlobCaller caller(stores.back().get());
    EXPECT_TRUE(Eventually([&] { return caller.Write(NameOf(i), kBlobBytes, i).ok(); })) << i;
  }
  EXPECT_LE(BytesWithoutProcesses(directory()), WithoutProcesses(options));
}

// --- What others leave ---------------------------------------------------------------------------

// A process that was killed while it wrote, as far as the directory tells.
TEST_F(PosixStoreTest, LeftoversOfTheDeadAreCleanedUp) {
  const PosixStoreOptions options = SmallOptionsFor(directory());
  {
    BlobCaller(OpenStore(options).get()).Write("a", 10, 1).ok();
  }
  const std::string dead = "0123456789abcdef";
  std::filesystem::create_directories(paths().Process(200) + "/new-7/inner");
  std::ofstream(paths().Process(200) + "/alive") << dead << " no such boot";
  const std::string grant = fmt::format("{}/{:016x}-200-{}", paths().Grant(3), 5, dead);
  std::filesystem::create_directories(grant);
  std::ofstream(grant + "/0123456789abcdef0123456789abcdef-2") << std::string(50'000, 'x');
  std::filesystem::create_hard_link(paths().Process(200) + "/alive", paths().Reclaim());
  PosixStoreOptions impatient = options;
  impatient.dead_after_nanos = 50'000'000;
  const auto store = OpenStore(impatient);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(paths().Process(200)); }));
  EXPECT_TRUE(Eventually([&] {
    return !std::filesystem::exists(grant + "/0123456789abcdef0123456789abcdef-2") &&
           !std::filesystem::exists(paths().Reclaim());
  }));
  EXPECT_TRUE(Eventually([&] { return BlobCaller(store.get()).Counter("leftovers_removed") > 0; }));
  EXPECT_TRUE(BlobCaller(store.get()).Read("a", 10, 1).ok());
}

TEST_F(PosixStoreTest, AFileThatIsNotWhatItsNameSaysIsCorruptAndCanBeReplaced) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", kBlobBytes, 1).ok());
  ASSERT_TRUE(caller.Write("b", kBlobBytes, 2).ok());
  ASSERT_TRUE(caller.Write("c", kBlobBytes, 3).ok());
  // Two change places, and one has lost its label.
  const std::string aside = scratch_.Sub("aside");
  std::filesystem::rename(paths().Blob("a"), aside);
  std::filesystem::rename(paths().Blob("b"), paths().Blob("a"));
  std::filesystem::rename(aside, paths().Blob("b"));
  const Descriptor file(::open(paths().Blob("c").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 50), 1);
  for (const std::string name : {"a", "b", "c"}) {
    EXPECT_EQ(caller.Read(name, kBlobBytes, 1).code(), Code::kCorrupt) << name;
    EXPECT_EQ(caller.Look(name).code(), Code::kCorrupt) << name;
    const BlobRequest again = caller.Put(name, kBlobBytes, 9, /*if_absent=*/true);
    EXPECT_TRUE(again.status.ok() && !again.existed) << name << again.status.ToString();
    EXPECT_TRUE(caller.Read(name, kBlobBytes, 9).ok()) << name;
  }
}

TEST_F(PosixStoreTest, AFileWithoutAPlaceInAGrantIsNotThere) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", kBlobBytes, 1).ok());
  std::filesystem::copy_file(paths().Blob("a"), scratch_.Sub("copy"));
  std::filesystem::rename(scratch_.Sub("copy"), paths().Blob("a"));
  EXPECT_EQ(caller.Read("a", kBlobBytes, 1).code(), Code::kNotFound);
  EXPECT_FALSE(caller.Put("a", kBlobBytes, 2, /*if_absent=*/true).existed);
  EXPECT_TRUE(caller.Read("a", kBlobBytes, 2).ok());
}

TEST_F(PosixStoreTest, WhoWasTakenForDeadGoesOnWithAnotherGrant) {
  PosixStoreOptions options = OptionsFor(directory());
  options.beat_nanos = int64_t{1} << 50;  // Only the write finds out.
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", kBlobBytes, 1).ok());
  // What others do to it: its grant is somebody else's, and its place is taken away.
  const std::string grant = paths().Grant(0);
  const auto inner = std::filesystem::directory_iterator(grant)->path();
  std::filesystem::rename(inner, grant + "/" + inner.filename().string().substr(0, 16) + "-full");
  std::filesystem::remove_all(paths().Process(0));
  EXPECT_TRUE(caller.Write("b", kBlobBytes, 2).ok());
  EXPECT_EQ(caller.Counter("grants_lost"), 1u);
  EXPECT_TRUE(caller.Read("a", kBlobBytes, 1).ok());
  EXPECT_TRUE(caller.Read("b", kBlobBytes, 2).ok());
}

// --- File systems that fail ----------------------------------------------------------------------

TEST_F(PosixStoreTest, ADirectoryThatIsRemovedIsUnavailableAndServesAgainWhenItIsMade) {
  const auto store = OpenStore(OptionsFor(directory()));
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", kBlobBytes, 1).ok());
  std::filesystem::rename(directory(), scratch_.Sub("away"));
  std::filesystem::remove_all(scratch_.Sub("away"));
  EXPECT_EQ(caller.Look("a").code(), Code::kUnavailable);
  EXPECT_EQ(caller.Write("b", kBlobBytes, 1).code(), Code::kUnavailable);
  const uint64_t beats = caller.Counter("beats");
  ASSERT_TRUE(Eventually([&] { return caller.Counter("beats") >= beats + 3; }));
  EXPECT_FALSE(std::filesystem::exists(directory()));
  std::filesystem::create_directory(directory());
  EXPECT_TRUE(Eventually([&] { return caller.Write("b", kBlobBytes, 1).ok(); }));
  EXPECT_TRUE(caller.Read("b", kBlobBytes, 1).ok());
  EXPECT_EQ(caller.Look("a").code(), Code::kNotFound);
}

// As at a start before its file system is mounted: what was written there would be lost below it.
TEST_F(PosixStoreTest, ADirectoryThatWasThereInAnEarlierLifeIsWaitedFor) {
  PosixStoreOptions options = OptionsFor(directory());
  std::atomic<int> there = 0;
  options.on_there = [&there] { ++there; };
  {
    const auto store = OpenStore(options);
    ASSERT_TRUE(BlobCaller(store.get()).Write("a", kBlobBytes, 1).ok());
  }
  EXPECT_EQ(there, 1);
  options.known = true;
  for (const bool mount_point : {false, true}) {
    std::filesystem::rename(directory(), scratch_.Sub("elsewhere"));
    if (mount_point) std::filesystem::create_directory(directory());
    {
      const auto store = OpenStore(options);
      const Status status = BlobCaller(store.get()).Write("b", kBlobBytes, 1);
      EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
      EXPECT_NE(status.message().find("mount"), std::string::npos) << status.ToString();
    }
    EXPECT_EQ(std::filesystem::exists(directory()), mount_point) << "something was made";
    EXPECT_TRUE(!mount_point || std::filesystem::is_empty(directory()));
    std::filesystem::remove(directory());
    std::filesystem::rename(scratch_.Sub("elsewhere"), directory());
  }
  const auto store = OpenStore(options);
  EXPECT_TRUE(BlobCaller(store.get()).Read("a", kBlobBytes, 1).ok());
  EXPECT_EQ(there, 2);
}

class HourAhead final : public Clock {
 public:
  int64_t NowNanos() const override { return SystemClock()->NowNanos(); }
  int64_t UnixMicros() const override { return SystemClock()->UnixMicros() + 3'600'000'000; }
};

TEST_F(PosixStoreTest, TheFileSystemsClockIsKnown) {
  HourAhead clock;
  PosixStoreOptions options = OptionsFor(directory());
  const auto right = OpenStore(options);
  options.clock = &clock;
  const auto ahead = OpenStore(options);
  EXPECT_TRUE(Eventually([&] { return ahead->ClockAheadSeconds() < -3500; }));
  EXPECT_NEAR(static_cast<double>(ahead->ClockAheadSeconds()), -3600.0, 5);
  EXPECT_NEAR(static_cast<double>(right->ClockAheadSeconds()), 0.0, 5);
}

TEST_F(PosixStoreTest, ADirectoryThatCannotBeMadeSaysSo) {
  const auto store = OpenStore(OptionsFor(scratch_.Sub("no/such")));
  const Status status = BlobCaller(store.get()).Write("a", kBlobBytes, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("cannot be made"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("; next step: make it"), std::string::npos) << status.ToString();
}

// A file system of the test's own, where it may make one.
class OwnFileSystem {
 public:
  explicit OwnFileSystem(std::string path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    mounted_ = ::mount("aquifer-test", path_.c_str(), "tmpfs", 0, "size=4m") == 0;
  }
  ~OwnFileSystem() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool MakeReadOnly(bool on) const {
    return ::mount("", path_.c_str(), "", MS_REMOUNT | (on ? MS_RDONLY : 0), "size=4m") == 0;
  }

 private:
  const std::string path_;
  bool mounted_ = false;
};

TEST_F(PosixStoreTest, AFullFileSystemIsNoSpaceAndWorksAgainWhenThereIsSome) {
  const OwnFileSystem own(scratch_.Sub("own"));
  if (!own.mounted()) GTEST_SKIP() << "no file system can be mounted here";
  PosixStoreOptions options = SmallOptionsFor(scratch_.Sub("own/store"));
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  uint64_t written = 0;
  while (written < 100 && caller.Write(NameOf(written), kBlobBytes, written).ok()) ++written;
  EXPECT_GT(written, 20u);
  EXPECT_EQ(caller.Write(NameOf(written), kBlobBytes, 1).code(), Code::kNoSpace);
  for (uint64_t i = 0; i < written; ++i) {
    EXPECT_TRUE(caller.Read(NameOf(i), kBlobBytes, i).ok()) << i;
  }
  ASSERT_TRUE(caller.Remove(NameOf(0)).ok());
  EXPECT_TRUE(caller.Write(NameOf(written), kBlobBytes, 7).ok());
}

TEST_F(PosixStoreTest, AReadOnlyFileSystemIsReadAndWrittenToAgainWhenItCanBe) {
  const OwnFileSystem own(scratch_.Sub("own"));
  if (!own.mounted()) GTEST_SKIP() << "no file system can be mounted here";
  const PosixStoreOptions options = SmallOptionsFor(scratch_.Sub("own/store"));
  {
    ASSERT_TRUE(BlobCaller(OpenStore(options).get()).Write("a", kBlobBytes, 1).ok());
  }
  ASSERT_TRUE(own.MakeReadOnly(true));
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  EXPECT_TRUE(caller.Read("a", kBlobBytes, 1).ok());
  EXPECT_EQ(caller.Look("b").code(), Code::kNotFound);
  const Status refused = caller.Write("b", kBlobBytes, 1);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find("Read-only"), std::string::npos) << refused.ToString();
  EXPECT_EQ(caller.Remove("a").code(), Code::kUnavailable);
  ASSERT_TRUE(own.MakeReadOnly(false));
  EXPECT_TRUE(Eventually([&] { return caller.Write("b", kBlobBytes, 1).ok(); }));
}

// A pipe in a blob's place: who opens it waits for a writer, as for a server that does not answer.
TEST_F(PosixStoreTest, WhatHangsHoldsUpItselfAlone) {
  PosixStoreOptions options = OptionsFor(directory());
  options.read_threads = 1;
  const auto store = OpenStore(options);
  const BlobCaller caller(store.get());
  ASSERT_TRUE(caller.Write("a", kBlobBytes, 1).ok());
  const std::string pipe = paths().Blob("hangs");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::promise<void> let_go;
  BlobRequest hanging{.kind = BlobKind::kLook, .name = "hangs"};
  hanging.on_done = [&](BlobRequest&) { let_go.set_value(); };
  store->Submit(&hanging);
  // Behind it, with deadlines: they end, and so does what is cancelled.
  BlobRequest behind{.kind = BlobKind::kLook, .name = "a"};
  behind.deadline_nanos = SystemClock()->NowNanos() + 50'000'000;
  EXPECT_EQ(caller.Do(behind).status.code(), Code::kLate);
  std::promise<void> cancelled;
  BlobRequest cancel{.kind = BlobKind::kLook, .name = "a"};
  cancel.on_done = [&](BlobRequest&) { cancelled.set_value(); };
  store->Submit(&cancel);
  store->Cancel(&cancel);
  cancelled.get_future().wait();
  EXPECT_EQ(cancel.status.code(), Code::kLate);
  EXPECT_TRUE(caller.Write("b", kBlobBytes, 2).ok());  // Writers are others.
  const Descriptor writer(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
  let_go.get_future().wait();
  EXPECT_TRUE(caller.Read("a", kBlobBytes, 1).ok());
}

}  // namespace
}  // namespace aquifer
