// The contract of tier.h, over durable tiers on real stores with threads of their own: a directory,
// a Redis server and an S3 server on the loopback.
#include <atomic>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "store/posix/posix_store.h"
#include "store/redis/redis_store.h"
#include "store/s3/object_store.h"
#include "testing/blob_caller.h"
#include "testing/scratch_directory.h"
#include "testing/servers/redis_server.h"
#include "testing/servers/s3_server.h"
#include "tier/durable/durable_format.h"
#include "tier/durable/durable_tier.h"
#include "tier/test_keys.h"
#include "tier/threaded_harness.h"
#include "tier/tier_contract.h"

namespace aquifer {
namespace {

// Opens a store on one place, again and again.
using StoreOpener = std::function<std::unique_ptr<BlobStore>()>;

class RealDurableHarness final : public ThreadedHarness {
 public:
  RealDurableHarness(const DurableTierOptions& options, bool seal, StoreOpener open)
      : ThreadedHarness(SystemClock(), 1'000'000'000),
        options_(options),
        open_(std::move(open)),
        packer_({.keys = seal ? &keys_ : nullptr}, SystemClock(), SystemRandom()) {
    Start();
  }
  ~RealDurableHarness() override { Stop(); }

  Tier* tier() override { return tier_.get(); }

  Status Probe(const BlockId& id) override {
    Batch<LookOp> batch;
    batch.ops.push_back({.id = id, .status = {}, .meta = {}});
    bool done = false;
    batch.on_done = [&](Batch<LookOp>&) { done = true; };
    Do([&] { tier_->Look(&batch); });
    EXPECT_TRUE(RunUntil([&] { return done; }));
    return batch.ops[0].status;
  }

  uint64_t BlockCount() override { return Names().size(); }

  std::vector<BlockMeta> Metas() override {
    std::vector<BlockMeta> metas;
    for (const BlobName& name : Names()) {
      const AlignedBytes head(kBlobHeadBytes);
      const BlobRequest look =
          BlobCaller(store_.get())
              .Do({.kind = BlobKind::kLook, .name = name.name, .head = head.span()});
      EXPECT_TRUE(look.status.ok()) << look.status.ToString();
      const Result<BlockMeta> meta = DecodeHead(head.span().first<kBlobHeadBytes>());
      EXPECT_TRUE(meta.ok()) << meta.status().ToString();
      if (meta.ok()) metas.push_back(*meta);
    }
    return metas;
  }

 private:
  BlobStore::Names Names() {
    std::promise<Result<BlobStore::Names>> listed;
    store_->List("", "", 1000,
                 [&](Result<BlobStore::Names> names) { listed.set_value(std::move(names)); });
    Result<BlobStore::Names> names = listed.get_future().get();
    EXPECT_TRUE(names.ok()) << names.status().ToString();
    return names.ok() ? *names : BlobStore::Names();
  }

  void Start() override {
    executor_ = NewThreadExecutor({}, SystemClock());
    workers_ = NewThreadWorkerPool(2, "aq-test");
    store_ = open_();
    // A store may take a moment until it can be used.
    const auto answers = [&] {
      const Code code =
          BlobCaller(store_.get()).Do({.kind = BlobKind::kLook, .name = "probe"}).status.code();
      return code == Code::kNotFound;
    };
    while (!answers()) std::this_thread::yield();
    Do([&] {
      auto tier = NewDurableTier(options_, store_.get(), &packer_, nullptr, workers_.get(),
                                 executor_.get(), SystemClock(), SystemRandom());
      AQ_CHECK(tier.ok());
      tier_ = std::move(*tier);
    });
  }

  void Stop() override {
    Do([&] { tier_.reset(); });
    store_.reset();  // Ends what it has under way; the completions are posted.
    StopThreads();
  }

  const DurableTierOptions options_;
  const StoreOpener open_;
  TestKeys keys_;
  Packer packer_;
  std::unique_ptr<BlobStore> store_;
  std::unique_ptr<DurableTier> tier_;
};

std::unique_ptr<BlobStore> Must(Result<std::unique_ptr<BlobStore>> store) {
  AQ_CHECK(store.ok());
  return *std::move(store);
}

// A directory of its own for each harness.
StoreOpener PosixOpener(uint64_t max_block_bytes) {
  return [max_block_bytes, directory = std::make_shared<ScratchDirectory>()] {
    PosixStoreOptions options;
    options.directory = directory->Sub("blobs");
    options.grant_bytes = 2 * max_block_bytes + (uint64_t{8} << 20);
    options.capacity_bytes = 16 * options.grant_bytes;
    options.read_threads = options.write_threads = 4;
    return Must(NewPosixStore(options));
  };
}

std::string NewPrefix() {
  static std::atomic<int> next = 0;
  return "t" + std::to_string(next++);
}

StoreOpener RedisOpener() {
  static RedisServer* const server = new RedisServer;  // It ends with this process.
  return [prefix = NewPrefix() + ":"] {
    RedisStoreOptions options;
    options.servers = {server->address()};
    options.prefix = prefix;
    return Must(NewRedisStore(options));
  };
}

StoreOpener ObjectOpener() {
  static S3Server* const server = new S3Server;  // It ends with this process.
  return [prefix = NewPrefix() + "/"] {
    BucketOptions options = server->Options();
    options.prefix = prefix;
    return Must(NewObjectStore(options, SystemClock(), SystemRandom()));
  };
}

// Not where libcurl was missing.
bool CanSpeakS3() {
  const BucketOptions nowhere = S3Server::OptionsFor("http://127.0.0.1:1");
  return NewObjectStore(nowhere, SystemClock(), SystemRandom()).ok();
}

TierContractParam Param(const std::string& name, bool seal,
                        const std::function<StoreOpener(const TierContractOptions&)>& opener) {
  return {
      .name = name,
      .make = [seal, opener](const TierContractOptions& options) -> std::unique_ptr<TierHarness> {
        DurableTierOptions tier;
        tier.max_queued_ops = options.max_queued_ops;
        tier.max_block_bytes = options.max_block_bytes;
        tier.lossless = LosslessUse::kAlways;
        tier.stall_nanos = 60'000'000'000;  // A busy machine is no silent store.
        return std::make_unique<RealDurableHarness>(tier, seal, opener(options));
      },
      .enumerates = false,
      .counts_bytes = false};
}

std::vector<TierContractParam> Params() {
  const auto posix = [](const TierContractOptions& options) {
    return PosixOpener(options.max_block_bytes);
  };
  std::vector<TierContractParam> params = {Param("Posix", false, posix),
                                           Param("PosixSealed", true, posix)};
  if (HasRedisServer()) {
    params.push_back(
        Param("RedisSealed", true, [](const TierContractOptions&) { return RedisOpener(); }));
  }
  if (CanSpeakS3() && !S3Server::ProgramPath(S3Program::kVersity).empty()) {
    params.push_back(
        Param("ObjectSealed", true, [](const TierContractOptions&) { return ObjectOpener(); }));
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Real, TierContract, testing::ValuesIn(Params()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aquifer
