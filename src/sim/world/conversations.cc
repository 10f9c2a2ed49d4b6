#include "sim/world/conversations.h"

#include <algorithm>
#include <utility>

namespace aquifer {

Conversations::Conversations(const ConversationsOptions& options, Truth* truth)
    : options_(options), truth_(truth), by_tenant_(options.tenants) {}

void Conversations::NameBlocks(Conversation* conversation) {
  const uint64_t bytes = BlockBytes(options_.layouts[conversation->layout], conversation->group);
  while (conversation->blocks.size() < conversation->chain.size()) {
    const size_t i = conversation->blocks.size();
    const auto [found, made] = numbers_.try_emplace(
        {conversation->tenant, conversation->group, conversation->chain[i]}, 0);
    if (made) {
      found->second = truth_->Add(conversation->tenant, bytes,
                                  i == 0 ? kNoParent : conversation->blocks[i - 1]);
    }
    conversation->blocks.push_back(found->second);
  }
}

size_t Conversations::New(uint32_t tenant, SeededRandom* random) {
  const uint64_t way = conversations_.empty() ? 0 : random->Below(4);
  const size_t other = way == 0 ? 0 : random->Below(conversations_.size());
  const uint64_t blocks = 1 + random->Below(options_.chain_blocks);
  std::vector<size_t>& own = by_tenant_[tenant];
  Conversation made{.tenant = tenant,
                    .layout = 0,
                    .group = 0,
                    .chain = Chain(options_.layouts[0], {.seed = 0, .blocks = 0}),
                    .blocks = {},
                    .session = "session-" + std::to_string(own.size())};
  if (way == 1) {  // The keys of any other, whoever's it is, in any group.
    made.layout = conversations_[other].layout;
    made.chain = conversations_[other].chain;
  } else if (way >= 2 && !own.empty()) {  // A branch of one of its own.
    const Conversation& trunk = conversations_[own[other % own.size()]];
    made.layout = trunk.layout;
    made.group = trunk.group;
    const size_t shared = random->Below(trunk.chain.size() + 1);
    made.chain = trunk.chain.Fork(shared, next_seed_++, blocks);
  } else {
    made.layout = static_cast<uint32_t>(random->Below(options_.layouts.size()));
    made.chain = Chain(
        options_.layouts[made.layout],
        {.seed = next_seed_++, .blocks = blocks, .tenant = "tenant-" + std::to_string(tenant)});
  }
  if (way < 2) {
    made.group = static_cast<uint16_t>(random->Below(options_.layouts[made.layout].groups.size()));
  }
  NameBlocks(&made);
  conversations_.push_back(std::move(made));
  own.push_back(conversations_.size() - 1);
  return own.back();
}

size_t Conversations::Pick(uint32_t tenant, SeededRandom* random) {
  std::vector<size_t>& own = by_tenant_[tenant];
  const bool fresh = own.empty() || (own.size() < options_.most && random->Below(4) == 0);
  if (fresh) return New(tenant, random);
  // The newest are asked for more often.
  const uint64_t a = random->Below(own.size());
  const uint64_t b = random->Below(own.size());
  return own[std::max(a, b)];
}

void Conversations::Grow(size_t conversation, SeededRandom* random) {
  Conversation& grown = conversations_[conversation];
  const uint64_t blocks = 1 + random->Below(4);
  if (grown.chain.size() + blocks > 2 * options_.chain_blocks + 2) return;
  grown.chain = grown.chain.Fork(grown.chain.size(), next_seed_++, blocks);
  NameBlocks(&grown);
}

std::vector<BlockNumber> Conversations::BlocksOf(uint32_t tenant) const {
  std::vector<BlockNumber> blocks;
  for (BlockNumber block = 0; block < truth_->blocks(); ++block) {
    if (truth_->tenant(block) == tenant) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace aquifer
