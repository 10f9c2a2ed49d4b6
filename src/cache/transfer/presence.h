// What a durable tier has, as far as it was asked: searches along chains
// (policy/cost/chain_search.h), and their answers, remembered for a short while, so that a fetch
// which follows a match asks nothing, and what is not there is not asked for again at once.
//
// What is remembered is a table of fixed size by hashes of identities: an answer may be pushed out
// by another, and one in 2^40 or so may be another block's. Both cost a question or a miss, no
// more.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "aquifer/key.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "block/block_id.h"
#include "policy/cost/chain_search.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

// A run of one chain, in one kv group.
struct ChainNames {
  TenantId tenant;
  uint16_t group = 0;
  uint16_t part = 0;
  std::span<const Key> keys{};

  BlockId id(size_t i) const {
    return {.tenant = tenant, .key = keys[i], .group = group, .part = part};
  }
};

struct PresenceStats {
  uint64_t looks = 0;  // Blocks that were asked for.
  uint64_t found = 0;
  uint64_t failed = 0;  // The tier could not say.
};

class Presence {
 public:
  enum class Answer : uint8_t { kUnknown, kThere, kAbsent };

  // A search covers at most so many keys.
  static constexpr size_t kMaxKeys = 4096;

  Presence(DurableTier* tier, uint64_t hash_seed, Executor* executor, Clock* clock);

  // As far as is remembered.
  Answer Recall(const BlockId& id) const;
  // Somebody learned it in another way.
  void Remember(const BlockId& id, bool there);
  // The block is being deleted. What the tier was asked before does not count any more.
  void OnErased(const BlockId& id) {
    ++erasures_;
    Remember(id, false);
  }
  // The same for more than can be named: nothing is remembered.
  void OnErasedMany() {
    ++erasures_;
    ++epoch_;
  }

  // Finds out how much of the chain is there, from its front, and remembers it. `on_done` runs
  // once, never from inside, also where the tier did not answer. The keys are copied.
  using OnFound = std::function<void(size_t found)>;
  void Find(const ChainNames& chain, OnFound on_done);

  // Nobody may ask the tier any more.
  void Close() { tier_ = nullptr; }

  const PresenceStats& stats() const { return stats_; }

 private:
  struct Search {
    BlockId common;  // But for the key.
    std::vector<Key> keys;
    ChainSearch search;
    bool sure = true;
    size_t remembered = 0;
    uint64_t erasures = 0;  // When it began.
    OnFound on_done;

    BlockId id(size_t position) const {
      BlockId id = common;
      id.key = keys[position];
      return id;
    }
  };
  // Which answer of which search.
  struct Asker {
    uint64_t search = 0;
    size_t place = 0;  // In its round.
  };
  struct Slot {
    uint64_t hash = 0;
    int64_t until_nanos = 0;
    uint32_t epoch = 0;
    bool there = false;
  };
  struct LookBatch {
    Batch<LookOp> batch;
    uint64_t erasures = 0;  // When it was sent.
  };

  void RunRound(uint64_t number);
  void OnLooked(LookBatch* look);
  void Tell(const BlockId& id, Answer answer);
  void Finish(uint64_t number);
  void RememberSlice(uint64_t number);
  // The few slots that an answer may be in.
  std::span<const Slot> SlotsOf(uint64_t hash) const;
  void PostToSelf(Task task);

  DurableTier* tier_;
  Executor* const executor_;
  Clock* const clock_;
  const BlockHash hash_;
  std::vector<Slot> slots_;
  uint32_t epoch_ = 0;     // Slots of an earlier one say nothing.
  uint64_t erasures_ = 0;  // Counts them.
  std::map<uint64_t, Search> searches_;
  uint64_t next_search_ = 1;
  std::map<BlockId, std::vector<Asker>> asked_;  // At the tier now, and who wants to know.
  std::map<LookBatch*, std::unique_ptr<LookBatch>> batches_;  // lookup only: never walked
  PresenceStats stats_;
  TaskScope tasks_{executor_};
};

}  // namespace aquifer
