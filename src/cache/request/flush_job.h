// Answers when all that the client's tenant has committed is on NVMe, or in a durable tier, or why
// it does not get there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cache/request/cache_job.h"
#include "cache/residency/flush_waits.h"
#include "index/index.h"

namespace aquifer {

class FlushJob final : public RequestJob<FlushRequest, 4> {
 public:
  explicit FlushJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override {
    path_ = ChoosePath();
    flush_ = {};
    durable_flush_.clear();
    cursor_ = 0;
    others_ = 0;
    counting_ = false;
    timer_set_ = false;
    asked_again_ = unanswered_ = false;
  }
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  void Drop() override;

 private:
  enum class Path : uint8_t {
    kNvme,      // Then to the durable tiers, where something of the tenant's is to be durable.
    kDurable,   // Only there.
    kSessions,  // The same, of what is to be durable; the tenant has more, and there is no drive.
  };
  Path ChoosePath() const;
  bool Usable() const;
  std::string WhyNot(TierKind tier);  // Why nothing can be flushed to it, and what to do.

  // Some of it is to be in a durable tier.
  bool WantsDurable() const;
  void FlushDurable();
  // Says whether that was all.
  void CountOthers();
  // Whose some of the tenant's blocks are is not known, which may decide whether they are durable.
  bool SomeUnanswered() const;
  void Finish(Status status);

  Path path_ = Path::kNvme;
  FlushWaits::Id flush_;
  DurableTiers::FlushId durable_flush_;
  BlockRef cursor_ = 0;  // In the index: blocks that nobody added are added, or the others counted.
  size_t others_ = 0;    // That are in memory alone.
  bool counting_ = false;
  bool timer_set_ = false;
  bool asked_again_ = false;
  bool unanswered_ = false;  // After that, too: it cannot be ok.
};

}  // namespace aquifer
