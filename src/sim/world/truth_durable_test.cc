// What the truth says of durable tiers: every rule is broken here once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "sim/world/truth.h"
#include "testing/manual_clock.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kBytes = 4096;

// Two nodes; tenant 0 is of durable class, tenant 1's blocks expire.
class TruthDurableTest : public testing::Test {
 protected:
  TruthDurableTest()
      : truth_({.tenants = {{.durable = true}, {.ttl_seconds = 100, .durable = true}},
                .stores = true,
                .has_lasting = true,
                .store_clock = &clock_},
               {&clock_, &clock_}) {}

  std::span<std::byte> Memory(size_t slot) {
    return std::span(memory_).subspan(slot * kBytes, kBytes);
  }
  Truth::RequestNumber Ask(uint32_t node) { return truth_.Asked("request", 1'000, node); }
  void Pass(int64_t seconds) {
    clock_.Advance(seconds * 1'000'000'000);
    clock_.SetUnixSeconds(clock_.UnixSeconds() + seconds);
  }

  Payload Store(BlockNumber block, size_t slot, uint32_t node) {
    const Truth::RequestNumber request = Ask(node);
    const Payload payload{.block = block,
                          .version = truth_.Reserved(block, Memory(slot), 1 + slot, request)};
    truth_.Answered(request);
    WritePayload(payload, Memory(slot));
    truth_.CommitSent(payload, Memory(slot));
    truth_.Committed(payload, true);
    return payload;
  }
  void Flush(uint32_t tenant, uint32_t node) {
    truth_.Flushed(tenant, 0, truth_.Moment(), Code::kOk,
                   {.node = node, .drives = false, .durable = true});
  }
  void Delete(BlockNumber block, uint32_t node) {
    const Truth::RequestNumber request = Ask(node);
    truth_.EvictSent(request, std::vector{block});
    truth_.Evicted(std::vector{block}, request);
    truth_.Answered(request);
  }
  void Miss(BlockNumber block, uint32_t node) {
    const Truth::RequestNumber request = Ask(node);
    truth_.Missed(block, request, true, true);
    truth_.Answered(request);
  }
  void Serve(BlockNumber block, size_t slot, uint32_t node) {
    const Truth::RequestNumber request = Ask(node);
    truth_.Served(block, Memory(slot), 1 + slot, request);
    truth_.Answered(request);
  }

  ManualClock clock_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kBytes);
  Truth truth_;
};

TEST_F(TruthDurableTest, WhatWasFlushedIsFoundByAnotherNodeThatHadTimeToHear) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  Miss(block, 1);
  Flush(0, 0);
  Miss(block, 1);  // It may have asked just before.
  EXPECT_THAT(truth_.violation(), IsEmpty());
  Pass(13);
  Miss(block, 1);
  EXPECT_THAT(truth_.violation(), HasSubstr("though a durable tier was said to have it"));
}

TEST_F(TruthDurableTest, NothingIsPromisedOfDamagedStoresUntilItIsStoredAgain) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  Flush(0, 0);
  truth_.StoresDamaged(clock_.NowNanos() + 60'000'000'000);
  Pass(61);
  Miss(block, 0);
  Flush(0, 0);
  Miss(block, 0);
  EXPECT_THAT(truth_.violation(), IsEmpty());
  Store(block, 1, 0);
  Flush(0, 0);
  Miss(block, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("though a durable tier was said to have it"));
}

TEST_F(TruthDurableTest, WhatExpiresIsPromisedForHalfOfItsTime) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0, 0);
  Flush(1, 0);
  Truth later = truth_;
  Miss(block, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("though a durable tier was said to have it"));
  Pass(51);
  later.Missed(block, later.Asked("request", 1'000, 0), true, true);
  EXPECT_THAT(later.violation(), IsEmpty());
}

TEST_F(TruthDurableTest, ADeletionHoldsForTheNodesThatHadNoCopy) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  Delete(block, 0);
  Serve(block, 0, 1);
  EXPECT_THAT(truth_.violation(), HasSubstr("after it was deleted"));
}

TEST_F(TruthDurableTest, ANodeThatHadACopyMayBringItBack) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  truth_.Touched(std::vector{block}, 1);
  Delete(block, 0);
  Serve(block, 0, 1);
  truth_.NodeReplaced(1);
  truth_.Released(Memory(0));
  Serve(block, 0, 0);
  EXPECT_THAT(truth_.violation(), IsEmpty());
}

TEST_F(TruthDurableTest, WhatADestroyedKeySealedIsGone) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  Flush(0, 0);
  const uint64_t moment = truth_.Moment();
  truth_.KeyDestroyed(0);
  Miss(block, 0);
  Serve(block, 0, 1);  // That node has not heard of it.
  truth_.Released(Memory(0));
  EXPECT_THAT(truth_.violation(), IsEmpty());
  truth_.KeyIsGone(0, moment, 1);
  Serve(block, 0, 1);
  EXPECT_THAT(truth_.violation(), HasSubstr("after its tenant's key was destroyed"));
}

TEST_F(TruthDurableTest, ASessionIsFoundByItsNameOnceItWasFlushed) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  truth_.SessionNamed(0, "session", std::vector{block}, 0, false);
  truth_.SessionFound("session", 0, Ask(0), 0, true);
  Flush(0, 0);
  Pass(13);
  truth_.SessionFound("session", 1, Ask(0), 0, true);
  EXPECT_THAT(truth_.violation(), IsEmpty());
  truth_.SessionFound("session", 0, Ask(1), 0, true);
  EXPECT_THAT(truth_.violation(), HasSubstr("are found by its name"));
}

TEST_F(TruthDurableTest, ASessionIsNotPromisedToANodeThatHeardOfItBefore) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0, 0);
  truth_.SessionFound("session", 0, Ask(1), 0, true);
  truth_.SessionNamed(0, "session", std::vector{block}, 0, false);
  Flush(0, 0);
  Pass(13);
  truth_.SessionFound("session", 0, Ask(1), 0, true);
  EXPECT_THAT(truth_.violation(), IsEmpty());
}

}  // namespace
}  // namespace aquifer
