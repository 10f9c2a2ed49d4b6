// Names of blobs, and the contract of blob_store.h over the store that tests of tiers stand on: by
// itself, and as an executor's tasks.
#include "store/blob_store.h"

#include "store/blob_store_contract.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_blob_store.h"

namespace aquifer {
namespace {

TEST(BlobNameTest, NamesAreWhatEveryStoreTakes) {
  for (const std::string name : {"a", "0/00/ab-0-1", "a.b", "a/b.c-d"}) {
    EXPECT_TRUE(CheckBlobName(name).ok()) << name;
  }
  EXPECT_TRUE(CheckBlobName(std::string(512, 'a')).ok());
  EXPECT_FALSE(CheckBlobName(std::string(513, 'a')).ok());
  for (const std::string name : {"", "A", "a_b", "a b", "/a", "a/", "-a", ".a", "a.", "a//b",
                                 "a/../b", "a..b", "a./b", "a\n"}) {
    EXPECT_EQ(CheckBlobName(name).code(), Code::kInvalid) << name;
  }
}

class MemoryHarness : public BlobStoreHarness {
 public:
  std::unique_ptr<BlobStore> Open(size_t max_queued) override {
    return std::make_unique<Store>(this, max_queued);
  }
  int64_t NowNanos() override { return clock_.NowNanos(); }
  bool RunUntil(const std::function<bool()>& done) override { return done(); }
  bool CutShort(const std::string& name, uint64_t bytes) override {
    blobs_->Truncate(name, bytes);
    return true;
  }

 protected:
  // Known to the harness for as long as it lives.
  class Store final : public MemoryBlobStore {
   public:
    Store(MemoryHarness* harness, size_t max_queued)
        : MemoryBlobStore(harness->blobs_, {.max_queued = max_queued}, harness->executor(),
                          &harness->clock_),
          harness_(harness) {
      harness->stores_.push_back(this);
    }
    ~Store() override { std::erase(harness_->stores_, this); }

   private:
    MemoryHarness* const harness_;
  };

  virtual Executor* executor() { return nullptr; }

  ManualClock clock_;
  const std::shared_ptr<MemoryBlobs> blobs_ = std::make_shared<MemoryBlobs>();
  std::vector<MemoryBlobStore*> stores_;
};

class SteppedHarness final : public MemoryHarness {
 public:
  bool RunUntil(const std::function<bool()>& done) override {
    while (!done() && (executor_.RunOne() || executor_.RunNextTimer())) {
    }
    return done();
  }
  bool Hang(bool on) override {
    for (MemoryBlobStore* store : stores_) store->Hang(on);
    return true;
  }
  bool Disconnect(bool on) override {
    for (MemoryBlobStore* store : stores_) store->Fail(on ? Code::kUnavailable : Code::kOk);
    return true;
  }

 private:
  Executor* executor() override { return &executor_; }

  ManualExecutor executor_{&clock_};
};

std::vector<BlobStoreParam> Params() {
  return {{.name = "Inline", .make = [] { return std::make_unique<MemoryHarness>(); }},
          {.name = "Stepped",
           .make = [] { return std::make_unique<SteppedHarness>(); },
           .threads = false}};
}

INSTANTIATE_TEST_SUITE_P(Memory, BlobStoreContract, testing::ValuesIn(Params()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aquifer
