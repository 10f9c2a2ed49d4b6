// The contract of tier.h, over the NVMe tier: on disks in memory, and on real files by io_uring and
// by threads.
#include <condition_variable>
#include <mutex>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "io/disk/disk.h"
#include "testing/scratch_directory.h"
#include "tier/nvme/nvme_harness.h"
#include "tier/threaded_harness.h"
#include "tier/tier_contract.h"

namespace aquifer {
namespace {

// A real disk of a busy machine may take seconds, and does not hang.
NvmeTierOptions Patient(NvmeTierOptions options) {
  options.hang_nanos = 60'000'000'000;
  return options;
}

NvmeTierOptions TierOptions(const TierContractOptions& options) {
  NvmeTierOptions tier;
  tier.capacity_bytes = options.capacity_bytes;
  tier.max_block_bytes = options.max_block_bytes;
  tier.max_queued_ops = options.max_queued_ops;
  return tier;
}

// Real threads, real files.
class RealNvmeHarness final : public ThreadedHarness {
 public:
  RealNvmeHarness(const TierContractOptions& options, DiskEngine engine)
      : ThreadedHarness(SystemClock(), 100'000'000),
        options_(Patient(TierOptions(options))),
        engine_(engine) {
    Start();
  }
  ~RealNvmeHarness() override { Stop(); }

  Tier* tier() override { return tier_.get(); }
  std::vector<BlockMeta> Metas() override {
    std::vector<BlockMeta> metas;
    bool done = false;
    Do([&] {
      tier_->EnumerateInSlices([&](const BlockMeta& meta) { metas.push_back(meta); },
                               [&] { done = true; });
    });
    EXPECT_TRUE(RunUntil([&] { return done; }));
    return metas;
  }

 private:
  void Start() override {
    executor_ = NewThreadExecutor({}, SystemClock());
    workers_ = NewThreadWorkerPool(2, "aq-test");
    auto disk =
        OpenDisk({.directory = directory_.Sub("drive"), .engine = engine_}, executor_.get());
    AQ_CHECK(disk.ok());
    disk_ = std::move(*disk);
    Do([&] {
      auto tier = NewNvmeTier(options_, {disk_.get()}, nullptr, workers_.get(), executor_.get(),
                              SystemClock(), SystemRandom());
      AQ_CHECK(tier.ok());
      tier_ = std::move(*tier);
    });
    std::mutex mutex;
    std::condition_variable changed;
    bool recovered = false;
    Do([&] {
      tier_->Recover([&](const Status& status) {
        EXPECT_TRUE(status.ok()) << status.ToString();
        const std::lock_guard lock(mutex);
        recovered = true;
        changed.notify_one();
      });
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return recovered; });
  }

  void Stop() override {
    Do([&] { tier_.reset(); });
    disk_.reset();  // Waits for what is at the device; its completions are posted.
    StopThreads();
  }

  const ScratchDirectory directory_;
  const NvmeTierOptions options_;
  const DiskEngine engine_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<NvmeTier> tier_;
};

std::vector<TierContractParam> Params() {
  std::vector<TierContractParam> params;
  const auto in_memory = [](size_t drives, bool sync) {
    return [drives, sync](const TierContractOptions& options) -> std::unique_ptr<TierHarness> {
      NvmeTierOptions tier = TierOptions(options);
      tier.sync = sync;
      tier.capacity_bytes = std::max(tier.capacity_bytes, drives * 5 * options.max_block_bytes);
      return std::make_unique<NvmeHarness>(tier, drives);
    };
  };
  params.push_back({.name = "Memory", .make = in_memory(1, false), .reclaims = true});
  params.push_back({.name = "MemorySynced", .make = in_memory(1, true), .reclaims = true});
  params.push_back({.name = "ThreeDrives", .make = in_memory(3, false), .reclaims = true});
  params.push_back({.name = "Sealed",
                    .make = [](const TierContractOptions& options) -> std::unique_ptr<TierHarness> {
                      NvmeTierOptions tier = TierOptions(options);
                      tier.lossless = LosslessUse::kAlways;
                      return std::make_unique<NvmeHarness>(tier, 1, true);
                    },
                    .reclaims = true,
                    .enumerates = false});
  const auto real = [](DiskEngine engine) {
    return [engine](const TierContractOptions& options) -> std::unique_ptr<TierHarness> {
      return std::make_unique<RealNvmeHarness>(options, engine);
    };
  };
  params.push_back({.name = "Threads", .make = real(DiskEngine::kThreads), .reclaims = true});
  if (ProbeUring().ok()) {
    params.push_back({.name = "Uring", .make = real(DiskEngine::kUring), .reclaims = true});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Nvme, TierContract, testing::ValuesIn(Params()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aquifer
