// The chains that simulated engines work on. They grow, branch, are repeated, and outlive every
// node and engine. A tenant may know the keys of another's chain: its blocks are its own all the
// same, and the truth has other numbers for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/layout.h"
#include "sim/world/truth.h"
#include "testing/chain.h"
#include "testing/seeded_random.h"

namespace aquifer {

struct Conversation {
  uint32_t tenant = 0;
  uint32_t layout = 0;
  uint16_t group = 0;
  Chain chain;
  std::vector<BlockNumber> blocks;  // One for each key.
  std::string session;
};

struct ConversationsOptions {
  std::vector<Layout> layouts;
  uint32_t tenants = 1;
  uint64_t most = 4;           // Of each tenant.
  uint64_t chain_blocks = 12;  // About how long they get.
};

class Conversations {
 public:
  Conversations(const ConversationsOptions& options, Truth* truth);

  const Conversation& at(size_t conversation) const { return conversations_[conversation]; }
  const Layout& layout(uint32_t layout) const { return options_.layouts[layout]; }
  // One of the tenant's, old or new, as the numbers have it.
  size_t Pick(uint32_t tenant, SeededRandom* random);
  // It goes on: a few more blocks, unless it is long already.
  void Grow(size_t conversation, SeededRandom* random);
  // Every block of a tenant.
  std::vector<BlockNumber> BlocksOf(uint32_t tenant) const;
  size_t size() const { return conversations_.size(); }

 private:
  size_t New(uint32_t tenant, SeededRandom* random);
  void NameBlocks(Conversation* conversation);

  const ConversationsOptions options_;
  Truth* const truth_;
  std::vector<Conversation> conversations_;
  std::vector<std::vector<size_t>> by_tenant_;
  std::map<std::tuple<uint32_t, uint16_t, Key>, BlockNumber> numbers_;
  uint64_t next_seed_ = 1;  // Of tokens: no two are the same by accident.
};

}  // namespace aquifer
