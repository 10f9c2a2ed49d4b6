#include "policy/eviction/leaf_recency.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr uint32_t kNotInHeap = UINT32_MAX;
// What ended is older than anything that did not, and has an order of its own.
constexpr int64_t kEndedOffsetNanos = int64_t{1} << 61;
constexpr int kMaxPriority = 8;

// When a block counts as last used. The sequence orders what happened at the same time.
struct Stamp {
  int64_t nanos = 0;
  uint32_t sequence = 0;

  bool Before(const Stamp& other) const {
    if (nanos != other.nanos) return nanos < other.nanos;
    return static_cast<int32_t>(sequence - other.sequence) < 0;  // It may wrap around.
  }
};

struct Item {
  int64_t stamp_nanos;
  uint32_t stamp_sequence;
  uint32_t heap_index;
  uint32_t holds;
  uint16_t tenant;
  bool present;  // Zeroed memory is an absent item.
  bool leaf;

  Stamp stamp() const { return {stamp_nanos, stamp_sequence}; }
  bool may_go() const { return leaf && holds == 0; }
};
static_assert(sizeof(Item) == 24);

// The stamp is repeated here so that sifting compares without touching items, and four children
// share a cache line.
struct Node {
  int64_t stamp_nanos;
  uint32_t stamp_sequence;
  uint32_t ref;

  bool Before(const Node& other) const {
    return Stamp{stamp_nanos, stamp_sequence}.Before(
        Stamp{other.stamp_nanos, other.stamp_sequence});
  }
};
static_assert(sizeof(Node) == 16);

// A four-way heap in chunks of a page, so that growth never copies. Keeps every item's heap_index.
class Heap {
 public:
  uint32_t size() const { return size_; }
  const Node& top() const { return chunks_[0][0]; }
  uint64_t bytes() const { return chunks_.size() * kChunk * sizeof(Node); }

  void Push(const Node& node, Item* items) {
    if (size_ == chunks_.size() * kChunk) {
      chunks_.push_back(std::make_unique_for_overwrite<Node[]>(kChunk));
    }
    ++size_;
    SiftUp(size_ - 1, node, items);
  }

  void Erase(uint32_t index, Item* items) {
    items[at(index).ref].heap_index = kNotInHeap;
    --size_;
    if (index != size_) Replace(index, at(size_), items);
    // One spare chunk stays, so that a size which swings around a boundary allocates nothing.
    if (size_ + 2 * kChunk <= chunks_.size() * kChunk) chunks_.pop_back();
  }

  void Replace(uint32_t index, Node node, Item* items) {
    if (index > 0 && node.Before(at((index - 1) / kWays))) {
      SiftUp(index, node, items);
    } else {
      SiftDown(index, node, items);
    }
  }

 private:
  static constexpr uint32_t kChunk = 256;
  static constexpr uint32_t kWays = 4;

  Node& at(uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }

  void Put(uint32_t index, const Node& node, Item* items) {
    at(index) = node;
    items[node.ref].heap_index = index;
  }

  void SiftUp(uint32_t index, const Node& node, Item* items) {
    while (index > 0) {
      const uint32_t parent = (index - 1) / kWays;
      if (!node.Before(at(parent))) break;
      Put(index, at(parent), items);
      index = parent;
    }
    Put(index, node, items);
  }

  void SiftDown(uint32_t index, const Node& node, Item* items) {
    while (true) {
      const uint64_t first = uint64_t{index} * kWays + 1;
      if (first >= size_) break;
      const auto last = static_cast<uint32_t>(std::min<uint64_t>(first + kWays, size_));
      auto least = static_cast<uint32_t>(first);
      for (uint32_t child = least + 1; child < last; ++child) {
        if (at(child).Before(at(least))) least = child;
      }
      if (!at(least).Before(node)) break;
      Put(index, at(least), items);
      index = least;
    }
    Put(index, node, items);
  }

  std::vector<std::unique_ptr<Node[]>> chunks_;
  uint32_t size_ = 0;
};

struct FreeMemory {
  void operator()(Item* items) const { std::free(items); }
};
using Items = std::unique_ptr<Item[], FreeMemory>;

class LeafRecency final : public EvictionOrder {
 public:
  LeafRecency(const LeafRecencyOptions& options, Items items)
      : options_(options), items_(std::move(items)) {}

  void Add(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) override {
    AQ_CHECK(ref < options_.max_blocks && !items_[ref].present);
    Item& item = items_[ref];
    item = {};
    item.present = true;
    item.leaf = true;
    item.tenant = features.tenant;
    item.heap_index = kNotInHeap;
    SetStamp(&item, features, now_nanos);
    if (features.tenant >= heaps_.size()) heaps_.resize(size_t{features.tenant} + 1);
    limit_ = std::max(limit_, ref + 1);
    ++size_;
    Settle(ref);
  }

  void Touch(uint32_t ref, const BlockFeatures& features, int64_t now_nanos) override {
    Item& item = Present(ref);
    AQ_CHECK(item.tenant == features.tenant);
    SetStamp(&item, features, now_nanos);
    if (item.heap_index != kNotInHeap) {
      heaps_[item.tenant].Replace(item.heap_index, NodeOf(ref), items_.get());
    }
  }

  void SetLeaf(uint32_t ref, bool leaf) override {
    Present(ref).leaf = leaf;
    Settle(ref);
  }

  void Hold(uint32_t ref) override {
    AQ_CHECK(Present(ref).holds != UINT32_MAX);
    ++items_[ref].holds;
    Settle(ref);
  }

  void Unhold(uint32_t ref) override {
    AQ_CHECK(Present(ref).holds > 0);
    --items_[ref].holds;
    Settle(ref);
  }

  void Remove(uint32_t ref) override {
    Item& item = Present(ref);
    item.leaf = false;
    Settle(ref);
    item.present = false;
    --size_;
  }

  bool Contains(uint32_t ref) const override { return ref < limit_ && items_[ref].present; }

  uint32_t Victim(uint16_t tenant) const override {
    if (tenant >= heaps_.size() || heaps_[tenant].size() == 0) return kNoVictim;
    return heaps_[tenant].top().ref;
  }

  uint32_t Victim(const std::function<bool(uint16_t tenant)>& may_pay) const override {
    const Node* least = nullptr;
    for (size_t tenant = 0; tenant < heaps_.size(); ++tenant) {
      const Heap& heap = heaps_[tenant];
      if (heap.size() == 0 || (least != nullptr && !heap.top().Before(*least))) continue;
      if (may_pay(static_cast<uint16_t>(tenant))) least = &heap.top();
    }
    return least == nullptr ? kNoVictim : least->ref;
  }

  double Value(uint32_t ref) const override {
    AQ_CHECK(Contains(ref));
    return static_cast<double>(items_[ref].stamp_nanos);
  }

  uint32_t size() const override { return size_; }

  uint64_t bytes() const override {
    uint64_t bytes = uint64_t{limit_} * sizeof(Item) + heaps_.capacity() * sizeof(Heap);
    for (const Heap& heap : heaps_) bytes += heap.bytes();
    return bytes;
  }

 private:
  Item& Present(uint32_t ref) {
    AQ_CHECK(Contains(ref));
    return items_[ref];
  }

  Node NodeOf(uint32_t ref) const {
    return {items_[ref].stamp_nanos, items_[ref].stamp_sequence, ref};
  }

  void SetStamp(Item* item, const BlockFeatures& features, int64_t now_nanos) {
    const int priority = std::clamp(int{features.priority}, -kMaxPriority, kMaxPriority);
    const bool ended = features.session == SessionHint::kEnded;
    item->stamp_nanos =
        now_nanos + priority * options_.priority_step_nanos - (ended ? kEndedOffsetNanos : 0);
    item->stamp_sequence = ++sequence_;
  }

  // Puts the block into its heap, or takes it out, as it may or may not go.
  void Settle(uint32_t ref) {
    const Item& item = items_[ref];
    const bool in_heap = item.heap_index != kNotInHeap;
    if (item.may_go() == in_heap) return;
    Heap& heap = heaps_[item.tenant];
    if (in_heap) {
      heap.Erase(item.heap_index, items_.get());
    } else {
      heap.Push(NodeOf(ref), items_.get());
    }
  }

  const LeafRecencyOptions options_;
  Items items_;  // By ref; max_blocks of them, untouched from limit_ on.
  uint32_t limit_ = 0;
  std::vector<Heap> heaps_;  // By tenant.
  uint32_t sequence_ = 0;
  uint32_t size_ = 0;
};

}  // namespace

Result<std::unique_ptr<EvictionOrder>> NewLeafRecency(const LeafRecencyOptions& options) {
  if (options.max_blocks == 0) return Status(Code::kInvalid, "max_blocks is zero");
  // Eight steps must not reach what sets ended sessions apart.
  if (options.priority_step_nanos < 0 ||
      options.priority_step_nanos > kEndedOffsetNanos / (4 * kMaxPriority)) {
    return Status(Code::kInvalid, "priority_step_nanos is out of range");
  }
  // calloc gives fresh zero pages for what is large: they cost nothing before they are touched.
  Items items(static_cast<Item*>(std::calloc(options.max_blocks, sizeof(Item))));
  if (items == nullptr) return Status(Code::kNoSpace, "no memory for the eviction order");
  return std::unique_ptr<EvictionOrder>(std::make_unique<LeafRecency>(options, std::move(items)));
}

}  // namespace aquifer
