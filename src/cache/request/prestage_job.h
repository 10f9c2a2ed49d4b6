// Answers when the blocks of a chain or a session have been brought to DRAM, as far as a guess may
// take room there. Of a session that this node does not know, a durable tier may have a note with
// its keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "cache/request/cache_job.h"
#include "cache/request/chain_inquiry.h"
#include "cache/residency/chain_walk.h"
#include "cache/session/session_note.h"
#include "cache/transfer/loader.h"

namespace aquifer {

class PrestageJob final : public RequestJob<PrestageRequest, 6>, public LoadWaiter {
 public:
  explicit PrestageJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  void Drop() override { LetGo(); }
  bool Waits(uint64_t run) const override { return run == this->run(); }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

 private:
  void LetGo();
  // A slice of the session's chain; false when it is all there.
  bool Collect();
  // The same where durable tiers may have what is gone from here.
  bool CollectKeys();
  void StageKeys(uint16_t layout);
  size_t count() const;
  BlockRef Block(size_t i) const;
  void StageOne(BlockRef ref);
  // Whether one more block may be loaded ahead.
  bool Charge(uint64_t bytes);
  // The durable tiers: a session of which only they know, and blocks.
  void ReadNote();
  void OnNote(const Result<SessionNote>& note);
  void StageFurther(size_t i);
  void StageUnanswered();
  void PumpLoads();
  void MaybeEnd();
  void Finish();

  BlockName walk_;                   // The next of the session's blocks to be collected.
  std::deque<NotedBlock> blocks_;    // The session's, deepest first.
  ChainSlice chain_;                 // What is staged, where it is given by keys.
  uint16_t layout_ = 0;              // Of that.
  SessionNote note_;                 // Whose keys those are, where it is not the caller.
  std::optional<uint16_t> learned_;  // The note's layout, which is held.
  bool reading_note_ = false;
  bool noteless_ = false;  // There is none: what is here is all.
  ChainInquiry inquiry_;
  std::deque<size_t> unanswered_;  // Durable tiers are asked for these.
  size_t cursor_ = 0;              // From the root on.
  size_t open_ = 0;
  uint64_t block_bytes_ = 0;  // Charged for each of the open ones.
  bool capped_ = false;       // Not all may be loaded ahead.
  int64_t deadline_nanos_ = 0;
  bool in_slice_ = false;
  bool collected_ = false;
  bool timer_set_ = false;
};

}  // namespace aquifer
