// Tests Connect(), with a node that the test plays step by step. Requests change in Poll() alone.
// Loans are given back whatever became of the node. The client looks for a node that is gone.
#include "client/remote_cache.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "testing/chain.h"
#include "testing/node/scripted_node.h"

namespace aquifer {
namespace {

constexpr uint64_t kExtentBytes = uint64_t{64} << 10;
constexpr uint64_t kSlotBytes = 4096;

class RemoteCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(node_.Greet([this] {
      auto cache = Connect({.socket = node_.socket()}, {});
      ASSERT_TRUE(cache.ok()) << cache.status().ToString();
      cache_ = *std::move(cache);
    }));
  }
  void TearDown() override {
    node_.Die();  // The destructor has nothing to wait for.
    cache_.reset();
  }

  // Waits until the link thread has an event for the caller.
  void AwaitEvent() {
    pollfd ready{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
  }
  // Reads the next request, which must be of this kind, and returns its number.
  uint64_t TakeRequest(FrameKind kind) {
    const std::optional<FrameHeader> header = node_.Next();
    EXPECT_TRUE(header.has_value());
    if (!header.has_value()) return 0;
    EXPECT_EQ(header->kind, static_cast<uint16_t>(kind));
    return header->number;
  }
  // Lends one block for each key, all in one extent.
  void FetchAll(FetchRequest* fetch, std::span<const Key> keys) {
    fetch->chain.keys = keys;
    cache_->Fetch(fetch);
    const auto count = static_cast<uint32_t>(keys.size());
    node_.Answer(TakeRequest(FrameKind::kFetch), count, [&](FrameWriter* to) {
      for (uint32_t i = 0; i < count; ++i) {
        Encode(FetchAnswer{.slot = {.extent = 1, .offset = 0, .bytes = kSlotBytes},
                           .lease = ++lent_,
                           .checksum = {}},
               to);
      }
    });
    cache_->Wait(*fetch);
    ASSERT_TRUE(fetch->ops[0].status.ok()) << fetch->ops[0].status.ToString();
  }
  // Holds more leases than fit in the ring when they are given back one by one.
  std::vector<LeaseId> HoldMany() {
    node_.Offer(1, kExtentBytes, kExtentBytes);
    const std::vector<Key> keys(512);
    std::vector<LeaseId> leases;
    for (int i = 0; i < 8; ++i) {
      FetchRequest fetch;
      FetchAll(&fetch, keys);
      for (const FetchOp& op : fetch.ops) leases.push_back(op.lease);
    }
    return leases;
  }
  void ReleaseOneByOne(const std::vector<LeaseId>& leases) {
    for (const LeaseId lease : leases) {
      const ReleaseOp release{.lease = lease};
      cache_->Release(std::span(&release, 1));
      cache_->Release(std::span(&release, 1));  // Nobody has this lease by now.
    }
  }
  // Makes a reservation, in an extent of its own.
  ReservationId ReserveOne() {
    ReserveRequest reserve;
    reserve.chain.keys = keys_;
    cache_->Reserve(&reserve);
    node_.Offer(2, kExtentBytes, kExtentBytes);
    node_.Answer(TakeRequest(FrameKind::kReserve), 1, [](FrameWriter* to) {
      Encode(ReserveAnswer{.outcome = ReserveOutcome::kSlot,
                           .slot = {.extent = 2, .offset = 0, .bytes = kSlotBytes},
                           .reservation = 77},
             to);
    });
    cache_->Wait(reserve);
    EXPECT_EQ(reserve.ops[0].outcome, ReserveOutcome::kSlot);
    return reserve.ops[0].reservation;
  }
  void Lose() {
    node_.Die();
    ASSERT_NO_FATAL_FAILURE(AwaitEvent());
  }

  ScriptedNode node_;
  std::unique_ptr<Cache> cache_;
  std::vector<Key> keys_{Key{}};
  LeaseId lent_ = 0;
};

TEST(RemoteCacheVersionTest, ANodeOneVersionOlderGetsHintsAsItKnowsThem) {
  for (const uint16_t version : {uint16_t{1}, kLocalVersion}) {
    ScriptedNode node;
    std::unique_ptr<Cache> cache;
    ASSERT_TRUE(node.Greet(
        [&] { cache = *Connect({.socket = node.socket()}, {}); },
        {.version = version, .max_requests = 16, .ring_data_bytes = ScriptedNode::kRingDataBytes}));
    const std::vector<Key> keys(1);
    SessionForecast forecast{.session = "s"};
    forecast.chain.keys = keys;
    forecast.durability = Durability::kDurable;
    forecast.return_seconds = 60;
    cache->Hint(forecast);
    ASSERT_TRUE(node.Sees(FrameKind::kHint));
    FrameReader body = node.Body();
    HintCall call;
    const Status decoded = Decode(&body, version, &call);
    EXPECT_TRUE(decoded.ok()) << version << ": " << decoded.ToString();
    EXPECT_EQ(call.session, "s");
    EXPECT_EQ(call.return_seconds, version == 1 ? 0 : 60);
    EXPECT_EQ(call.durability == Durability::kDurable, version != 1);
    node.Die();
  }
}

TEST_F(RemoteCacheTest, ALossChangesNoRequestBeforeThePoll) {
  FetchRequest fetch;
  fetch.chain.keys = keys_;
  cache_->Fetch(&fetch);
  TakeRequest(FrameKind::kFetch);
  ASSERT_NO_FATAL_FAILURE(Lose());
  // The link thread has seen it, and left the request to the caller.
  EXPECT_FALSE(fetch.done());
  EXPECT_TRUE(fetch.status.ok());
  EXPECT_TRUE(fetch.ops[0].status.ok());

  EXPECT_EQ(cache_->Poll(), 1u);
  EXPECT_TRUE(fetch.done());
  EXPECT_EQ(fetch.completed(), 1u);
  EXPECT_EQ(fetch.status.code(), Code::kUnavailable);
  EXPECT_EQ(fetch.ops[0].status.code(), Code::kUnavailable);
}

TEST_F(RemoteCacheTest, WithoutANodeEverythingIsMissingAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Lose());
  MatchRequest match;
  match.chain.keys = keys_;
  match.matched = 5;  // From an earlier answer.
  cache_->Match(&match);
  ReserveRequest reserve;
  reserve.chain.keys = keys_;
  cache_->Reserve(&reserve);
  EXPECT_FALSE(match.done());  // The request completes in Poll(), as always.
  EXPECT_EQ(cache_->Poll(), 2u);
  EXPECT_EQ(match.status.code(), Code::kUnavailable);
  EXPECT_EQ(match.matched, 0u);
  EXPECT_EQ(reserve.status.code(), Code::kUnavailable);
  EXPECT_EQ(reserve.ops[0].outcome, ReserveOutcome::kRefused);
}

TEST_F(RemoteCacheTest, AnswersSentBeforeTheEndCount) {
  MatchRequest match;
  match.chain.keys = keys_;
  cache_->Match(&match);
  MatchRequest open;
  open.chain.keys = keys_;
  cache_->Match(&open);
  node_.Answer(TakeRequest(FrameKind::kMatch), 0,
               [](FrameWriter* to) { Encode(MatchAnswer{.matched = 1}, to); });
  ASSERT_NO_FATAL_FAILURE(Lose());
  cache_->Wait(match);
  cache_->Wait(open);
  EXPECT_TRUE(match.status.ok());
  EXPECT_EQ(match.matched, 1u);
  EXPECT_EQ(open.status.code(), Code::kUnavailable);
}

TEST_F(RemoteCacheTest, ANodeThatMakesNoSenseIsLeftAndLookedForAgain) {
  node_.Offer(1, kExtentBytes, kExtentBytes);
  FetchRequest fetch;  // The caller holds a lease, so that the old link stays.
  ASSERT_NO_FATAL_FAILURE(FetchAll(&fetch, keys_));
  MatchRequest match;
  match.chain.keys = keys_;
  cache_->Match(&match);
  const uint64_t number = TakeRequest(FrameKind::kMatch);
  node_.Answer(number + 1, 0, [](FrameWriter*) {});
  cache_->Wait(match);
  EXPECT_EQ(match.status.code(), Code::kUnavailable);
  // Nothing happens on the old socket: the link thread must be woken.
  ASSERT_TRUE(node_.Greet([] {}));
  StatsRequest stats;
  do {  // Until the client knows of it, too.
    cache_->Stats(&stats);
    if (const auto header = node_.TryNext(); header.has_value()) {
      node_.Answer(header->number, 0, [](FrameWriter* to) { Encode(CacheStats{}, to); });
    }
    cache_->Wait(stats, 10'000'000);
  } while (!stats.done() || !stats.status.ok());
}

// ---- A node that hangs ----

TEST_F(RemoteCacheTest, AFetchIsLateThoughTheNodeHangsAndWhatComesLaterGoesBack) {
  FetchRequest fetch;
  fetch.chain.keys = keys_;
  fetch.timeout_nanos = 20'000'000;
  EXPECT_EQ(cache_->Poll(), 0u);
  cache_->Fetch(&fetch);
  const uint64_t number = TakeRequest(FrameKind::kFetch);
  // The caller is not in Wait(): the descriptor reports it, and the request changes in Poll()
  // alone.
  ASSERT_NO_FATAL_FAILURE(AwaitEvent());
  EXPECT_FALSE(fetch.done());
  EXPECT_EQ(cache_->Poll(), 1u);
  EXPECT_TRUE(fetch.done());
  EXPECT_EQ(fetch.completed(), 1u);
  EXPECT_TRUE(fetch.status.ok());
  EXPECT_EQ(fetch.ops[0].status.code(), Code::kLate);

  // The request is the caller's again, while the node still has the first one.
  cache_->Fetch(&fetch);
  const uint64_t second = TakeRequest(FrameKind::kFetch);
  EXPECT_NE(second, number);
  node_.Answer(number, 1, [](FrameWriter* to) {
    Encode(
        FetchAnswer{
            .slot = {.extent = 1, .offset = 0, .bytes = kSlotBytes}, .lease = 9, .checksum = {}},
        to);
  });
  EXPECT_TRUE(cache_->Wait(fetch));
  EXPECT_EQ(fetch.ops[0].status.code(), Code::kLate);
  EXPECT_EQ(fetch.ops[0].lease, 0u);
  ASSERT_TRUE(node_.Sees(FrameKind::kRelease));
  FrameReader body = node_.Body();
  std::vector<ReleaseOp> released;
  ASSERT_TRUE(Decode(&body, &released).ok());
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].lease, 9u);
}

TEST_F(RemoteCacheTest, BlocksThatCameBeforeTheNodeHungAreTheCallers) {
  node_.Offer(1, kExtentBytes, kExtentBytes);
  const std::vector<Key> keys(3);
  FetchRequest fetch;
  fetch.chain.keys = keys;
  fetch.timeout_nanos = 1'000'000'000;  // The first answer comes in time on a busy host, too.
  cache_->Fetch(&fetch);
  node_.BeginAnswer(TakeRequest(FrameKind::kFetch), 1, [](FrameWriter* to) {
    Encode(
        FetchAnswer{
            .slot = {.extent = 1, .offset = 0, .bytes = kSlotBytes}, .lease = 9, .checksum = {}},
        to);
  });
  EXPECT_TRUE(cache_->Wait(fetch));
  EXPECT_EQ(fetch.completed(), keys.size());
  EXPECT_TRUE(fetch.ops[0].status.ok());
  EXPECT_EQ(fetch.ops[0].bytes.size(), kSlotBytes);
  EXPECT_EQ(fetch.ops[1].status.code(), Code::kLate);
  EXPECT_EQ(fetch.ops[2].status.code(), Code::kLate);
}

TEST_F(RemoteCacheTest, ACancelledRequestIsDoneThoughTheNodeHangs) {
  ReserveRequest reserve;
  reserve.chain.keys = keys_;
  cache_->Reserve(&reserve);
  const uint64_t number = TakeRequest(FrameKind::kReserve);
  cache_->Cancel(&reserve);
  EXPECT_TRUE(cache_->Wait(reserve));
  EXPECT_EQ(reserve.status.code(), Code::kLate);
  EXPECT_EQ(reserve.ops[0].outcome, ReserveOutcome::kRefused);

  node_.Answer(number, 1, [](FrameWriter* to) {
    Encode(ReserveAnswer{.outcome = ReserveOutcome::kSlot,
                         .slot = {.extent = 2, .offset = 0, .bytes = kSlotBytes},
                         .reservation = 77},
           to);
  });
  cache_->Poll();
  ASSERT_TRUE(node_.Sees(FrameKind::kAbort));
  FrameReader body = node_.Body();
  std::vector<ReservationId> aborted;
  ASSERT_TRUE(Decode(&body, &aborted).ok());
  EXPECT_EQ(aborted, std::vector<ReservationId>{77});
}

TEST_F(RemoteCacheTest, ACancelledCommitIsDoneThoughTheNodeHangsAndItsSlotGoesBack) {
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = ReserveOne();
  cache_->Commit(&commit);
  const uint64_t number = TakeRequest(FrameKind::kCommit);
  cache_->Cancel(&commit);
  EXPECT_TRUE(cache_->Wait(commit));
  EXPECT_EQ(commit.status.code(), Code::kLate);
  EXPECT_EQ(commit.ops[0].status.code(), Code::kLate);
  EXPECT_FALSE(commit.ops[0].published);
  EXPECT_TRUE(node_.Sees(FrameKind::kAbort));

  // A late answer of the node changes nothing, and breaks nothing.
  node_.Answer(number, 1, [](FrameWriter* to) {
    Encode(CommitAnswer{.code = Code::kOk, .published = true, .over = true}, to);
  });
  cache_->Poll();
  EXPECT_FALSE(commit.ops[0].published);
  MatchRequest match;
  match.chain.keys = keys_;
  cache_->Match(&match);
  EXPECT_TRUE(node_.Sees(FrameKind::kMatch));
}

// The node may have hung since: only its reading can tell.
TEST_F(RemoteCacheTest, ANodeThatTookEverythingAndDoesNotAnswerIsAskedWhetherItIsThere) {
  MatchRequest match;
  match.chain.keys = keys_;
  cache_->Match(&match);
  TakeRequest(FrameKind::kMatch);
  const std::optional<FrameHeader> asked = node_.Next();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->kind, static_cast<uint16_t>(FrameKind::kCancel));
  EXPECT_EQ(asked->number, 0u);
  EXPECT_FALSE(cache_->Wait(match, 0));
  Lose();
  cache_->Wait(match);
}

// ---- What is given back ----

TEST_F(RemoteCacheTest, ReturnsReachASlowNodeThoughNobodyPolls) {
  const std::vector<LeaseId> leases = HoldMany();
  ReleaseOneByOne(leases);
  for (size_t seen = 0; seen < leases.size(); ++seen) ASSERT_TRUE(node_.Sees(FrameKind::kRelease));
}

TEST_F(RemoteCacheTest, ReturnsReachANodeThatCutUsOff) {
  const std::vector<LeaseId> leases = HoldMany();
  node_.CutOff();
  ASSERT_NO_FATAL_FAILURE(AwaitEvent());
  cache_->Poll();
  ReleaseOneByOne(leases);
  std::vector<ReleaseOp> released;
  std::optional<FrameHeader> header;
  while (header = node_.Next(), header.has_value()) {
    if (header->kind == static_cast<uint16_t>(FrameKind::kGoodbye)) break;
    if (header->kind != static_cast<uint16_t>(FrameKind::kRelease)) continue;
    FrameReader body = node_.Body();
    ASSERT_TRUE(Decode(&body, &released).ok());
  }
  EXPECT_TRUE(header.has_value()) << "no goodbye";
  ASSERT_EQ(released.size(), leases.size());
  for (size_t i = 0; i < released.size(); ++i) EXPECT_EQ(released[i].lease, i + 1);
  EXPECT_TRUE(node_.IsLeft());
}

TEST_F(RemoteCacheTest, AClientThatHoldsNothingLeavesThoughNobodyPolls) {
  node_.CutOff();
  EXPECT_TRUE(node_.Sees(FrameKind::kGoodbye));
  EXPECT_TRUE(node_.IsLeft());
}

TEST_F(RemoteCacheTest, ACommitIntoAVoidReservationGivesItBackAndTheLinkGoes) {
  const ReservationId reservation = ReserveOne();
  node_.CutOff();
  ASSERT_NO_FATAL_FAILURE(AwaitEvent());
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = reservation;
  cache_->Commit(&commit);
  cache_->Wait(commit);
  EXPECT_EQ(commit.ops[0].status.code(), Code::kInvalid);
  ASSERT_TRUE(node_.Sees(FrameKind::kAbort));
  FrameReader body = node_.Body();
  std::vector<ReservationId> aborted;
  ASSERT_TRUE(Decode(&body, &aborted).ok());
  EXPECT_EQ(aborted, std::vector<ReservationId>{77});
  EXPECT_TRUE(node_.Sees(FrameKind::kGoodbye));
  EXPECT_TRUE(node_.IsLeft());
}

TEST_F(RemoteCacheTest, BlocksInMemoryThatCannotBeMappedAreMissesAndGoBack) {
  FetchRequest fetch;
  fetch.chain.keys = keys_;
  for (int i = 0; i < 3; ++i) {
    cache_->Fetch(&fetch);
    if (i == 0) node_.Offer(1, 2 * kExtentBytes, kExtentBytes);
    node_.Answer(TakeRequest(FrameKind::kFetch), 1, [](FrameWriter* to) {
      Encode(
          FetchAnswer{
              .slot = {.extent = 1, .offset = 0, .bytes = kSlotBytes}, .lease = 9, .checksum = {}},
          to);
    });
    cache_->Wait(fetch);
    EXPECT_TRUE(fetch.status.ok()) << "the node is still there: " << fetch.status.ToString();
    EXPECT_EQ(fetch.ops[0].status.message(), "the shared memory has another size than announced");
    EXPECT_EQ(fetch.ops[0].lease, 0u);
    ASSERT_TRUE(node_.Sees(FrameKind::kRelease));
  }
}

// By then, other clients of the tenant may use all the layouts that a node remembers.
TEST_F(RemoteCacheTest, ALayoutThatTheNextNodeHasNoRoomForIsMissingUntilItHas) {
  RegisterLayoutRequest registered;
  registered.layout = LayoutOfBytes(kExtentBytes);
  cache_->RegisterLayout(&registered);
  node_.Answer(TakeRequest(FrameKind::kRegisterLayout), 0,
               [](FrameWriter* to) { Encode(CountsAnswer{.first = 5}, to); });
  cache_->Wait(registered);
  ASSERT_TRUE(registered.status.ok());
  ASSERT_NO_FATAL_FAILURE(Lose());

  ASSERT_TRUE(node_.Greet([] {}));
  node_.Refuse(TakeRequest(FrameKind::kRegisterLayout), Code::kBusy);
  MatchRequest match;
  match.chain = {.layout = registered.handle, .keys = keys_};
  cache_->Match(&match);
  cache_->Wait(match);
  EXPECT_EQ(match.status.code(), Code::kUnavailable) << match.status.ToString();

  ASSERT_TRUE(node_.Greet([] {}));  // The node comes again.
  node_.Answer(TakeRequest(FrameKind::kRegisterLayout), 0,
               [](FrameWriter* to) { Encode(CountsAnswer{.first = 9}, to); });
}

TEST_F(RemoteCacheTest, ALayoutThatTheNodeTookWithItIsKnownToTheNext) {
  RegisterLayoutRequest registered;
  registered.layout = LayoutOfBytes(kExtentBytes);
  cache_->RegisterLayout(&registered);
  const uint64_t number = TakeRequest(FrameKind::kRegisterLayout);
  node_.Answer(number, 0, [](FrameWriter* to) { Encode(CountsAnswer{.first = 5}, to); });
  ASSERT_NO_FATAL_FAILURE(Lose());
  cache_->Wait(registered);
  EXPECT_TRUE(registered.status.ok());
  ASSERT_NE(registered.handle, 0u);

  ASSERT_TRUE(node_.Greet([] {}));
  node_.Answer(TakeRequest(FrameKind::kRegisterLayout), 0,
               [](FrameWriter* to) { Encode(CountsAnswer{.first = 9}, to); });
  MatchRequest match;
  match.chain = {.layout = registered.handle, .keys = keys_};
  std::optional<FrameHeader> header;
  do {
    cache_->Match(&match);
    header = node_.TryNext();
    if (!header.has_value()) cache_->Wait(match, 10'000'000);
  } while (!header.has_value() && match.done());
  if (!header.has_value()) header = node_.Next();
  ASSERT_TRUE(header.has_value());
  FrameReader body = node_.Body();
  MatchCall call;
  ASSERT_TRUE(Decode(&body, &call).ok());
  EXPECT_EQ(call.chain.layout, 9u);
  Lose();
  cache_->Wait(match);
}

}  // namespace
}  // namespace aquifer
