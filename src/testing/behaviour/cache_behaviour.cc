#include "testing/behaviour/cache_behaviour.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/check.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

std::unique_ptr<Cache> MustHave(Result<std::unique_ptr<Cache>> result) {
  if (!result.ok()) ADD_FAILURE() << result.status().ToString();
  AQ_CHECK(result.ok());  // No test can go on without a cache.
  return *std::move(result);
}

std::string_view NameOf(const MatchRun& run) {
  if (run.state == RunState::kBeingFilled) return "being filled";
  if (run.state == RunState::kPending) return "pending";
  switch (run.tier) {
    case TierKind::kDram:
      return "dram";
    case TierKind::kNvme:
      return "nvme";
    case TierKind::kPeer:
      return "peer";
    case TierKind::kDurable:
      return "durable";
  }
  return "?";
}

}  // namespace

// A library without an instantiation makes no mistake.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CacheBehaviour);

CacheBehaviour::CacheBehaviour() = default;
CacheBehaviour::~CacheBehaviour() { Stop(); }

void CacheBehaviour::SetUp() {
  if (GetParam().nvme_engine != NvmeEngine::kUring) return;
  if (const Status status = ProbeUring(); !status.ok()) GTEST_SKIP() << status.ToString();
}

CacheOptions CacheBehaviour::Options() const {
  CacheOptions options;
  options.dram_bytes = 2 * kExtentBytes;
  if (has_nvme()) {
    options.nvme_directories = {scratch_.Sub("nvme")};
    options.nvme_bytes = 1024 * kMiB;
    options.nvme_engine = GetParam().nvme_engine;
  }
  return options;
}

void CacheBehaviour::Start(const Layout& layout, const CacheOptions& options,
                           const ClientOptions& client) {
  layout_ = layout;
  options_ = options;
  client_ = client;
  cache_ = MustHave(GetParam().open(options, client));
  engine_.emplace(cache_.get(), layout);
}

void CacheBehaviour::Restart() { Restart(options_); }

void CacheBehaviour::Restart(const CacheOptions& options) {
  Stop();
  Start(layout_, options, client_);
}

void CacheBehaviour::Stop() {
  engine_.reset();
  cache_.reset();
}

std::unique_ptr<Cache> CacheBehaviour::Join(const ClientOptions& client) {
  return MustHave(cache_->Join(client));
}

Chain CacheBehaviour::MakeChain(uint64_t seed, size_t blocks) const {
  return Chain(layout_, {.seed = seed, .blocks = blocks, .tenant = client_.tenant});
}

size_t CacheBehaviour::Crowd(TestEngine* engine, uint64_t bytes, const std::string& tenant) {
  constexpr size_t kBlocks = 16;
  const uint64_t chain_bytes = kBlocks * BlockBytes(engine->layout(), 0);
  size_t stored = 0;
  for (uint64_t done = 0; done < bytes; done += chain_bytes) {
    const Chain chain(engine->layout(),
                      {.seed = ++crowd_seed_, .blocks = kBlocks, .tenant = tenant});
    stored += has_nvme() ? engine->StorePatiently(chain) : engine->Store(chain);
  }
  return stored;
}

uint64_t CacheBehaviour::BytesOnDisk() const {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch_.path())) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

std::string Runs(const MatchRequest& match) {
  std::string text;
  for (const MatchRun& run : match.runs) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", NameOf(run), run.count);
  }
  return text;
}

}  // namespace aquifer
