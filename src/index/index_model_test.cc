// The index beside a plain map that does the same, under random operations.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "index/index.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

Key KeyOf(uint64_t number) {
  Key key;
  SeededRandom(number).Fill(key.bytes);
  return key;
}

std::unique_ptr<Index> MakeIndex(uint32_t max_blocks) {
  auto index = Index::Create({.max_blocks = max_blocks, .hash_seed = 7});
  EXPECT_TRUE(index.ok());
  return *std::move(index);
}

// A forest of names. Keys come in families that agree in their first eight bytes, or in all but the
// last.
class IndexModel {
 public:
  IndexModel(uint64_t seed, uint32_t max_blocks) : random_(seed), index_(MakeIndex(max_blocks)) {
    for (uint32_t i = 0; i < 300; ++i) {
      Node node;
      node.key = KeyOf(seed * 1000 + i);
      if (i % 3 == 1) std::fill_n(node.key.bytes.begin(), 8, std::byte{9});
      if (i % 3 == 2) {
        node.key = Key{};
        node.key.bytes[30] = static_cast<std::byte>(i / 256);
        node.key.bytes[31] = static_cast<std::byte>(i % 256);
      }
      // Half of the nodes make long chains, the others branch off anywhere.
      if (i >= 2) node.parent = static_cast<int>(random_.Below(2) == 0 ? i - 2 : random_.Below(i));
      node.position = node.parent < 0 ? 0 : nodes_[static_cast<size_t>(node.parent)].position + 1;
      nodes_.push_back(node);
    }
  }

  void Step() {
    const uint64_t roll = random_.Below(100);
    const Name name = RandomName();
    if (roll < 30) {
      Insert(name);
    } else if (roll < 45) {
      WithBlock(name, [&](Block& block) { RemoveOrRetire(name, &block); });
    } else if (roll < 60) {
      WithBlock(name, [&](Block& block) { ChangeResidency(name, &block); });
    } else if (roll < 70) {
      WithBlock(name, [&](Block& block) {
        if (random_.Below(2) == 0) {
          EXPECT_TRUE(index_->Lease(block.ref));
          ++block.leases;
        } else if (block.leases > 0) {
          EXPECT_EQ(index_->Unlease(block.ref), --block.leases);
        }
      });
    } else if (roll < 75) {
      WithBlock(name, [&](Block& block) {
        if (block.state == BlockState::kFilling) {
          index_->SetComplete(block.ref, {});
          block.state = BlockState::kResident;
        }
        block.expiry = static_cast<uint32_t>(random_.Below(3));
        index_->SetExpiry(block.ref, block.expiry);
      });
    } else if (roll < 80) {
      RemoveOneGone();
    } else if (roll < 90) {
      CompareFind(name);
    } else {
      CompareMatch(name);
    }
  }

  void CompareAll() {
    index_->CheckConsistency();
    EXPECT_EQ(index_->size(), blocks_.size() + gone_.size() + detached_.size());
    std::set<Name> missing_parents;
    const auto in_chain = [&](const Name& name) {
      return blocks_.contains(name) || gone_.contains(name);
    };
    for (const auto* names : {&blocks_, &gone_}) {
      for (const auto& [name, block] : *names) {
        EXPECT_EQ(index_->ParentKey(block.ref), ParentKey(name));
        const Name parent = ParentName(name);
        if (!in_chain(parent)) missing_parents.insert(parent);
        const auto found = blocks_.find(parent);
        EXPECT_EQ(index_->Parent(block.ref), found == blocks_.end() ? kNoBlock : found->second.ref);
        EXPECT_EQ(index_->at(block.ref).leases, block.leases);
        EXPECT_EQ(index_->at(block.ref).residency, block.residency);
        EXPECT_EQ(index_->at(block.ref).state, block.state);
      }
    }
    EXPECT_EQ(index_->placeholders(), missing_parents.size());
    for (const auto& [name, block] : blocks_) {
      uint32_t children = 0;
      for (const auto* names : {&blocks_, &gone_}) {
        for (const auto& [other, unused] : *names) children += ParentName(other) == name;
      }
      EXPECT_EQ(index_->at(block.ref).children, children);
    }
  }

  uint64_t refusals() const { return refusals_; }
  uint64_t handovers() const { return handovers_; }

 private:
  struct Node {
    Key key;
    int parent = -1;  // -1: the root.
    uint32_t position = 0;
  };
  // Tenant, group, part, node; the root is node -1.
  using Name = std::tuple<uint16_t, uint16_t, uint16_t, int>;
  struct Block {
    BlockRef ref = kNoBlock;
    BlockState state = BlockState::kFilling;
    uint8_t residency = 0;
    uint32_t leases = 0;
    uint32_t expiry = 0;
  };

  Name RandomName() {
    return {static_cast<uint16_t>(random_.Below(2)), static_cast<uint16_t>(random_.Below(2)), 0,
            static_cast<int>(random_.Below(nodes_.size()))};
  }

  static Key RootKey() { return KeyOf(424242); }
  Key KeyAt(int node) const { return node < 0 ? RootKey() : nodes_[static_cast<size_t>(node)].key; }
  const Node& NodeAt(const Name& name) const {
    return nodes_[static_cast<size_t>(std::get<3>(name))];
  }
  Key ParentKey(const Name& name) const { return KeyAt(NodeAt(name).parent); }
  Name ParentName(Name name) const {
    std::get<3>(name) = NodeAt(name).parent;
    return name;
  }
  BlockName IndexName(const Name& name) const {
    return {std::get<0>(name), std::get<1>(name), std::get<2>(name), KeyAt(std::get<3>(name))};
  }

  template <class Do>
  void WithBlock(const Name& name, Do action) {
    const auto found = blocks_.find(name);
    if (found != blocks_.end()) action(found->second);
  }

  void Insert(const Name& name) {
    if (blocks_.contains(name)) return;
    NewBlock block;
    block.name = IndexName(name);
    block.parent = ParentKey(name);
    block.position = NodeAt(name).position;
    block.state = random_.Below(4) == 0 ? BlockState::kFilling : BlockState::kResident;
    const uint32_t taken = index_->size() + index_->placeholders();
    const auto ref = index_->Insert(block);
    if (!ref.ok()) {
      EXPECT_EQ(ref.status().code(), Code::kNoSpace);
      EXPECT_GT(taken + 2, index_->max_blocks());
      ++refusals_;
      return;
    }
    const auto gone = gone_.find(name);
    if (gone != gone_.end()) {
      detached_.push_back(gone->second);
      gone_.erase(gone);
      ++handovers_;
    }
    blocks_[name] = {.ref = *ref, .state = block.state, .residency = 0, .leases = 0, .expiry = 0};
  }

  void RemoveOrRetire(const Name& name, Block* block) {
    for (uint8_t tier = 0; tier < 3; ++tier) index_->SetResident(block->ref, tier, false);
    block->residency = 0;
    if (block->leases > 0) {
      index_->Retire(block->ref);
      block->state = BlockState::kGone;
      gone_[name] = *block;
    } else {
      index_->Remove(block->ref);
    }
    blocks_.erase(name);
  }

  void RemoveOneGone() {
    Block block;
    if (!detached_.empty()) {
      block = detached_.back();
      detached_.pop_back();
    } else if (!gone_.empty()) {
      auto chosen = gone_.begin();
      std::advance(chosen, static_cast<long>(random_.Below(gone_.size())));
      block = chosen->second;
      gone_.erase(chosen);
    } else {
      return;
    }
    while (block.leases > 0) EXPECT_EQ(index_->Unlease(block.ref), --block.leases);
    index_->Remove(block.ref);
  }

  void ChangeResidency(const Name& name, Block* block) {
    const auto tier = static_cast<uint8_t>(random_.Below(3));
    const bool resident = random_.Below(3) != 0;
    const bool changes = (block->residency >> tier & 1) != resident;
    const auto parent = blocks_.find(ParentName(name));
    const bool was_leaf =
        parent != blocks_.end() && tier < kCountedTiers && index_->IsLeaf(parent->second.ref, tier);
    const BlockRef told = index_->SetResident(block->ref, tier, resident);
    if (changes) block->residency ^= TierBit(tier);
    if (parent == blocks_.end() || tier >= kCountedTiers) {
      EXPECT_EQ(told, kNoBlock);
    } else {
      const bool is_leaf = index_->IsLeaf(parent->second.ref, tier);
      EXPECT_EQ(told, was_leaf != is_leaf ? parent->second.ref : kNoBlock);
    }
  }

  void CompareFind(const Name& name) {
    const auto found = blocks_.find(name);
    EXPECT_EQ(index_->Find(IndexName(name)), found == blocks_.end() ? kNoBlock : found->second.ref);
  }

  void CompareMatch(const Name& name) {
    std::vector<Name> path;
    for (Name at = name; std::get<3>(at) >= 0; at = ParentName(at)) path.push_back(at);
    std::reverse(path.begin(), path.end());
    std::vector<Key> chain;
    for (const Name& at : path) chain.push_back(KeyAt(std::get<3>(at)));

    MatchQuery query;
    query.tenant = std::get<0>(name);
    query.group = std::get<1>(name);
    query.part = std::get<2>(name);
    query.tiers = static_cast<uint8_t>(random_.Below(8));
    query.chain = chain;
    query.from = random_.Below(chain.size() + 1);
    query.max_steps = random_.Below(chain.size() + 2);
    query.unix_seconds = static_cast<uint32_t>(random_.Below(3));

    std::vector<BlockRef> expected;
    MatchEnd end = MatchEnd::kChainEnd;
    for (size_t i = query.from; i < path.size(); ++i) {
      if (expected.size() == query.max_steps) {
        end = MatchEnd::kSlice;
        break;
      }
      const auto block = blocks_.find(path[i]);
      if (block == blocks_.end()) {
        end = MatchEnd::kMissing;
        break;
      }
      const Block& there = block->second;
      if (there.state == BlockState::kFilling) {
        end = MatchEnd::kFilling;
        break;
      }
      if ((there.residency & query.tiers) == 0) {
        end = MatchEnd::kMissing;
        break;
      }
      if (there.expiry != 0 && there.expiry <= query.unix_seconds) {
        end = MatchEnd::kExpired;
        break;
      }
      expected.push_back(there.ref);
    }
    std::vector<BlockRef> found(chain.size());
    const MatchResult result = index_->Match(query, found);
    found.resize(result.matched);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(result.end, end);
  }

  SeededRandom random_;
  std::vector<Node> nodes_;
  std::unique_ptr<Index> index_;
  std::map<Name, Block> blocks_;
  std::map<Name, Block> gone_;   // Retired, and not replaced.
  std::vector<Block> detached_;  // Retired and replaced.
  uint64_t refusals_ = 0;
  uint64_t handovers_ = 0;
};

class IndexPropertyTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(IndexPropertyTest, BehavesLikeAMap) {
  // 600 entries for 1 200 names: now and then it is full.
  IndexModel model(GetParam(), 600);
  for (int step = 0; step < 100'000; ++step) {
    model.Step();
    if (step % 5'000 == 0) model.CompareAll();
    if (HasFailure()) FAIL() << "at step " << step;
  }
  model.CompareAll();
  EXPECT_GT(model.refusals(), 0u);
  EXPECT_GT(model.handovers(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, IndexPropertyTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace aquifer
