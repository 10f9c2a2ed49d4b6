// Load and store with a GPU that fails and a cache of which a test decides every answer: whatever
// was lent is given back, nothing is under way when a call returns, and its caller can tell why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "base/check.h"
#include "base/request_progress.h"
#include "client/c_api/c_api.h"
#include "testing/gpu/fake_gpu.h"
#include "testing/gpu/move_case.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Lends slots of its own memory; what is stored is not kept.
class StubCache final : public Cache {
 public:
  StubCache(uint64_t block_bytes, Checksum checksum, std::span<const std::byte> block)
      : block_bytes_(block_bytes), checksum_(checksum), block_(block) {}
  ~StubCache() override { EXPECT_THAT(open_, IsEmpty()); }

  size_t fetches = 0;
  size_t reserves = 0;
  size_t damaged = SIZE_MAX;            // The block of a fetch that is.
  size_t answered_reserves = SIZE_MAX;  // So many blocks of one; the rest never comes.
  bool answers_commits = true;
  std::set<uint64_t> lent;  // Leases and reservations.
  std::vector<uint64_t> aborted;
  std::vector<uint64_t> corrupt;

  void Fetch(FetchRequest* request) override {
    ++fetches;
    RequestProgress::Begin(request);
    for (size_t i = 0; i < request->ops.size(); ++i) {
      std::span<std::byte> slot = NewSlot();
      std::copy(block_.begin(), block_.end(), slot.begin());
      if (i == damaged) slot[0] ^= std::byte{1};
      request->ops[i].bytes = slot;
      request->ops[i].checksum = checksum_;
      request->ops[i].lease = Lend();
    }
    Answer(request, request->ops.size(), true);
  }
  void Reserve(ReserveRequest* request) override {
    ++reserves;
    RequestProgress::Begin(request);
    const size_t count = std::min(answered_reserves, request->ops.size());
    for (ReserveOp& op : std::span(request->ops).first(count)) {
      op = {.outcome = ReserveOutcome::kSlot, .reservation = Lend(), .slot = NewSlot()};
    }
    Answer(request, count, count == request->ops.size());
  }
  void Commit(CommitRequest* request) override {
    RequestProgress::Begin(request);
    if (!answers_commits) return Answer(request, 0, false);
    for (CommitOp& op : request->ops) {
      op.published = lent.erase(op.reservation) == 1;
      if (!op.published) op.status = Status(Code::kInvalid);
    }
    Answer(request, request->ops.size(), true);
  }
  void Release(std::span<const ReleaseOp> leases) override {
    for (const ReleaseOp& op : leases) {
      lent.erase(op.lease);
      if (op.corrupt) corrupt.push_back(op.lease);
    }
  }
  void Abort(std::span<const ReservationId> reservations) override {
    for (const ReservationId id : reservations) {
      if (lent.erase(id) == 1) aborted.push_back(id);
    }
  }
  void Cancel(Request* request) override {
    if (!RequestProgress::BeginCancel(request)) return;
    request->status = Status(Code::kLate);
    Answer(request, request->completed(), true);
  }
  bool Wait(const Request& request, int64_t timeout_nanos) override {
    AQ_CHECK(request.done() || timeout_nanos != INT64_MAX);
    return request.done();
  }
  size_t Poll() override { return 0; }
  int event_fd() const override { return -1; }

  Result<std::unique_ptr<Cache>> Join(const ClientOptions&) override { return NotHere(); }
  void RegisterLayout(RegisterLayoutRequest*) override { NotHere(); }
  void Match(MatchRequest*) override { NotHere(); }
  void Flush(FlushRequest*) override { NotHere(); }
  void Pin(PinRequest*) override { NotHere(); }
  void Prestage(PrestageRequest*) override { NotHere(); }
  void Evict(EvictRequest*) override { NotHere(); }
  void Drain(DrainRequest*) override { NotHere(); }
  void Stats(StatsRequest*) override { NotHere(); }
  void Hint(const SessionForecast&) override { NotHere(); }
  void ReportPrefill(const PrefillReport&) override { NotHere(); }

 private:
  // No load or store asks for it.
  static std::unique_ptr<Cache> NotHere() {
    AQ_CHECK(false);
    return nullptr;
  }

  uint64_t Lend() { return *lent.insert(++last_).first; }
  std::span<std::byte> NewSlot() { return slots_.emplace_back(block_bytes_); }
  void Answer(Request* request, size_t completed, bool done) {
    RequestProgress::Advance(request, completed, done);
    done ? open_.erase(request) : open_.insert(request).second;
  }

  const uint64_t block_bytes_;
  const Checksum checksum_;
  const std::span<const std::byte> block_;
  uint64_t last_ = 0;
  std::deque<std::vector<std::byte>> slots_;
  std::set<const Request*> open_;
};

class TransfersTest : public testing::Test {
 protected:
  static constexpr size_t kRepeats = 30;  // So that there are several windows.

  TransfersTest() : given_(Given()), keys_(given_.blocks * kRepeats) {
    SeededRandom random(1);
    block_.resize(given_.block_bytes());
    random.Fill(block_);
    for (size_t i = 0; i < kRepeats; ++i) {
      pages_.insert(pages_.end(), given_.pages.begin(), given_.pages.end());
    }
    map_.map = given_.MapAt(given_.arena.data());
    map_.tables = MakeMoveTables(map_.map);
  }
  ~TransfersTest() override {
    cache_.reset();
    EXPECT_EQ(log_.mistake, "");
  }

  static MoveCase Given() {
    for (uint64_t seed = 0;; ++seed) {
      SeededRandom random(seed);
      MoveCase given = RandomMoveCase(&random);
      const bool whole = given.engine.heads.count() == given.layout.groups[0].kv_heads;
      const bool grouped = given.engine.page_tokens <= given.layout.tokens_per_block;
      if (whole && grouped && given.blocks >= 5) return given;
    }
  }

  // One whose tensors are the host's without `gpu`.
  void Start(const FakeGpuOptions* gpu) {
    auto client =
        std::make_unique<StubCache>(given_.block_bytes(), ChecksumOf(block_), std::span(block_));
    client_ = client.get();
    cache_ = std::make_unique<aquifer_cache>(std::move(client));
    map_.device = gpu == nullptr ? kHostMemory : 0;
    if (gpu == nullptr) return;
    log_.calls = 0;
    auto mover = BlockMover::New(std::make_unique<FakeGpu>(&log_, *gpu), &pins_,
                                 {.chunk_bytes = 64 << 10, .chunks = 3});
    ASSERT_TRUE(mover.ok()) << mover.status().ToString();
    cache_->movers.emplace(0, *std::move(mover));
  }
  void Start(const FakeGpuOptions& gpu) { Start(&gpu); }

  template <class Args>
  Args Of(size_t blocks) const {
    Args args{};
    args.size = sizeof(args);
    args.chain.keys = keys_.data();
    args.chain.key_count = blocks;
    args.map = &map_;
    args.pages = pages_.data();
    args.page_count = pages_.size();
    return args;
  }
  aquifer_code Store(int64_t timeout_nanos = 0) {
    auto args = Of<aquifer_store_args>(keys_.size());
    args.timeout_nanos = timeout_nanos;
    stored_.size = sizeof(stored_);
    return aquifer_store(cache_.get(), &args, &stored_);
  }
  aquifer_code Load() {
    auto args = Of<aquifer_load_args>(keys_.size());
    args.verify = AQUIFER_VERIFY_COPYING;
    loaded_.size = sizeof(loaded_);
    return aquifer_load(cache_.get(), &args, &loaded_);
  }
  void ExpectNothingIsLeft() {
    EXPECT_EQ(log_.queued, 0u);
    EXPECT_THAT(client_->lent, IsEmpty());
  }

  MoveCase given_;
  std::vector<aquifer_key> keys_;
  std::vector<uint32_t> pages_;
  std::vector<std::byte> block_;
  aquifer_tensor_map map_{};
  FakeGpuLog log_;
  HostPins pins_;
  std::unique_ptr<aquifer_cache> cache_;
  StubCache* client_ = nullptr;
  aquifer_stored stored_{};
  aquifer_loaded loaded_{};
};

constexpr uint64_t kInMidCopy = 60;  // A call that comes after the start and before the end.

TEST_F(TransfersTest, AGpuMovesAllOfIt) {
  Start(FakeGpuOptions{});
  EXPECT_EQ(Store(), AQUIFER_OK);
  EXPECT_EQ(stored_.published, keys_.size());
  EXPECT_EQ(Load(), AQUIFER_OK);
  EXPECT_EQ(loaded_.blocks, keys_.size());
  EXPECT_GT(client_->fetches, 2u);
  EXPECT_GT(log_.calls, kInMidCopy);
  ExpectNothingIsLeft();
}

TEST_F(TransfersTest, AStoreThatAFailureCutShortSaysWhyAndTheNextOnesAskForNothing) {
  Start({.fail_call = kInMidCopy});
  EXPECT_EQ(Store(), AQUIFER_OK);
  EXPECT_GT(stored_.failed, 0u);
  EXPECT_EQ(stored_.stored + stored_.failed, keys_.size());
  EXPECT_THAT(aquifer_error(), HasSubstr("the GPU path is off: the fake GPU fails"));
  ExpectNothingIsLeft();

  const size_t reserves = client_->reserves;
  Fail(Code::kInvalid, "something else");
  EXPECT_EQ(Store(), AQUIFER_OK);
  EXPECT_EQ(stored_.failed, keys_.size());
  EXPECT_THAT(aquifer_error(), HasSubstr("the GPU path is off: the fake GPU fails"));
  EXPECT_EQ(Load(), AQUIFER_OK);
  EXPECT_EQ(loaded_.code, AQUIFER_UNAVAILABLE);
  EXPECT_EQ(client_->reserves, reserves);
  EXPECT_EQ(client_->fetches, 0u);
}

TEST_F(TransfersTest, ALoadThatAFailureCutShortSaysWhyAndTheNextOnesAskForNothing) {
  Start({.fail_call = kInMidCopy});
  EXPECT_EQ(Load(), AQUIFER_OK);
  EXPECT_EQ(loaded_.code, AQUIFER_UNAVAILABLE);
  EXPECT_LT(loaded_.blocks, keys_.size());
  EXPECT_THAT(aquifer_error(), HasSubstr("the GPU path is off: the fake GPU fails"));
  ExpectNothingIsLeft();

  const size_t fetches = client_->fetches;
  Fail(Code::kInvalid, "something else");
  EXPECT_EQ(Load(), AQUIFER_OK);
  EXPECT_EQ(loaded_.code, AQUIFER_UNAVAILABLE);
  EXPECT_EQ(loaded_.blocks, 0u);
  EXPECT_THAT(aquifer_error(), HasSubstr("the GPU path is off: the fake GPU fails"));
  EXPECT_EQ(client_->fetches, fetches);
}

TEST_F(TransfersTest, ADamagedBlockEndsALoadAndIsToldToTheCache) {
  Start(FakeGpuOptions{});
  client_->damaged = 3;
  EXPECT_EQ(Load(), AQUIFER_OK);
  EXPECT_EQ(loaded_.code, AQUIFER_CORRUPT);
  EXPECT_EQ(loaded_.blocks, 3u);
  EXPECT_FALSE(client_->corrupt.empty());
  EXPECT_EQ(client_->corrupt.front(), 4u);
  ExpectNothingIsLeft();
}

// Whichever call it happens in: the windows are the call's own and go with it.
TEST_F(TransfersTest, WithoutMemoryNothingIsUnderWayWhenTheCallReturns) {
  for (const bool store : {true, false}) {
    uint64_t thrown = 0;
    for (uint64_t call = 30; call < 2000; call += 7) {
      SCOPED_TRACE(testing::Message() << (store ? "store, call " : "load, call ") << call);
      Start({.seed = call, .throw_call = call});
      const aquifer_code code = store ? Store() : Load();
      if (log_.calls < call) break;
      ++thrown;
      ASSERT_EQ(code, AQUIFER_NO_SPACE);
      ExpectNothingIsLeft();
      ASSERT_EQ(Load(), AQUIFER_OK);
      ASSERT_EQ(loaded_.code, AQUIFER_UNAVAILABLE);
      ASSERT_THAT(aquifer_error(), HasSubstr("out of memory"));
    }
    EXPECT_GT(thrown, 10u);
  }
}

TEST_F(TransfersTest, AReservationThatComesTooLateIsAborted) {
  Start(nullptr);
  client_->answered_reserves = 32;
  EXPECT_EQ(Store(1), AQUIFER_LATE);
  EXPECT_EQ(stored_.stored, 0u);
  EXPECT_EQ(client_->aborted.size(), 32u);
  ExpectNothingIsLeft();
}

TEST_F(TransfersTest, ACommitThatNobodyAnswersIsAborted) {
  Start(nullptr);
  client_->answers_commits = false;
  EXPECT_EQ(Store(1), AQUIFER_LATE);
  EXPECT_EQ(stored_.stored, 0u);
  EXPECT_EQ(client_->aborted.size(), 64u);
  ExpectNothingIsLeft();
}

}  // namespace
}  // namespace aquifer
