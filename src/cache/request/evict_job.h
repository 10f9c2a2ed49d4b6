// Answers when blocks are deleted from every tier: a chain's, a session's, or all of a tenant's.
// Blocks that other chains or sessions share stay. A drive that has not been read deletes its
// copies when it has been; until then the answer is that some may be left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/request/cache_job.h"
#include "index/index.h"

namespace aquifer {

class EvictJob final : public RequestJob<EvictRequest, 7> {
 public:
  explicit EvictJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void Cancel() override {}  // A deletion is carried out.
  void Drop() override;

 private:
  // A slice of what is to go; false when that was all.
  bool DropSlice();
  bool DropEverythingSlice();
  bool DropSessionSlice();
  bool LookBelow();
  void DropBelow();
  bool DropNextOfSession();
  bool DropChainSlice();
  bool DropOne(BlockRef ref);
  void DropUnindexed();
  void Erase(const BlockId& id);
  void EraseElsewhere(const BlockName& name);
  void WaitForTiers();
  void WaitForDurable(const Status& status);
  void EndSweep();
  // What the durable tiers have of the tenant's may be found again.
  void Reopen();
  void Finish(Status status);

  BlockName walk_;          // The next of the session's blocks.
  std::optional<Key> own_;  // The one below that; nothing at its end.
  // What hangs below its last one: not looked at yet, and to be dropped, each below those before.
  std::vector<BlockName> unseen_;
  std::vector<BlockName> below_;
  size_t cursor_ = 0;
  size_t evicted_ = 0;
  bool sweeping_ = false;    // The drives' records are told so.
  bool closed_ = false;      // The tenant's blocks are not found in the durable tiers.
  bool lost_track_ = false;  // It is not known what came before walk_.
  bool unsure_ = false;      // More of what it deletes may come to light.
  size_t unremembered_ = 0;  // That a drive may hold which has not been read.
};

}  // namespace aquifer
