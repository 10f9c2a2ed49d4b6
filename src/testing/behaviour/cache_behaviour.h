// The promises of include/aquifer/cache.h, as one suite of tests that every implementation runs:
//
//     INSTANTIATE_TEST_SUITE_P(Open, CacheBehaviour, testing::Values(CacheFactory{...}),
//                              CacheFactoryName);
//
// The tests are in cache_behaviour_*.cc, by theme, and use only the public headers. A program that
// instantiates them must link the library whole, because nothing else refers to the tests: LINK
// $<LINK_LIBRARY:WHOLE_ARCHIVE,aquifer_cache_behaviour>.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/scratch_directory.h"

namespace aquifer {

struct CacheFactory {
  std::string name;  // Letters and digits.
  // Opens a cache with these options, as its first client sees it. The cache is closed when its
  // last client is gone. The next call with the same directories finds their blocks.
  std::function<Result<std::unique_ptr<Cache>>(const CacheOptions&, const ClientOptions&)> open;
  bool has_nvme = false;
  NvmeEngine nvme_engine = NvmeEngine::kAuto;
};

inline std::string CacheFactoryName(const testing::TestParamInfo<CacheFactory>& info) {
  return info.param.name;
}
inline void PrintTo(const CacheFactory& factory, std::ostream* out) { *out << factory.name; }

class CacheBehaviour : public testing::TestWithParam<CacheFactory> {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;
  // The unit of DRAM: an extent holds blocks of one tenant and one size.
  static constexpr uint64_t kExtentBytes = 64 * kMiB;

  CacheBehaviour();
  ~CacheBehaviour() override;

  void SetUp() override;
  bool has_nvme() const { return GetParam().has_nvme; }

  // Two extents, and an NVMe tier in this test's own directory where there is one.
  CacheOptions Options() const;

  void Start(const Layout& layout, const CacheOptions& options, const ClientOptions& client = {});
  void Start(const Layout& layout) { Start(layout, Options()); }
  // Closes the cache and opens it again. Clients that joined must be gone.
  void Restart();
  void Restart(const CacheOptions& options);
  void Stop();

  // With engine(): another client of the same cache.
  std::unique_ptr<Cache> Join(const ClientOptions& client);

  Cache* cache() { return cache_.get(); }
  TestEngine& engine() { return *engine_; }
  const Layout& layout() const { return layout_; }
  Chain MakeChain(uint64_t seed, size_t blocks) const;

  // Stores chains that nobody knows, `bytes` altogether, so that others lose their place in DRAM.
  // Returns how many of their blocks were stored.
  size_t Crowd(TestEngine* engine, uint64_t bytes, const std::string& tenant = "local");

  // Bytes of all files in the NVMe directory.
  uint64_t BytesOnDisk() const;

 private:
  ScratchDirectory scratch_;
  Layout layout_;
  CacheOptions options_;
  ClientOptions client_;
  std::unique_ptr<Cache> cache_;
  std::optional<TestEngine> engine_;
  uint64_t crowd_seed_ = 1'000'000;
};

// The runs of a match as text, such as "dram 3, nvme 2, being filled 1".
std::string Runs(const MatchRequest& match);

}  // namespace aquifer
