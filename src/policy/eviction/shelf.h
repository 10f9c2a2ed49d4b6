// The blocks of one tenant, priority and weight that may be evicted now, in the order of an
// ReuseTable: a list for each cell that has any, and a bit for each list by the rank of its cell,
// so that the least valuable block is one look through a hundred words away. When the table is
// replaced only the bits are made anew.
//
// Within a list blocks are in the order of their last use, but for a few that came late.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "policy/eviction/block_history.h"
#include "policy/eviction/block_weight.h"
#include "policy/eviction/reuse_model.h"

namespace aquifer {

// How cells are ranked: by a table's values, or by age alone, which is LRU.
struct CellRanking {
  ReuseTable table;
  bool by_age = false;
};
// The ranking by age, with the values of `table`.
CellRanking RankByAge(const ReuseTable& table);

// A block that the tier has, by ref. Zeroed memory is none.
struct ShelvedBlock {
  uint32_t record_plus_one = 0;
  uint32_t next = kNoRecord;  // Refs, in a list of its shelf.
  uint32_t previous = kNoRecord;
  uint32_t shelf : 31 = 0;
  bool leaf : 1 = false;
  uint32_t holds : 31 = 0;
  bool listed : 1 = false;  // It may go, and is on its shelf.

  bool present() const { return record_plus_one != 0; }
  uint32_t record() const { return record_plus_one - 1; }
};
static_assert(sizeof(ShelvedBlock) == 20);

// Whose blocks a shelf holds, and of which kind.
struct ShelfKind {
  uint16_t tenant = 0;  // In DRAM one of the tenant's pools (cache/residency/catalog.h).
  int8_t priority = 0;
  uint16_t owner = 0;  // The tenant itself: of the weight.
  WeightClass weight = kUnknownWeight;

  friend bool operator==(const ShelfKind&, const ShelfKind&) = default;
};

class Shelf {
 public:
  // Both outlive it: of all shelves.
  Shelf(const ShelfKind& kind, ShelvedBlock* blocks, const BlockHistory* history)
      : kind_(kind), blocks_(blocks), history_(history) {}

  const ShelfKind& kind() const { return kind_; }
  bool empty() const { return size_ == 0; }

  void Insert(uint32_t ref);
  void Erase(uint32_t ref);
  // It has grown into the next bucket.
  void Age(uint32_t ref);

  // Cells are ranked in another way from now on.
  void Rank(std::shared_ptr<const CellRanking> ranking);
  const CellRanking* ranking() const { return ranking_.get(); }

  // kNoRecord: there is none.
  uint32_t Least() const;

  uint64_t bytes() const;

 private:
  static constexpr size_t kWords = (kReuseCells + 63) / 64;
  struct List {
    uint32_t first = kNoRecord;  // Used longest ago.
    uint32_t last = kNoRecord;
  };
  using Row = std::array<List, kAgeBuckets>;  // Of one class.

  List& list(size_t cell) { return (*rows_[cell / kAgeBuckets])[cell % kAgeBuckets]; }
  const BlockRecord& record(uint32_t ref) const { return history_->at(blocks_[ref].record()); }
  bool UsedBefore(uint32_t ref, uint32_t other) const {
    return record(ref).used_nanos < record(other).used_nanos;
  }
  void Link(uint32_t ref, size_t cell);
  void Unlink(uint32_t ref, size_t cell);
  void Mark(size_t cell, bool filled);

  const ShelfKind kind_;
  ShelvedBlock* const blocks_;
  const BlockHistory* const history_;
  uint32_t size_ = 0;
  // Shared: a shelf that nobody looks at keeps to the one that it has.
  std::shared_ptr<const CellRanking> ranking_;
  std::array<std::unique_ptr<Row>, kBlockClasses> rows_{};
  std::array<uint64_t, kWords> filled_{};  // By rank.
};

}  // namespace aquifer
