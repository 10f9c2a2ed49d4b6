// When fetches are answered, and with what, as time goes by.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/request_progress.h"
#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class CoreRecallTest : public CoreFixture {
 protected:
  static constexpr int64_t kMillisecond = 1'000'000;

  static size_t Count(const FetchRequest& fetch, Code code) {
    return static_cast<size_t>(
        std::count_if(fetch.ops.begin(), fetch.ops.end(),
                      [code](const FetchOp& op) { return op.status.code() == code; }));
  }
};

// The owner is slow: a millisecond for each task.
TEST_F(CoreRecallTest, AFetchFromMemoryAloneKeepsItsDeadlineToo) {
  Make(SmallCache(1024, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 1024});
  ASSERT_EQ(Store(chain), 1024u);
  world_->after_task = [this] { world_->clock().Advance(kMillisecond); };
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  fetch.timeout_nanos = 5 * kMillisecond;
  const int64_t begun = world_->clock().NowNanos();
  client_->Submit(&Core::Fetch, &fetch);
  world_->Run();
  world_->after_task = {};
  ASSERT_TRUE(fetch.done());
  EXPECT_LE(world_->clock().NowNanos() - begun, 10 * kMillisecond);
  EXPECT_GT(Count(fetch, Code::kOk), 0u);
  EXPECT_GT(Count(fetch, Code::kLate), 0u);
  EXPECT_EQ(Count(fetch, Code::kOk) + Count(fetch, Code::kLate), 1024u);
  Release(fetch);
  EXPECT_EQ(Recall(chain), 1024u);
}

TEST_F(CoreRecallTest, ATimeoutCountsFromTheCallAndNotFromWhenTheOwnerHearsOfIt) {
  Make(SmallCache(64, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  for (const int64_t waited : {1, 20}) {
    FetchRequest fetch;
    fetch.chain = Slice(chain);
    fetch.timeout_nanos = 10 * kMillisecond;
    RequestProgress::Begin(&fetch);
    RequestProgress::SetCalled(&fetch, world_->clock().NowNanos());
    world_->Advance(waited * kMillisecond);
    world_->core().Fetch(client_->number(), &fetch);
    world_->Run();
    ASSERT_TRUE(fetch.done());
    EXPECT_EQ(Count(fetch, waited == 1 ? Code::kOk : Code::kLate), 8u);
    Release(fetch);
  }
}

TEST_F(CoreRecallTest, AnEarlierDeadlineIsKeptBesideALaterOne) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ASSERT_EQ(Store(chain), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk(kDrive).Hang(true);
  std::array<FetchRequest, 4> fetches;
  const std::array<int64_t, 4> timeouts = {900, 200, 40, 10};  // Each before all others.
  for (size_t i = 0; i < fetches.size(); ++i) {
    fetches[i].chain = Slice(chain);
    fetches[i].timeout_nanos = timeouts[i] * kMillisecond;
    client_->Submit(&Core::Fetch, &fetches[i]);
  }
  const int64_t begun = world_->clock().NowNanos();
  for (size_t i = fetches.size(); i-- > 0;) {
    world_->Advance(begun + timeouts[i] * kMillisecond - 1 - world_->clock().NowNanos());
    EXPECT_FALSE(fetches[i].done()) << timeouts[i];
    world_->Advance(1);
    EXPECT_TRUE(fetches[i].done()) << timeouts[i];
  }
  world_->disk(kDrive).Hang(false);
  world_->Run();
}

TEST_F(CoreRecallTest, ABlockThatExpiresWhileItIsLoadedIsNotServed) {
  CoreOptions options = SmallCache(64);
  TenantOptions tenant;
  tenant.name = "local";
  tenant.ttl_seconds = 10;
  options.cache.tenants = {tenant};
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ASSERT_EQ(Store(chain), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk(kDrive).Hang(true);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  client_->Submit(&Core::Fetch, &fetch);
  world_->Run();
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 12);
  world_->disk(kDrive).Hang(false);
  ASSERT_TRUE(world_->RunUntil([&] { return fetch.done(); }));
  EXPECT_EQ(fetch.ops[0].status.code(), Code::kNotFound);
}

}  // namespace
}  // namespace aquifer
