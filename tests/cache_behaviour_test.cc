// The behaviour suite over the cache in this process.
#include "testing/behaviour/cache_behaviour.h"

namespace aquifer {
namespace {

INSTANTIATE_TEST_SUITE_P(Open, CacheBehaviour,
                         testing::Values(CacheFactory{.name = "Dram", .open = Open},
                                         CacheFactory{.name = "NvmeByUring",
                                                      .open = Open,
                                                      .has_nvme = true,
                                                      .nvme_engine = NvmeEngine::kUring},
                                         CacheFactory{.name = "NvmeByThreads",
                                                      .open = Open,
                                                      .has_nvme = true,
                                                      .nvme_engine = NvmeEngine::kThreads}),
                         CacheFactoryName);

TEST(OpenTest, AFreshCacheTakesItsFirstBlockAtOnce) {
  CacheOptions options;
  options.dram_bytes = uint64_t{128} << 20;
  auto cache = Open(options, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(64 << 10));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 1});
  ReserveRequest reserve;
  reserve.chain = engine.Slice(chain);
  reserve.parent = chain.parent(0);
  (*cache)->Reserve(&reserve);
  engine.Finish(reserve);
  EXPECT_EQ(reserve.ops[0].refusal, Refusal::kNone);
  EXPECT_EQ(reserve.ops[0].slot.size(), size_t{64} << 10);
}

TEST(OpenTest, WrongOptionsAreRefusedByName) {
  const ScratchDirectory directory;
  const auto refuses = [](std::string_view field, auto spoil) {
    CacheOptions options;
    ClientOptions client;
    options.dram_bytes = uint64_t{64} << 20;
    spoil(&options, &client);
    const auto result = Open(options, client);
    if (result.ok()) return testing::AssertionFailure() << "it opened";
    if (result.status().code() != Code::kInvalid ||
        result.status().message().find(field) == std::string::npos) {
      return testing::AssertionFailure() << result.status().ToString();
    }
    return testing::AssertionSuccess();
  };
  EXPECT_TRUE(refuses("dram_bytes", [](auto* options, auto*) { options->dram_bytes = 0; }));
  for (const uint32_t threads : {0u, 1025u, UINT32_MAX}) {
    EXPECT_TRUE(refuses("worker_threads",
                        [&](auto* options, auto*) { options->worker_threads = threads; }));
  }
  EXPECT_TRUE(refuses("tenant", [](auto*, auto* client) { client->tenant.clear(); }));
  EXPECT_TRUE(
      refuses("tenant", [](auto*, auto* client) { client->tenant = std::string(65, 't'); }));
  EXPECT_TRUE(refuses("nvme_bytes", [&](auto* options, auto*) {
    options->nvme_directories = {directory.path()};
    options->nvme_bytes = 4096;
  }));
  EXPECT_TRUE(refuses("nvme_segment_bytes", [&](auto* options, auto*) {
    options->nvme_directories = {directory.path()};
    options->nvme_segment_bytes = 5000;
  }));
  for (const double part : {0.0, -1.0, 1.5}) {
    EXPECT_TRUE(refuses("nvme_written_part",
                        [&](auto* options, auto*) { options->nvme_written_part = part; }));
  }
  EXPECT_TRUE(refuses("nvme_directories", [&](auto* options, auto*) {
    options->nvme_directories = {directory.path(), directory.path() + "/"};
  }));
  EXPECT_TRUE(refuses("twice", [](auto* options, auto*) {
    options->tenants = {{.name = "twice"}, {.name = "twice"}};
  }));
}

}  // namespace
}  // namespace aquifer
