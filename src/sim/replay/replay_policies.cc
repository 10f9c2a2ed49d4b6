// Policies from papers: LRU; LRU-2 (O'Neil, 1993); ARC (Megiddo and Modha, 2003); LIRS (Jiang and
// Zhang, 2002); S3-FIFO (Yang and others, 2023); and Belady's optimum, which knows the future. They
// see blocks, not chains: a request's blocks are used from the first on.
#include <algorithm>
#include <queue>
#include <set>
#include <utility>

#include "base/check.h"
#include "sim/replay/replay_policy.h"

namespace aquifer {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Lists over the same blocks; a block is in at most one of them.
class Links {
 public:
  explicit Links(uint32_t blocks) : nodes_(blocks) {}

  struct List {
    uint32_t newest = kNone;
    uint32_t oldest = kNone;
    uint32_t size = 0;
  };

  bool In(const List& list, uint32_t block) const { return nodes_[block].list == &list; }

  void PushNewest(List* list, uint32_t block) {
    Node& node = nodes_[block];
    AQ_CHECK(node.list == nullptr);
    node = {.newer = kNone, .older = list->newest, .list = list};
    (list->newest == kNone ? list->oldest : nodes_[list->newest].newer) = block;
    list->newest = block;
    ++list->size;
  }

  void Remove(uint32_t block) {
    Node& node = nodes_[block];
    List* const list = node.list;
    (node.newer == kNone ? list->newest : nodes_[node.newer].older) = node.older;
    (node.older == kNone ? list->oldest : nodes_[node.older].newer) = node.newer;
    --list->size;
    node = {};
  }

  uint32_t PopOldest(List* list) {
    const uint32_t block = list->oldest;
    Remove(block);
    return block;
  }

 private:
  struct Node {
    uint32_t newer = kNone;
    uint32_t older = kNone;
    List* list = nullptr;
  };
  std::vector<Node> nodes_;
};

// A policy that knows nothing of chains.
class BlockPolicy : public ReplayPolicy {
 public:
  explicit BlockPolicy(uint32_t capacity) : capacity_(capacity) {}

  uint32_t Use(const ReplayRequest&, std::span<const uint32_t> blocks) override {
    uint32_t hits = 0;
    while (hits < blocks.size() && Has(blocks[hits])) ++hits;
    for (const uint32_t block : blocks) UseBlock(block);
    return hits;
  }

 protected:
  virtual bool Has(uint32_t block) const = 0;
  virtual void UseBlock(uint32_t block) = 0;

  const uint32_t capacity_;
};

class Lru final : public BlockPolicy {
 public:
  Lru(uint32_t blocks, uint32_t capacity) : BlockPolicy(capacity), links_(blocks) {}

 private:
  bool Has(uint32_t block) const override { return links_.In(list_, block); }
  void UseBlock(uint32_t block) override {
    if (Has(block)) links_.Remove(block);
    if (list_.size == capacity_) links_.PopOldest(&list_);
    links_.PushNewest(&list_, block);
  }

  Links links_;
  Links::List list_;
};

// Blocks that were used once go first. Of the rest, the block whose second-last use is oldest goes
// first. Uses of absent blocks are remembered too.
class LruTwo final : public BlockPolicy {
 public:
  LruTwo(uint32_t blocks, uint32_t capacity) : BlockPolicy(capacity), uses_(blocks) {}

 private:
  struct Uses {
    uint64_t last = 0;
    uint64_t before = 0;  // 0: the block was used once at most.
    bool there = false;
  };
  using Rank = std::pair<std::pair<uint64_t, uint64_t>, uint32_t>;

  Rank RankOf(uint32_t block) const { return {{uses_[block].before, uses_[block].last}, block}; }

  bool Has(uint32_t block) const override { return uses_[block].there; }
  void UseBlock(uint32_t block) override {
    Uses& uses = uses_[block];
    if (uses.there) {
      order_.erase(RankOf(block));
    } else if (order_.size() == capacity_) {
      uses_[order_.begin()->second].there = false;
      order_.erase(order_.begin());
    }
    uses = {.last = ++now_, .before = uses.last, .there = true};
    order_.insert(RankOf(block));
  }

  uint64_t now_ = 0;
  std::vector<Uses> uses_;
  std::set<Rank> order_;
};

// A small queue holds new blocks. Blocks whose ghosts are hit go straight to the main queue.
class S3Fifo final : public BlockPolicy {
 public:
  S3Fifo(uint32_t blocks, uint32_t capacity)
      : BlockPolicy(capacity),
        small_capacity_(std::max(capacity / 10, 1u)),
        links_(blocks),
        uses_(blocks) {}

 private:
  static constexpr uint8_t kMaxUses = 3;

  bool Has(uint32_t block) const override {
    return links_.In(small_, block) || links_.In(main_, block);
  }

  void UseBlock(uint32_t block) override {
    if (Has(block)) {
      uses_[block] = std::min<uint8_t>(uses_[block] + 1, kMaxUses);
      return;
    }
    while (small_.size + main_.size >= capacity_) Evict();
    const bool ghost = links_.In(ghosts_, block);
    if (ghost) links_.Remove(block);
    links_.PushNewest(ghost ? &main_ : &small_, block);
    uses_[block] = 0;
  }

  void Evict() {
    if (small_.size >= small_capacity_ || main_.size == 0) {
      EvictSmall();
    } else {
      EvictMain();
    }
  }

  void EvictSmall() {
    const uint32_t block = links_.PopOldest(&small_);
    if (uses_[block] > 1) {
      links_.PushNewest(&main_, block);
      uses_[block] = 0;
      return;
    }
    if (ghosts_.size >= capacity_ - std::min(small_capacity_, capacity_ - 1)) {
      links_.PopOldest(&ghosts_);
    }
    links_.PushNewest(&ghosts_, block);
  }

  void EvictMain() {
    while (true) {
      const uint32_t block = links_.PopOldest(&main_);
      if (uses_[block] == 0) return;
      --uses_[block];
      links_.PushNewest(&main_, block);
    }
  }

  const uint32_t small_capacity_;
  Links links_;
  std::vector<uint8_t> uses_;
  Links::List small_;
  Links::List main_;
  Links::List ghosts_;
};

// Recency and frequency share the room, as hits of their ghosts suggest.
class Arc final : public BlockPolicy {
 public:
  Arc(uint32_t blocks, uint32_t capacity) : BlockPolicy(capacity), links_(blocks) {}

 private:
  bool Has(uint32_t block) const override {
    return links_.In(recent_, block) || links_.In(frequent_, block);
  }

  void UseBlock(uint32_t block) override {
    if (Has(block)) {
      links_.Remove(block);
    } else if (links_.In(recent_ghosts_, block)) {
      const double step = std::max(1.0, 1.0 * frequent_ghosts_.size / recent_ghosts_.size);
      recent_share_ = std::min<double>(capacity_, recent_share_ + step);
      Replace(false);
      links_.Remove(block);
    } else if (links_.In(frequent_ghosts_, block)) {
      const double step = std::max(1.0, 1.0 * recent_ghosts_.size / frequent_ghosts_.size);
      recent_share_ = std::max(0.0, recent_share_ - step);
      Replace(true);
      links_.Remove(block);
    } else {
      MakeRoom();
      links_.PushNewest(&recent_, block);
      return;
    }
    links_.PushNewest(&frequent_, block);
  }

  void MakeRoom() {
    const uint32_t first = recent_.size + recent_ghosts_.size;
    if (first == capacity_) {
      if (recent_.size == capacity_) {
        links_.PopOldest(&recent_);
        return;
      }
      links_.PopOldest(&recent_ghosts_);
      Replace(false);
      return;
    }
    const uint64_t all = uint64_t{first} + frequent_.size + frequent_ghosts_.size;
    if (all < capacity_) return;
    if (all >= 2 * uint64_t{capacity_}) links_.PopOldest(&frequent_ghosts_);
    Replace(false);
  }

  void Replace(bool from_frequent_ghosts) {
    if (recent_.size + frequent_.size < capacity_) return;
    const bool recent_pays =
        recent_.size > 0 &&
        (recent_.size > recent_share_ || (from_frequent_ghosts && recent_.size == recent_share_));
    if (recent_pays || frequent_.size == 0) {
      links_.PushNewest(&recent_ghosts_, links_.PopOldest(&recent_));
    } else {
      links_.PushNewest(&frequent_ghosts_, links_.PopOldest(&frequent_));
    }
  }

  Links links_;
  double recent_share_ = 0;
  Links::List recent_;
  Links::List frequent_;
  Links::List recent_ghosts_;
  Links::List frequent_ghosts_;
};

// Keeps the blocks whose last two uses lie closest together; the others pass through a hundredth of
// the room.
class Lirs final : public BlockPolicy {
 public:
  Lirs(uint32_t blocks, uint32_t capacity)
      : BlockPolicy(capacity),
        cold_capacity_(std::max(capacity / 100, 1u)),
        stack_links_(blocks),
        queue_links_(blocks),
        state_(blocks, State::kAbsent) {}

 private:
  enum class State : uint8_t { kAbsent, kHot, kCold };

  bool Has(uint32_t block) const override { return state_[block] != State::kAbsent; }
  uint32_t hot_capacity() const { return capacity_ - std::min(cold_capacity_, capacity_); }

  void UseBlock(uint32_t block) override {
    const bool stacked = stack_links_.In(stack_, block);
    if (state_[block] == State::kHot) {
      MoveToTop(block);
      Prune();
      return;
    }
    if (state_[block] == State::kCold) {
      queue_links_.Remove(block);
    } else {
      if (hot_ + queue_.size >= capacity_) EvictCold();
      if (hot_ < hot_capacity()) {
        MoveToTop(block);
        state_[block] = State::kHot;
        ++hot_;
        return;
      }
    }
    MoveToTop(block);
    if (stacked && hot_capacity() > 0) {
      state_[block] = State::kHot;
      ++hot_;
      if (hot_ > hot_capacity()) CoolOldest();
    } else {
      state_[block] = State::kCold;
      queue_links_.PushNewest(&queue_, block);
    }
  }

  void MoveToTop(uint32_t block) {
    if (stack_links_.In(stack_, block)) stack_links_.Remove(block);
    stack_links_.PushNewest(&stack_, block);
  }

  void EvictCold() {
    if (queue_.size == 0) CoolOldest();
    state_[queue_links_.PopOldest(&queue_)] = State::kAbsent;
  }

  void CoolOldest() {
    Prune();
    const uint32_t block = stack_links_.PopOldest(&stack_);
    state_[block] = State::kCold;
    --hot_;
    queue_links_.PushNewest(&queue_, block);
    Prune();
  }

  // The oldest block of the stack is always a hot one.
  void Prune() {
    while (stack_.size > 0 && state_[stack_.oldest] != State::kHot) stack_links_.PopOldest(&stack_);
  }

  const uint32_t cold_capacity_;
  Links stack_links_;
  Links queue_links_;
  std::vector<State> state_;
  // By recency: hot blocks, and others that were used since the oldest hot one.
  Links::List stack_;
  Links::List queue_;  // Cold blocks that are there.
  uint32_t hot_ = 0;
};

// Keeps the blocks that are used soonest. A block whose next use is later than all of theirs is not
// stored.
class Belady final : public ReplayPolicy {
 public:
  Belady(const ReplayTrace& trace, uint32_t capacity)
      : capacity_(capacity), next_(trace.blocks.size()), use_(trace.distinct, kAbsent) {
    std::vector<uint32_t> soonest(trace.distinct, kNever);
    for (size_t i = trace.requests.size(); i-- > 0;) {
      const ReplayRequest& request = trace.requests[i];
      for (uint64_t at = request.first; at < request.first + request.blocks; ++at) {
        next_[at] = soonest[trace.blocks[at]];
      }
      for (uint64_t at = request.first; at < request.first + request.blocks; ++at) {
        soonest[trace.blocks[at]] = static_cast<uint32_t>(i);
      }
    }
  }

  uint32_t Use(const ReplayRequest& request, std::span<const uint32_t> blocks) override {
    uint32_t hits = 0;
    while (hits < blocks.size() && use_[blocks[hits]] != kAbsent) ++hits;
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      const uint32_t block = blocks[i];
      const uint32_t next = next_[request.first + i];
      if (use_[block] == kAbsent) {
        if (next == kNever || !MakeRoom(next)) continue;
        ++size_;
      }
      use_[block] = next;
      latest_.push({next, i, block});
    }
    return hits;
  }

 private:
  static constexpr uint32_t kNever = UINT32_MAX - 1;
  static constexpr uint32_t kAbsent = UINT32_MAX;

  // Of blocks used at the same time the deepest goes first: the others are of use without it.
  struct Later {
    uint32_t next = 0;
    uint32_t position = 0;
    uint32_t block = 0;
    auto operator<=>(const Later&) const = default;
  };

  // Makes room for a block whose next use is at `next`. Returns false if all others are used before
  // that.
  bool MakeRoom(uint32_t next) {
    if (size_ < capacity_) return true;
    while (true) {
      const Later top = latest_.top();
      if (use_[top.block] != top.next) {  // The entry is of an earlier use.
        latest_.pop();
        continue;
      }
      if (top.next <= next) return false;
      latest_.pop();
      use_[top.block] = kAbsent;
      --size_;
      return true;
    }
  }

  const uint32_t capacity_;
  std::vector<uint32_t> next_;  // By place in the trace: the request that uses the block next.
  std::vector<uint32_t> use_;   // By block that is there: its next use.
  std::priority_queue<Later> latest_;
  uint32_t size_ = 0;
};

}  // namespace

std::unique_ptr<ReplayPolicy> NewComparisonPolicy(std::string_view name, const ReplayTrace& trace,
                                                  uint32_t capacity_blocks) {
  const uint32_t blocks = trace.distinct;
  if (name == "lru") return std::make_unique<Lru>(blocks, capacity_blocks);
  if (name == "lru-2") return std::make_unique<LruTwo>(blocks, capacity_blocks);
  if (name == "s3-fifo") return std::make_unique<S3Fifo>(blocks, capacity_blocks);
  if (name == "arc") return std::make_unique<Arc>(blocks, capacity_blocks);
  if (name == "lirs") return std::make_unique<Lirs>(blocks, capacity_blocks);
  if (name == "belady") return std::make_unique<Belady>(trace, capacity_blocks);
  return nullptr;
}

}  // namespace aquifer
