#include "store/blob_store_contract.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <thread>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kQueued = 256;

size_t Pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

BlobStoreContract::Bytes::Bytes(size_t size, uint64_t seed)
    : size_(size), memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, Pages(size + 1)))) {
  SeededRandom(seed).Fill(all());
}

void BlobStoreContract::Bytes::Free::operator()(std::byte* bytes) const { std::free(bytes); }

void BlobStoreContract::SetUp() {
  harness_ = GetParam().make();
  store_ = harness_->Open(kQueued);
}

void BlobStoreContract::TearDown() {
  store_.reset();
  harness_.reset();
}

BlobStoreContract::Outcome BlobStoreContract::Do(BlobStore* store, BlobRequest* request) {
  std::atomic<int> done = 0;
  request->on_done = [&](BlobRequest&) { ++done; };
  store->Submit(request);
  EXPECT_TRUE(harness_->RunUntil([&] { return done > 0; })) << "no answer";
  return {.status = request->status,
          .existed = request->existed,
          .blob_bytes = request->blob_bytes,
          .done = done};
}

Status BlobStoreContract::Write(BlobStore* store, const std::string& name, uint64_t body_bytes,
                                uint64_t seed) {
  const Bytes bytes(kHeadBytes + Pages(body_bytes), seed);
  BlobRequest request{.kind = BlobKind::kWrite,
                      .name = name,
                      .head = bytes.head(),
                      .body = bytes.body(),
                      .body_bytes = body_bytes};
  return Do(store, &request).status;
}

BlobStoreContract::Outcome BlobStoreContract::WriteIfAbsent(BlobStore* store,
                                                            const std::string& name,
                                                            uint64_t body_bytes, uint64_t seed) {
  const Bytes bytes(kHeadBytes + Pages(body_bytes), seed);
  BlobRequest request{.kind = BlobKind::kWrite,
                      .name = name,
                      .head = bytes.head(),
                      .body = bytes.body(),
                      .body_bytes = body_bytes,
                      .if_absent = true};
  return Do(store, &request);
}

Status BlobStoreContract::Read(BlobStore* store, const std::string& name, uint64_t body_bytes,
                               uint64_t seed) {
  const Bytes expected(kHeadBytes + Pages(body_bytes), seed);
  const Bytes target(kHeadBytes + Pages(body_bytes), seed + 1);
  BlobRequest request{.name = name, .head = target.head(), .body = target.body()};
  const Outcome outcome = Do(store, &request);
  if (!outcome.status.ok()) return outcome.status;
  EXPECT_EQ(outcome.blob_bytes, kHeadBytes + body_bytes) << name;
  const size_t size = kHeadBytes + body_bytes;
  EXPECT_TRUE(std::ranges::equal(target.all().first(size), expected.all().first(size)))
      << "wrong bytes were read of " << name;
  return outcome.status;
}

Status BlobStoreContract::Remove(BlobStore* store, const std::string& name) {
  BlobRequest request{.kind = BlobKind::kRemove, .name = name};
  return Do(store, &request).status;
}

Result<BlobStore::Names> BlobStoreContract::List(BlobStore* store, std::string_view prefix,
                                                 std::string_view after, size_t max) {
  std::atomic<bool> done = false;
  Result<BlobStore::Names> result = BlobStore::Names();
  store->List(prefix, after, max, [&](Result<BlobStore::Names> names) {
    result = std::move(names);
    done = true;
  });
  EXPECT_TRUE(harness_->RunUntil([&] { return done.load(); })) << "no answer";
  return result;
}

std::vector<std::string> BlobStoreContract::ListAll(BlobStore* store, std::string_view prefix,
                                                    size_t page) {
  std::vector<std::string> all;
  std::string after;
  while (true) {
    const Result<BlobStore::Names> names = List(store, prefix, after, page);
    EXPECT_TRUE(names.ok()) << names.status().ToString();
    if (!names.ok() || names->empty()) return all;
    EXPECT_LE(names->size(), page);
    for (const BlobName& name : *names) all.push_back(name.name);
    after = all.back();
    if (all.size() > 10'000) {
      ADD_FAILURE() << "the listing does not end";
      return all;
    }
  }
}

TEST_P(BlobStoreContract, WhatIsWrittenIsReadWhateverItsSize) {
  const uint64_t most = GetParam().max_blob_bytes - kHeadBytes;
  int number = 0;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{5000},
                               uint64_t{65536}, (uint64_t{1} << 20) + 3, most}) {
    const std::string name = "sizes/0" + std::to_string(number++);
    EXPECT_TRUE(Write(store_.get(), name, bytes, bytes + 7).ok()) << bytes;
    EXPECT_TRUE(Read(store_.get(), name, bytes, bytes + 7).ok()) << bytes;
  }
}

TEST_P(BlobStoreContract, EveryNameThatIsAllowedIsABlobOfItsOwn) {
  std::string longest = "long";
  while (longest.size() < 480) longest += "/0123456789abcdef";
  const std::vector<std::string> names = {"0",           "a",           "a-b",  "a.b",
                                          "folder/a",    "folder/a-1",  "b/a",  "b/a.1",
                                          "x/y/z/w/v/u", "00/ff/a-0-1", longest};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(Write(store_.get(), names[i], 100 + i, i).ok()) << names[i];
  }
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(Read(store_.get(), names[i], 100 + i, i).ok()) << names[i];
  }
}

TEST_P(BlobStoreContract, AMissIsAMissAndTouchesNothing) {
  const Bytes target(kHeadBytes + kPage, 1);
  const Bytes same(kHeadBytes + kPage, 1);
  BlobRequest read{.name = "not/there", .head = target.head(), .body = target.body()};
  EXPECT_EQ(Do(store_.get(), &read).status.code(), Code::kNotFound);
  BlobRequest look{.kind = BlobKind::kLook, .name = "not/there", .head = target.head()};
  EXPECT_EQ(Do(store_.get(), &look).status.code(), Code::kNotFound);
  EXPECT_EQ(Remove(store_.get(), "not/there").code(), Code::kNotFound);
  EXPECT_TRUE(std::ranges::equal(target.all(), same.all()));
}

TEST_P(BlobStoreContract, LookingTellsTheLengthAndTheBeginning) {
  ASSERT_TRUE(Write(store_.get(), "look/me", 10'000, 5).ok());
  const Bytes expected(kHeadBytes, 5);
  const Bytes head(kHeadBytes, 6);
  BlobRequest with_head{.kind = BlobKind::kLook, .name = "look/me", .head = head.all()};
  Outcome outcome = Do(store_.get(), &with_head);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_EQ(outcome.blob_bytes, kHeadBytes + 10'000);
  EXPECT_TRUE(std::ranges::equal(head.all(), expected.all()));
  BlobRequest without{.kind = BlobKind::kLook, .name = "look/me"};
  outcome = Do(store_.get(), &without);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_EQ(outcome.blob_bytes, kHeadBytes + 10'000);
}

TEST_P(BlobStoreContract, WhatIsDoneIsCountedByTheSameNamesEverywhere) {
  ASSERT_TRUE(Write(store_.get(), "count", 5000, 1).ok());
  EXPECT_TRUE(WriteIfAbsent(store_.get(), "count", 5000, 1).existed);
  EXPECT_TRUE(Read(store_.get(), "count", 5000, 1).ok());
  BlobRequest look{.kind = BlobKind::kLook, .name = "count"};
  EXPECT_TRUE(Do(store_.get(), &look).status.ok());
  BlobRequest late{
      .kind = BlobKind::kLook, .name = "count", .deadline_nanos = harness_->NowNanos()};
  EXPECT_EQ(Do(store_.get(), &late).status.code(), Code::kLate);
  EXPECT_TRUE(Remove(store_.get(), "count").ok());
  EXPECT_EQ(Remove(store_.get(), "count").code(), Code::kNotFound);
  const uint64_t bytes = kHeadBytes + 5000;
  const std::map<std::string, uint64_t> expected = {
      {"reads", 1},   {"read_bytes", bytes}, {"looks", 1},  {"writes", 1}, {"written_bytes", bytes},
      {"existed", 1}, {"removes", 1},        {"misses", 1}, {"late", 1},   {"failures", 0}};
  std::map<std::string, uint64_t> counted;
  for (const auto& [name, value] : store_->Counters()) {
    if (expected.contains(name)) counted[name] = value;
  }
  EXPECT_EQ(counted, expected);
}

TEST_P(BlobStoreContract, WhatIsThereStaysWhereItMustBeAbsent) {
  const Outcome first = WriteIfAbsent(store_.get(), "once", 9000, 1);
  EXPECT_TRUE(first.status.ok()) << first.status.ToString();
  EXPECT_FALSE(first.existed);
  const Outcome second = WriteIfAbsent(store_.get(), "once", 5000, 2);
  EXPECT_TRUE(second.status.ok()) << second.status.ToString();
  EXPECT_TRUE(second.existed);
  EXPECT_TRUE(Read(store_.get(), "once", 9000, 1).ok());
}

TEST_P(BlobStoreContract, WhatIsWrittenAgainIsReplacedAsAWhole) {
  for (const uint64_t bytes : {9000, 200, 70'000, 0, 4096}) {
    ASSERT_TRUE(Write(store_.get(), "again", bytes, bytes).ok());
    EXPECT_TRUE(Read(store_.get(), "again", bytes, bytes).ok()) << bytes;
  }
}

TEST_P(BlobStoreContract, WhatDoesNotFitIsCorruptAndMoreRoomIsFine) {
  ASSERT_TRUE(Write(store_.get(), "fit", 10'000, 3).ok());
  const Bytes small(kHeadBytes + 8192, 1);
  BlobRequest tight{.name = "fit", .head = small.head(), .body = small.body()};
  EXPECT_EQ(Do(store_.get(), &tight).status.code(), Code::kCorrupt);
  const Bytes large(kHeadBytes + 65536, 1);
  BlobRequest roomy{.name = "fit", .head = large.head(), .body = large.body()};
  const Outcome outcome = Do(store_.get(), &roomy);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_EQ(outcome.blob_bytes, kHeadBytes + 10'000);
  const Bytes expected(kHeadBytes + Pages(10'000), 3);
  EXPECT_TRUE(std::ranges::equal(large.all().first(outcome.blob_bytes),
                                 expected.all().first(outcome.blob_bytes)));
}

TEST_P(BlobStoreContract, ABlobThatLostItsEndIsNeverTakenForWhole) {
  for (const uint64_t left : {uint64_t{0}, uint64_t{100}, uint64_t{4096}, uint64_t{9000}}) {
    const std::string name = "cut/0" + std::to_string(left);
    ASSERT_TRUE(Write(store_.get(), name, 10'000, 3).ok());
    if (!harness_->CutShort(name, left)) GTEST_SKIP() << "it cannot be cut here";
    const Bytes target(kHeadBytes + Pages(10'000), 1);
    BlobRequest read{.name = name, .head = target.head(), .body = target.body()};
    const Outcome outcome = Do(store_.get(), &read);
    if (outcome.status.ok()) {
      EXPECT_GE(left, kHeadBytes);
      EXPECT_EQ(outcome.blob_bytes, left);
    } else {
      EXPECT_TRUE(outcome.status.code() == Code::kCorrupt ||
                  outcome.status.code() == Code::kNotFound)
          << outcome.status.ToString();
    }
  }
}

TEST_P(BlobStoreContract, WhatIsRemovedIsGoneAndCanBeWrittenAgain) {
  ASSERT_TRUE(Write(store_.get(), "gone/a", 5000, 1).ok());
  ASSERT_TRUE(Write(store_.get(), "gone/b", 5000, 2).ok());
  EXPECT_TRUE(Remove(store_.get(), "gone/a").ok());
  EXPECT_EQ(Read(store_.get(), "gone/a", 5000, 1).code(), Code::kNotFound);
  EXPECT_EQ(Remove(store_.get(), "gone/a").code(), Code::kNotFound);
  EXPECT_TRUE(Read(store_.get(), "gone/b", 5000, 2).ok());
  EXPECT_FALSE(WriteIfAbsent(store_.get(), "gone/a", 6000, 3).existed);
  EXPECT_TRUE(Read(store_.get(), "gone/a", 6000, 3).ok());
}

TEST_P(BlobStoreContract, OnlyTheOneThatWasLookedAtIsRemovedWhereThatIsAsked) {
  const std::unique_ptr<BlobStore> other = harness_->Open(kQueued);
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{300'000}}) {
    ASSERT_TRUE(Write(store_.get(), "renewed", bytes, 1).ok());
    const Bytes head(kHeadBytes, 6);
    BlobRequest look{.kind = BlobKind::kLook, .name = "renewed", .head = head.all()};
    ASSERT_TRUE(Do(store_.get(), &look).status.ok());
    ASSERT_FALSE(look.version.empty());
    ASSERT_TRUE(Write(other.get(), "renewed", bytes, 2).ok());
    BlobRequest old{.kind = BlobKind::kRemove, .name = "renewed", .version = look.version};
    EXPECT_EQ(Do(store_.get(), &old).status.code(), Code::kNotFound);
    EXPECT_TRUE(Read(store_.get(), "renewed", bytes, 2).ok());
    BlobRequest again{.kind = BlobKind::kLook, .name = "renewed", .head = head.all()};
    ASSERT_TRUE(Do(store_.get(), &again).status.ok());
    EXPECT_NE(again.version, look.version);
    BlobRequest same{.kind = BlobKind::kRemove, .name = "renewed", .version = again.version};
    const Status removed = Do(store_.get(), &same).status;
    EXPECT_TRUE(removed.ok()) << removed.ToString();
    EXPECT_EQ(Read(store_.get(), "renewed", bytes, 2).code(), Code::kNotFound);
  }
}

TEST_P(BlobStoreContract, AListingHasEveryNameOnceAndNoOther) {
  std::set<std::string> expected;
  for (int i = 0; i < 23; ++i) {
    const std::string name =
        "list/" + std::string(1, static_cast<char>('a' + i % 3)) + "/" + std::to_string(i);
    ASSERT_TRUE(Write(store_.get(), name, 10, 1).ok());
    expected.insert(name);
  }
  ASSERT_TRUE(Write(store_.get(), "listed-not/a", 10, 1).ok());
  for (const size_t page : {size_t{1}, size_t{4}, size_t{100}}) {
    const std::vector<std::string> names = ListAll(store_.get(), "list/", page);
    EXPECT_EQ(names.size(), expected.size()) << page;
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected) << page;
  }
  EXPECT_EQ(ListAll(store_.get(), "list/b/", 100).size(), 8u);
  EXPECT_EQ(ListAll(store_.get(), "", 100).size(), 24u);
  EXPECT_TRUE(ListAll(store_.get(), "none/", 100).empty());
  const Result<BlobStore::Names> names = List(store_.get(), "list/a/0", "", 10);
  ASSERT_TRUE(names.ok());
  ASSERT_EQ(names->size(), 1u);
  EXPECT_EQ((*names)[0].bytes, kHeadBytes + 10);
}

TEST_P(BlobStoreContract, OtherProcessesSeeTheSameBlobs) {
  const std::unique_ptr<BlobStore> other = harness_->Open(kQueued);
  ASSERT_TRUE(Write(store_.get(), "shared", 5000, 1).ok());
  EXPECT_TRUE(Read(other.get(), "shared", 5000, 1).ok());
  EXPECT_TRUE(WriteIfAbsent(other.get(), "shared", 6000, 2).existed);
  EXPECT_TRUE(Remove(other.get(), "shared").ok());
  EXPECT_EQ(Read(store_.get(), "shared", 5000, 1).code(), Code::kNotFound);
}

TEST_P(BlobStoreContract, WhatIsStoredIsThereAfterARestart) {
  ASSERT_TRUE(Write(store_.get(), "kept", 70'000, 1).ok());
  store_.reset();
  store_ = harness_->Open(kQueued);
  EXPECT_TRUE(Read(store_.get(), "kept", 70'000, 1).ok());
}

TEST_P(BlobStoreContract, OfManyWhoWriteABlobThatMustBeAbsentOneDoes) {
  const std::unique_ptr<BlobStore> other = harness_->Open(kQueued);
  for (int round = 0; round < 5; ++round) {
    const std::string name = "race/0" + std::to_string(round);
    constexpr int kWriters = 12;
    std::vector<Bytes> bytes;
    std::vector<BlobRequest> requests(kWriters);
    std::atomic<int> done = 0;
    for (uint64_t i = 0; i < kWriters; ++i) {
      bytes.emplace_back(kHeadBytes + 8192, i);
      requests[i] = {.kind = BlobKind::kWrite,
                     .name = name,
                     .head = bytes[i].head(),
                     .body = bytes[i].body(),
                     .body_bytes = 8192,
                     .if_absent = true,
                     .on_done = [&](BlobRequest&) { ++done; }};
    }
    for (int i = 0; i < kWriters; ++i) {
      (i % 2 == 0 ? store_ : other)->Submit(&requests[static_cast<size_t>(i)]);
    }
    ASSERT_TRUE(harness_->RunUntil([&] { return done == kWriters; }));
    int winners = 0;
    uint64_t winner = 0;
    for (uint64_t i = 0; i < kWriters; ++i) {
      EXPECT_TRUE(requests[i].status.ok()) << requests[i].status.ToString();
      if (requests[i].existed) continue;
      ++winners;
      winner = i;
    }
    EXPECT_EQ(winners, 1);
    EXPECT_TRUE(Read(store_.get(), name, 8192, winner).ok());
  }
}

// Of two contents that are written in turn a reader gets one or the other, or a miss.
TEST_P(BlobStoreContract, NobodyEverSeesAPart) {
  constexpr uint64_t kBytes = 200'000;
  const std::vector<Bytes> contents = [] {
    std::vector<Bytes> two;
    two.emplace_back(kHeadBytes + Pages(kBytes), 1);
    two.emplace_back(kHeadBytes + Pages(kBytes), 2);
    return two;
  }();
  ASSERT_TRUE(Write(store_.get(), "whole", kBytes, 1).ok());
  const std::unique_ptr<BlobStore> other = harness_->Open(kQueued);
  size_t hits = 0;
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> done = 0;
    const auto count = [&](BlobRequest&) { ++done; };
    const Bytes& content = contents[static_cast<size_t>(round + 1) % 2];
    BlobRequest write{.kind = BlobKind::kWrite,
                      .name = "whole",
                      .head = content.head(),
                      .body = content.body(),
                      .body_bytes = kBytes,
                      .on_done = count};
    std::vector<Bytes> targets;
    std::vector<BlobRequest> reads(4);
    for (uint64_t i = 0; i < reads.size(); ++i) {
      targets.emplace_back(kHeadBytes + Pages(kBytes), 100 + i);
      reads[i] = {
          .name = "whole", .head = targets[i].head(), .body = targets[i].body(), .on_done = count};
    }
    other->Submit(&reads[0]);
    store_->Submit(&write);
    for (size_t i = 1; i < reads.size(); ++i) other->Submit(&reads[i]);
    ASSERT_TRUE(harness_->RunUntil([&] { return done == 5; }));
    EXPECT_TRUE(write.status.ok()) << write.status.ToString();
    for (size_t i = 0; i < reads.size(); ++i) {
      if (reads[i].status.code() == Code::kNotFound) continue;
      ASSERT_TRUE(reads[i].status.ok()) << reads[i].status.ToString();
      ++hits;
      EXPECT_EQ(reads[i].blob_bytes, kHeadBytes + kBytes);
      const auto got = targets[i].all().first(kHeadBytes + kBytes);
      EXPECT_TRUE(std::ranges::equal(got, contents[0].all().first(got.size())) ||
                  std::ranges::equal(got, contents[1].all().first(got.size())))
          << "a blob that nobody wrote";
    }
  }
  EXPECT_GT(hits, 0u);
}

TEST_P(BlobStoreContract, ADeadlineThatHasPassedIsLate) {
  ASSERT_TRUE(Write(store_.get(), "late", 5000, 1).ok());
  const Bytes target(kHeadBytes + 8192, 2);
  BlobRequest read{.name = "late",
                   .head = target.head(),
                   .body = target.body(),
                   .deadline_nanos = harness_->NowNanos() - 1};
  EXPECT_EQ(Do(store_.get(), &read).status.code(), Code::kLate);
  EXPECT_TRUE(Read(store_.get(), "late", 5000, 1).ok());
}

TEST_P(BlobStoreContract, AStoreThatHangsIsLateAtTheDeadlineAndGoesOnLater) {
  ASSERT_TRUE(Write(store_.get(), "hang", 5000, 1).ok());
  if (!harness_->Hang(true)) GTEST_SKIP() << "it cannot hang here";
  const Bytes target(kHeadBytes + 8192, 2);
  BlobRequest read{.name = "hang",
                   .head = target.head(),
                   .body = target.body(),
                   .deadline_nanos = harness_->NowNanos() + 200'000'000};
  EXPECT_EQ(Do(store_.get(), &read).status.code(), Code::kLate);
  BlobRequest write{.kind = BlobKind::kWrite,
                    .name = "hang2",
                    .head = target.head(),
                    .body = target.body(),
                    .body_bytes = 5000,
                    .deadline_nanos = harness_->NowNanos() + 200'000'000};
  EXPECT_EQ(Do(store_.get(), &write).status.code(), Code::kLate);
  harness_->Hang(false);
  EXPECT_TRUE(Read(store_.get(), "hang", 5000, 1).ok());
}

TEST_P(BlobStoreContract, WhatIsCancelledEndsSoonAndOnce) {
  ASSERT_TRUE(Write(store_.get(), "cancel", 5000, 1).ok());
  if (!harness_->Hang(true)) GTEST_SKIP() << "it cannot hang here";
  constexpr size_t kReads = 8;
  std::vector<Bytes> targets;
  std::vector<BlobRequest> reads(kReads);
  std::atomic<size_t> done = 0;
  for (size_t i = 0; i < kReads; ++i) {
    targets.emplace_back(kHeadBytes + 8192, i);
    reads[i] = {.name = "cancel",
                .head = targets[i].head(),
                .body = targets[i].body(),
                .on_done = [&](BlobRequest&) { ++done; }};
    store_->Submit(&reads[i]);
  }
  for (BlobRequest& read : reads) store_->Cancel(&read);
  EXPECT_TRUE(harness_->RunUntil([&] { return done == kReads; }));
  for (const BlobRequest& read : reads) EXPECT_EQ(read.status.code(), Code::kLate);
  harness_->Hang(false);
  EXPECT_TRUE(Read(store_.get(), "cancel", 5000, 1).ok());
  EXPECT_EQ(done, kReads);
}

// A completion and Cancel() may meet: a caller on another thread cannot know.
TEST_P(BlobStoreContract, WhatIsDoneAlreadyIsLeftAloneAndItsMemoryMayBeUsedAgain) {
  ASSERT_TRUE(Write(store_.get(), "done", 5000, 1).ok());
  const Bytes target(kHeadBytes + 8192, 2);
  BlobRequest read{.name = "done", .head = target.head(), .body = target.body()};
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = Do(store_.get(), &read);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    EXPECT_EQ(outcome.done, 1);
    store_->Cancel(&read);
  }
}

TEST_P(BlobStoreContract, AFullQueueRefusesAtOnceAndTheRestIsAnswered) {
  if (!GetParam().bounded) GTEST_SKIP() << "its bound is not set here";
  store_ = harness_->Open(4);
  ASSERT_TRUE(Write(store_.get(), "busy", 5000, 1).ok());
  const bool hangs = harness_->Hang(true);
  constexpr size_t kReads = 60;
  std::vector<Bytes> targets;
  std::vector<BlobRequest> reads(kReads);
  std::atomic<size_t> done = 0;
  for (size_t i = 0; i < kReads; ++i) {
    targets.emplace_back(kHeadBytes + 8192, i);
    reads[i] = {.name = "busy",
                .head = targets[i].head(),
                .body = targets[i].body(),
                .on_done = [&](BlobRequest&) { ++done; }};
  }
  for (BlobRequest& read : reads) store_->Submit(&read);
  if (hangs) {
    EXPECT_TRUE(harness_->RunUntil([&] { return done == kReads - 4; }));
    EXPECT_LE(store_->Usage().queued, 4u);
    harness_->Hang(false);
  }
  ASSERT_TRUE(harness_->RunUntil([&] { return done == kReads; }));
  size_t read = 0;
  for (const BlobRequest& request : reads) {
    EXPECT_TRUE(request.status.ok() || request.status.code() == Code::kBusy)
        << request.status.ToString();
    if (request.status.ok()) ++read;
  }
  EXPECT_GE(read, 4u);
  if (hangs) {
    EXPECT_EQ(read, 4u);
  }
  EXPECT_TRUE(Read(store_.get(), "busy", 5000, 1).ok());
}

TEST_P(BlobStoreContract, ARequestMayBeDestroyedByItsCompletion) {
  constexpr int kRequests = 40;
  if (GetParam().bounded) store_ = harness_->Open(kRequests / 4);  // Some are refused at once.
  std::atomic<int> done = 0;
  std::atomic<int> lost = 0;
  for (int i = 0; i < kRequests; ++i) {
    auto* const request = new BlobRequest{.kind = BlobKind::kLook, .name = "nothing"};
    if (i % 2 == 0) request->deadline_nanos = harness_->NowNanos();  // Or late, where they begin.
    request->on_done = [&done, &lost, request, held = std::make_shared<int>()](BlobRequest&) {
      // What it has captured must outlive the request; this only looks from outside.
      std::atomic<int>* const completions = &done;
      std::atomic<int>* const losses = &lost;
      const std::weak_ptr<int> mine = held;
      delete request;
      if (mine.expired()) ++*losses;
      ++*completions;
    };
    store_->Submit(request);
  }
  EXPECT_TRUE(harness_->RunUntil([&] { return done == kRequests; }));
  EXPECT_EQ(lost, 0) << "on_done was in the request while it ran";
}

TEST_P(BlobStoreContract, DestroyingTheStoreAnswersWhatIsUnderWay) {
  ASSERT_TRUE(Write(store_.get(), "end", 5000, 1).ok());
  const bool hangs = harness_->Hang(true);
  constexpr size_t kReads = 20;
  std::vector<Bytes> targets;
  std::vector<BlobRequest> reads(kReads);
  std::atomic<size_t> done = 0;
  for (size_t i = 0; i < kReads; ++i) {
    targets.emplace_back(kHeadBytes + 8192, i);
    reads[i] = {.name = "end",
                .head = targets[i].head(),
                .body = targets[i].body(),
                .on_done = [&](BlobRequest&) { ++done; }};
    store_->Submit(&reads[i]);
  }
  store_.reset();
  EXPECT_EQ(done, kReads);
  if (hangs) harness_->Hang(false);
}

TEST_P(BlobStoreContract, AServerThatIsGoneIsUnavailableOrLateAndServesAgainByItself) {
  ASSERT_TRUE(Write(store_.get(), "away", 5000, 1).ok());
  if (!harness_->Disconnect(true)) GTEST_SKIP() << "it cannot be disconnected";
  const Bytes target(kHeadBytes + 8192, 2);
  BlobRequest read{.name = "away",
                   .head = target.head(),
                   .body = target.body(),
                   .deadline_nanos = harness_->NowNanos() + 1'000'000'000};
  const Status status = Do(store_.get(), &read).status;
  EXPECT_TRUE(status.code() == Code::kUnavailable || status.code() == Code::kLate)
      << status.ToString();
  harness_->Disconnect(false);
  Status again;
  EXPECT_TRUE(harness_->RunUntil([&] {
    again = Read(store_.get(), "away", 5000, 1);
    return again.ok();
  })) << again.ToString();
}

TEST_P(BlobStoreContract, ManyThreadsAtOnceGetWhatTheyWrote) {
  if (!GetParam().threads) GTEST_SKIP() << "this harness is for one thread";
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 10;
  struct Job {
    explicit Job(uint64_t seed) : bytes(kHeadBytes + 16384, seed) {}
    Bytes bytes;
    BlobRequest request;
  };
  std::vector<std::vector<std::unique_ptr<Job>>> jobs(kThreads);
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kRounds; ++i) {
        jobs[t].push_back(std::make_unique<Job>(t * kRounds + i));
        Job* const job = jobs[t].back().get();
        job->request = {.kind = BlobKind::kWrite,
                        .name = "threads/" + std::to_string(t) + "/" + std::to_string(i),
                        .head = job->bytes.head(),
                        .body = job->bytes.body(),
                        .body_bytes = 16384,
                        .on_done = [&done](BlobRequest&) { ++done; }};
        store_->Submit(&job->request);
        EXPECT_LE(store_->Usage().queued, kThreads * kRounds);  // Who looks holds nobody up.
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(harness_->RunUntil([&] { return done == kThreads * int{kRounds}; }));
  for (uint64_t t = 0; t < kThreads; ++t) {
    for (uint64_t i = 0; i < kRounds; ++i) {
      const BlobRequest& request = jobs[t][i]->request;
      EXPECT_TRUE(request.status.ok()) << request.status.ToString();
      EXPECT_TRUE(Read(store_.get(), request.name, 16384, t * kRounds + i).ok());
    }
  }
}

TEST_P(BlobStoreContract, ARandomHistoryAgreesWithAMap) {
  SeededRandom random(11);
  std::map<std::string, std::pair<uint64_t, uint64_t>> model;  // Bytes and seed.
  for (uint64_t step = 0; step < 150; ++step) {
    const std::string name = "map/" + std::to_string(random.Below(12));
    const uint64_t bytes = random.Below(30'000);
    const auto found = model.find(name);
    switch (random.Below(5)) {
      case 0:
        ASSERT_TRUE(Write(store_.get(), name, bytes, step).ok());
        model[name] = {bytes, step};
        break;
      case 1: {
        const Outcome outcome = WriteIfAbsent(store_.get(), name, bytes, step);
        ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
        ASSERT_EQ(outcome.existed, found != model.end());
        model.try_emplace(name, bytes, step);
        break;
      }
      case 2:
        ASSERT_EQ(Remove(store_.get(), name).code(),
                  found == model.end() ? Code::kNotFound : Code::kOk);
        model.erase(name);
        break;
      default:
        if (found == model.end()) {
          ASSERT_EQ(Read(store_.get(), name, 30'000, 0).code(), Code::kNotFound);
        } else {
          ASSERT_TRUE(Read(store_.get(), name, found->second.first, found->second.second).ok());
        }
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, what] : model) names.push_back(name);
  std::vector<std::string> listed = ListAll(store_.get(), "map/", 5);
  std::ranges::sort(listed);
  EXPECT_EQ(listed, names);
}

TEST_P(BlobStoreContract, ItSaysWhatItIsAndWhatItHasUnderWay) {
  EXPECT_FALSE(store_->Describe().empty());
  ASSERT_TRUE(Write(store_.get(), "say", 10, 1).ok());
  EXPECT_EQ(store_->Usage().queued, 0u);
  std::vector<std::string> first;
  std::vector<std::string> second;
  for (const auto& [name, value] : store_->Counters()) first.push_back(name);
  for (const auto& [name, value] : store_->Counters()) second.push_back(name);
  EXPECT_EQ(first, second);
}

}  // namespace aquifer
