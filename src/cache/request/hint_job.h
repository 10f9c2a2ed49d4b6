// Carries out what a caller said about a session: how likely it goes on, how long its blocks may be
// kept, and whether they are to be durable. Nobody waits for it, so it has no request.
#pragma once

#include <cstdint>
#include <optional>

#include "cache/request/cache_job.h"
#include "index/index.h"

namespace aquifer {

class HintJob final : public CacheJob {
 public:
  static constexpr size_t kKind = 9;
  explicit HintJob(CacheContext* cache) : CacheJob(cache, kKind) {}

  void Begin(const SessionForecast& forecast, const BlockName& head);
  void Run() override;
  void Cancel() override {}
  void Drop() override;

 private:
  // kNoBlock: the block is gone, and only known by its key.
  void ApplyTo(BlockRef ref, const Key& key);
  // Other chains go on from it too.
  bool IsShared(const Key& key) const;
  void Apply(BlockRef ref);
  uint32_t ExpiryOf(BlockRef ref) const;

  int8_t priority_ = 0;
  SessionHint outlook_ = SessionHint::kNone;
  int64_t ttl_seconds_ = 0;
  bool durable_ = false;      // The session's blocks are to be.
  bool shared_ = false;       // From here up they are other chains', too.
  std::optional<Key> below_;  // The session's block below walk_; nothing at its end.
  BlockName walk_;            // The next of the session's blocks, deepest first.
};

}  // namespace aquifer
