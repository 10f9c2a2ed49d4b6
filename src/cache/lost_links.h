// Which block came before which, of blocks that are gone. A session is known by its last block, and
// that is the first to be evicted: what is left of its chain is found through these links. The same
// where one in the middle was lost.
//
// Only the links that somebody may ask for are kept: from the ends of sessions on upwards, and
// where blocks are left below the one that is gone. There is a bound; the oldest are forgotten
// first, and whoever asks for those is told that it is not known.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

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
  // It is gone.
  void OnDropped(const BlockName& name, const LostLink& link, bool has_children);

  // Null: not known.
  const LostLink* Find(const BlockName& name) const;
  // Nobody has wanted anything.
  bool empty() const { return records_.empty(); }

 private:
  struct Record {
    LostLink link;
    bool known = false;  // False: wanted, and not gone so far.
  };

  Record& At(const BlockName& name);

  const size_t max_links_;
  std::map<BlockName, Record> records_;
  std::deque<BlockName> by_age_;  // Each of records_ once.
};

}  // namespace aquifer
