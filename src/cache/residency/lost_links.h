// Which block came before which, of blocks that are gone. A session is known by its last block, and
// that is the first to be evicted: what is left of its chain is found through these links. The same
// where one in the middle was lost.
//
// Only the links that somebody may ask for are kept: from the ends of sessions on upwards, and
// where blocks are left below the one that is gone. There is a bound; the oldest are forgotten
// first, and whoever asks for those is told that it is not known.
//
// Of those that a durable tier still has it is also known what they hang below: another session's
// are not deleted with what it has in common with them.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "aquifer/key.h"
#include "index/index.h"

namespace aquifer {

struct LostLink {
  Key parent{};
  uint32_t position = 0;  // Of the block itself; above 0 there is only the root.
};

class LostLinks {
 public:
  explicit LostLinks(size_t max_links) : max_links_(max_links) {}

  // A session ends with this block: should it go, what came before it is asked for.
  void Want(const BlockName& name);
  // It is gone; `durable`: but for a durable tier, which has it.
  void OnDropped(const BlockName& name, const LostLink& link, bool has_children, bool durable);
  // It is deleted there, too.
  void OnDeleted(const BlockName& name);
  // The same of all of a tenant's, up to `max` of them. False when none is left.
  bool ForgetDurable(uint16_t tenant, size_t max);

  // Null: not known.
  const LostLink* Find(const BlockName& name) const;
  // Up to `max` of those that hang right below it and are gone here, but for a durable tier.
  std::vector<Key> DurableBelow(const BlockName& name, size_t max) const;
  // Nobody has wanted anything.
  bool empty() const { return records_.empty(); }

 private:
  struct Record {
    LostLink link;
    bool known = false;  // False: wanted, and not gone so far.
  };

  Record& At(const BlockName& name);

  static std::pair<BlockName, Key> BelowParent(const BlockName& name, const LostLink& link);

  const size_t max_links_;
  std::map<BlockName, Record> records_;
  std::deque<BlockName> by_age_;                 // Each of records_ once.
  std::set<std::pair<BlockName, Key>> durable_;  // Of those, behind what they hang below.
};

}  // namespace aquifer
