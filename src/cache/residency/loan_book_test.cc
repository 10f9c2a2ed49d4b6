#include "cache/residency/loan_book.h"

#include <vector>

#include "testing/cache/residency_fixture.h"

namespace aquifer {
namespace {

class LoanBookTest : public ResidencyFixture {
 protected:
  LoanBookTest() {
    meters_.AddTenant(tenant_);
    book_.AddClient(0, tenant_, 1000);
    book_.AddClient(1, tenant_, 2000);
    book_.on_overdue = [this](ClientNumber client) { told_.push_back(client); };
  }
  BlockRef BeginFill(uint32_t position) {
    const BlockRef ref = AddFilling(position);
    fills_.Begin(ref, 1);
    fills_.Touch(ref);
    return ref;
  }

  CacheMeters meters_;
  FillTable fills_{residency_.get(), &clock_};
  LoanBook book_{{.max_loans_per_client = 3,
                  .residency = residency_.get(),
                  .fills = &fills_,
                  .meters = &meters_,
                  .clock = &clock_}};
  std::vector<ClientNumber> told_;
};

TEST_F(LoanBookTest, ALoanKeepsItsBlockUntilItEnds) {
  const BlockRef ref = AddResident(0);
  const uint64_t lease = book_.Lend(0, ref, false);
  ASSERT_NE(lease, 0u);
  EXPECT_EQ(book_.lent(), 1u);
  residency_->Drop(ref, Leave::kAsked);
  EXPECT_EQ(StateOf(ref), BlockState::kGone) << "a reader has it";
  book_.End(book_.Find(0, lease, false));
  EXPECT_FALSE(residency_->index().Exists(ref));
  EXPECT_EQ(book_.lent(), 0u);
  EXPECT_EQ(dram_->usage().slot_bytes, 0u);
}

TEST_F(LoanBookTest, ALoanIsFoundByItsClientAloneAndAsWhatItIs) {
  const uint64_t lease = book_.Lend(0, AddResident(0), false);
  EXPECT_NE(book_.Find(0, lease, false), nullptr);
  EXPECT_EQ(book_.Find(0, lease, true), nullptr);
  EXPECT_EQ(book_.Find(1, lease, false), nullptr);
  EXPECT_EQ(book_.Find(0, lease + 1, false), nullptr);
  EXPECT_EQ(book_.Find(0, 0, false), nullptr);
}

TEST_F(LoanBookTest, ANameIsNeverUsedTwice) {
  const BlockRef ref = AddResident(0);
  const uint64_t first = book_.Lend(0, ref, false);
  book_.End(book_.Find(0, first, false));
  const uint64_t second = book_.Lend(0, ref, false);
  EXPECT_NE(first, second);
  EXPECT_EQ(book_.Find(0, first, false), nullptr);
}

TEST_F(LoanBookTest, AClientIsLentOnlySoMuch) {
  const BlockRef ref = AddResident(0);
  for (int i = 0; i < 3; ++i) EXPECT_NE(book_.Lend(0, ref, false), 0u);
  EXPECT_TRUE(book_.full(0));
  EXPECT_EQ(book_.Lend(0, ref, false), 0u);
  EXPECT_NE(book_.Lend(1, ref, false), 0u);
  EXPECT_EQ(book_.lent_to(tenant_), 4u);
}

TEST_F(LoanBookTest, OneRankThatAbortsVoidsTheBlockForAll) {
  const BlockRef ref = BeginFill(0);
  const uint64_t one = book_.Lend(0, ref, true);
  const uint64_t other = book_.Lend(1, ref, true);
  book_.Abort(book_.Find(0, one, true));
  EXPECT_EQ(meters_.all().aborted, 1u);
  EXPECT_EQ(StateOf(ref), BlockState::kGone);
  EXPECT_FALSE(book_.IsOpen(*book_.Find(1, other, true)));
  EXPECT_GT(dram_->usage().quarantined_bytes, 0u) << "the other may still write";
  book_.Abort(book_.Find(1, other, true));
  EXPECT_EQ(meters_.all().aborted, 1u) << "it was void already";
  EXPECT_EQ(dram_->usage().quarantined_bytes, 0u);
}

TEST_F(LoanBookTest, ACutOffClientLosesItsReservationsAndKeepsItsLeases) {
  const uint64_t lease = book_.Lend(0, AddResident(0), false);
  const BlockRef filling = BeginFill(1);
  book_.Lend(0, filling, true);
  book_.Lend(0, BeginFill(2), true);
  book_.BeginVoiding(0);
  EXPECT_TRUE(book_.VoidSome(1));
  EXPECT_FALSE(book_.VoidSome(10));
  EXPECT_EQ(StateOf(filling), BlockState::kGone);
  EXPECT_EQ(book_.lent(), 3u) << "it may still touch them";
  EXPECT_NE(book_.Find(0, lease, false), nullptr);
}

TEST_F(LoanBookTest, WhatAClientHeldComesBackASliceAtATime) {
  book_.Lend(0, AddResident(0), false);
  book_.Lend(0, BeginFill(1), true);
  book_.Lend(0, AddResident(2), false);
  bool done = false;
  book_.BeginReturning(0, [&] { done = true; });
  EXPECT_TRUE(book_.ReturnSome(2));
  EXPECT_FALSE(done);
  EXPECT_FALSE(book_.ReturnSome(2));
  EXPECT_TRUE(done);
  EXPECT_EQ(book_.lent(), 0u);
  EXPECT_EQ(residency_->index().Find(NameOf(1)), BlockRef{kNoBlock});
}

TEST_F(LoanBookTest, OverdueLeasesAreCountedOnceAndStay) {
  const uint64_t lease = book_.Lend(0, AddResident(0), false);
  clock_.Advance(100);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(book_.LookForOverdue(clock_.NowNanos() - 50));
  EXPECT_EQ(meters_.all().overdue_leases, 1u);
  EXPECT_EQ(told_, std::vector<ClientNumber>{0});
  EXPECT_NE(book_.Find(0, lease, false), nullptr);
}

TEST_F(LoanBookTest, OverdueReservationsAreVoid) {
  const BlockRef ref = BeginFill(0);
  const uint64_t reservation = book_.Lend(1, ref, true);
  clock_.Advance(100);
  book_.LookForOverdue(clock_.NowNanos() - 50);
  EXPECT_EQ(meters_.all().overdue, 1u);
  EXPECT_EQ(meters_.all().overdue_leases, 0u);
  EXPECT_EQ(told_, std::vector<ClientNumber>{1});
  ASSERT_NE(book_.Find(1, reservation, true), nullptr) << "its rank still holds the slot";
  EXPECT_FALSE(book_.IsOpen(*book_.Find(1, reservation, true)));
}

}  // namespace
}  // namespace aquifer
