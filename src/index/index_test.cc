#include "index/index.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;

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

// The chain 1, 2, 3, ... with the root 0.
NewBlock ChainBlock(uint32_t position, BlockState state = BlockState::kResident) {
  NewBlock block;
  block.name.key = KeyOf(position + 1);
  block.parent = KeyOf(position);
  block.position = position;
  block.state = state;
  return block;
}

std::vector<Key> ChainKeys(size_t length) {
  std::vector<Key> keys;
  for (size_t i = 1; i <= length; ++i) keys.push_back(KeyOf(i));
  return keys;
}

BlockRef MustInsert(Index* index, const NewBlock& block) {
  const auto ref = index->Insert(block);
  EXPECT_TRUE(ref.ok()) << CodeName(ref.status().code());
  return ref.ok() ? *ref : kNoBlock;
}

std::vector<BlockRef> InsertChain(Index* index, uint32_t length) {
  std::vector<BlockRef> refs;
  for (uint32_t i = 0; i < length; ++i) {
    refs.push_back(MustInsert(index, ChainBlock(i)));
    index->SetResident(refs.back(), kTierDram, true);
  }
  return refs;
}

TEST(IndexTest, RefusesToHoldNothingOrTooMuch) {
  EXPECT_EQ(Index::Create({.max_blocks = 0, .hash_seed = 0}).status().code(), Code::kInvalid);
  EXPECT_EQ(Index::Create({.max_blocks = kNoBlock, .hash_seed = 0}).status().code(),
            Code::kInvalid);
}

TEST(IndexTest, ABlockIsFoundUnderItsExactNameOnly) {
  const auto index = MakeIndex(10);
  NewBlock block = ChainBlock(0);
  block.name.tenant = 3;
  block.name.group = 1;
  block.name.part = 2;
  block.checksum = {5, 6};
  block.engine_hash = 77;
  block.expiry_unix_seconds = 1000;
  block.layout = 4;
  const BlockRef ref = MustInsert(index.get(), block);

  EXPECT_EQ(index->Find(block.name), ref);
  EXPECT_EQ(index->at(ref).checksum, (Checksum{5, 6}));
  EXPECT_EQ(index->at(ref).engine_hash, 77u);
  EXPECT_EQ(index->at(ref).expiry_unix_seconds, 1000u);
  EXPECT_EQ(index->at(ref).layout, 4);
  EXPECT_FALSE(index->at(ref).has_slot());
  for (auto change :
       {+[](BlockName* name) { name->tenant = 4; }, +[](BlockName* name) { name->group = 2; },
        +[](BlockName* name) { name->part = 1; },
        +[](BlockName* name) { name->key.bytes[31] ^= std::byte{1}; }}) {
    BlockName other = block.name;
    change(&other);
    EXPECT_EQ(index->Find(other), kNoBlock);
  }
}

TEST(IndexTest, TheRootIsNoBlock) {
  const auto index = MakeIndex(10);
  const BlockRef ref = MustInsert(index.get(), ChainBlock(0));
  EXPECT_EQ(index->Find({.tenant = 0, .group = 0, .part = 0, .key = KeyOf(0)}), kNoBlock);
  EXPECT_EQ(index->Parent(ref), kNoBlock);
  EXPECT_EQ(index->ParentKey(ref), KeyOf(0));
  EXPECT_EQ(index->FirstChildOf({.tenant = 0, .group = 0, .part = 0, .key = KeyOf(0)}), ref);
  EXPECT_EQ(index->size(), 1u);
  EXPECT_EQ(index->placeholders(), 1u);
}

TEST(IndexTest, AParentThatComesLaterAdoptsItsChildren) {
  const auto index = MakeIndex(10);
  const BlockRef child = MustInsert(index.get(), ChainBlock(1));
  EXPECT_EQ(index->Parent(child), kNoBlock);
  EXPECT_EQ(index->ParentKey(child), KeyOf(1));
  index->SetResident(child, kTierDram, true);

  const BlockRef parent = MustInsert(index.get(), ChainBlock(0));

  EXPECT_EQ(index->Parent(child), parent);
  EXPECT_EQ(index->FirstChild(parent), child);
  EXPECT_EQ(index->at(parent).children, 1u);
  EXPECT_FALSE(index->IsLeaf(parent, kTierDram));
  EXPECT_TRUE(index->IsLeaf(parent, kTierNvme));
  index->CheckConsistency();
}

TEST(IndexTest, ChildrenOfARemovedParentKeepItsKeyAndAreAdoptedAgain) {
  const auto index = MakeIndex(10);
  const std::vector<BlockRef> refs = InsertChain(index.get(), 3);
  index->SetResident(refs[1], kTierDram, false);
  index->Remove(refs[1]);

  EXPECT_EQ(index->Find(ChainBlock(1).name), kNoBlock);
  EXPECT_EQ(index->Parent(refs[2]), kNoBlock);
  EXPECT_EQ(index->ParentKey(refs[2]), KeyOf(2));
  EXPECT_EQ(index->at(refs[0]).children, 0u);
  index->CheckConsistency();

  const BlockRef again = MustInsert(index.get(), ChainBlock(1));
  EXPECT_EQ(index->Parent(refs[2]), again);
  EXPECT_EQ(index->Parent(again), refs[0]);
  EXPECT_EQ(index->at(again).residency, 0);
  index->CheckConsistency();
}

TEST(IndexTest, APlaceholderGoesWithItsLastChild) {
  const auto index = MakeIndex(2);
  for (int round = 0; round < 5; ++round) {
    const BlockRef ref = MustInsert(index.get(), ChainBlock(0));
    index->Remove(ref);
    EXPECT_EQ(index->size(), 0u);
    EXPECT_EQ(index->placeholders(), 0u);
  }
  index->CheckConsistency();
}

TEST(IndexTest, AFullIndexRefusesAndChangesNothing) {
  const auto index = MakeIndex(3);
  InsertChain(index.get(), 2);
  EXPECT_EQ(index->Insert(ChainBlock(2)).status().code(), Code::kNoSpace);
  index->CheckConsistency();

  const auto small = MakeIndex(2);
  MustInsert(small.get(), ChainBlock(1));
  // The place of the block is there already; that of its root is not.
  EXPECT_EQ(small->Insert(ChainBlock(0)).status().code(), Code::kNoSpace);
  EXPECT_EQ(small->Find(ChainBlock(0).name), kNoBlock);
  small->CheckConsistency();
}

TEST(IndexTest, PositionsThatDoNotFollowAreRefused) {
  const auto index = MakeIndex(10);
  NewBlock own_parent = ChainBlock(0);
  own_parent.parent = own_parent.name.key;
  EXPECT_EQ(index->Insert(own_parent).status().code(), Code::kInvalid);

  MustInsert(index.get(), ChainBlock(1));
  NewBlock cycle = ChainBlock(0);  // Claims the block below it as its parent.
  cycle.parent = KeyOf(2);
  EXPECT_EQ(index->Insert(cycle).status().code(), Code::kInvalid);
  NewBlock skips = ChainBlock(5);
  skips.parent = KeyOf(2);
  EXPECT_EQ(index->Insert(skips).status().code(), Code::kInvalid);
  NewBlock misplaced = ChainBlock(0);  // Its child says that it is at 0.
  misplaced.position = 7;
  EXPECT_EQ(index->Insert(misplaced).status().code(), Code::kInvalid);
  EXPECT_EQ(index->size(), 1u);
  index->CheckConsistency();
}

TEST(IndexTest, SettingResidencyTellsWhenTheParentsLeafStateChanged) {
  const auto index = MakeIndex(10);
  const BlockRef parent = MustInsert(index.get(), ChainBlock(0));
  const BlockRef first = MustInsert(index.get(), ChainBlock(1));
  NewBlock block = ChainBlock(1);
  block.name.key = KeyOf(99);
  const BlockRef second = MustInsert(index.get(), block);

  EXPECT_EQ(index->SetResident(parent, kTierDram, true), kNoBlock);  // Below a root.
  EXPECT_EQ(index->SetResident(first, kTierDram, true), parent);
  EXPECT_EQ(index->SetResident(first, kTierDram, true), kNoBlock);
  EXPECT_EQ(index->SetResident(second, kTierDram, true), kNoBlock);
  EXPECT_EQ(index->SetResident(second, kTierNvme, true), parent);
  EXPECT_EQ(index->SetResident(second, 5, true), kNoBlock);
  EXPECT_EQ(index->SetResident(first, kTierDram, false), kNoBlock);
  EXPECT_FALSE(index->IsLeaf(parent, kTierDram));
  EXPECT_EQ(index->SetResident(second, kTierDram, false), parent);
  EXPECT_TRUE(index->IsLeaf(parent, kTierDram));
  EXPECT_TRUE(index->at(second).in_tier(5));
  index->CheckConsistency();
}

TEST(IndexTest, LeasesAndPinsAreCountedAndDoNotOverflow) {
  const auto index = MakeIndex(10);
  const BlockRef ref = MustInsert(index.get(), ChainBlock(0));
  EXPECT_FALSE(index->at(ref).held());
  for (int i = 0; i < UINT16_MAX; ++i) ASSERT_TRUE(index->Lease(ref));
  EXPECT_FALSE(index->Lease(ref));
  EXPECT_TRUE(index->at(ref).held());
  for (uint32_t left = UINT16_MAX; left > 0; --left) ASSERT_EQ(index->Unlease(ref), left - 1);
  EXPECT_FALSE(index->at(ref).held());
  for (int i = 0; i < UINT16_MAX; ++i) ASSERT_TRUE(index->Pin(ref));
  EXPECT_FALSE(index->Pin(ref));
  EXPECT_TRUE(index->at(ref).held());
  EXPECT_EQ(index->Unpin(ref), UINT16_MAX - 1u);
}

TEST(IndexTest, IoInAnyTierHoldsABlock) {
  const auto index = MakeIndex(10);
  const BlockRef ref = MustInsert(index.get(), ChainBlock(0));
  index->SetIo(ref, kTierNvme, true);
  index->SetIo(ref, 7, true);
  index->SetIo(ref, kTierNvme, false);
  EXPECT_TRUE(index->at(ref).held());
  index->SetIo(ref, 7, false);
  EXPECT_FALSE(index->at(ref).held());
}

TEST(IndexTest, TheCachesOwnFieldsAreKept) {
  const auto index = MakeIndex(10);
  const BlockRef ref = MustInsert(index.get(), ChainBlock(0));
  index->SetSlot(ref, 12);
  constexpr uint8_t kOtherFlag = 4;
  index->SetFlags(ref, kFlagDurableWanted | kOtherFlag);
  index->SetFlags(ref, kFlagDeleted, kOtherFlag);
  index->SetOwnerData(ref, 34);
  index->SetExpiry(ref, 78);
  index->Touch(ref, 90);
  const BlockEntry& entry = index->at(ref);
  EXPECT_EQ(entry.slot, 12u);
  EXPECT_EQ(entry.flags, kFlagDurableWanted | kFlagDeleted);
  EXPECT_EQ(entry.owner_data, 34u);
  EXPECT_EQ(entry.expiry_unix_seconds, 78u);
  EXPECT_EQ(entry.last_used_nanos, 90);
  EXPECT_EQ(entry.uses, 1u);
}

TEST(IndexTest, ARetiredBlockIsUnfindableAndItsNameCanBeUsedAgain) {
  const auto index = MakeIndex(10);
  const std::vector<BlockRef> refs = InsertChain(index.get(), 3);
  ASSERT_TRUE(index->Lease(refs[1]));
  index->SetSlot(refs[1], 5);
  index->SetResident(refs[1], kTierDram, false);
  index->Retire(refs[1]);

  EXPECT_EQ(index->Find(ChainBlock(1).name), kNoBlock);
  EXPECT_EQ(index->Parent(refs[2]), kNoBlock);
  EXPECT_EQ(index->ParentKey(refs[2]), KeyOf(2));
  EXPECT_EQ(index->at(refs[1]).slot, 5u);
  index->CheckConsistency();

  const BlockRef again = MustInsert(index.get(), ChainBlock(1));
  EXPECT_NE(again, refs[1]);
  EXPECT_EQ(index->Find(ChainBlock(1).name), again);
  EXPECT_EQ(index->Parent(refs[2]), again);
  EXPECT_EQ(index->Parent(again), refs[0]);
  EXPECT_FALSE(index->IsLeaf(again, kTierDram));
  EXPECT_EQ(index->at(refs[1]).slot, 5u);  // The lease's holder still needs it.
  EXPECT_EQ(index->ParentKey(refs[1]), Key{});
  index->CheckConsistency();

  EXPECT_EQ(index->Unlease(refs[1]), 0u);
  index->Remove(refs[1]);
  EXPECT_FALSE(index->Exists(refs[1]));
  index->CheckConsistency();
}

TEST(IndexTest, ARetiredBlockWithManyChildrenIsNotReplacedWhileHeld) {
  const auto index = MakeIndex(2000);
  const BlockRef parent = MustInsert(index.get(), ChainBlock(0));
  for (uint32_t i = 0; i < 1000; ++i) {
    NewBlock child = ChainBlock(1);
    child.name.key = KeyOf(1000 + i);
    MustInsert(index.get(), child);
  }
  ASSERT_TRUE(index->Lease(parent));
  index->Retire(parent);
  EXPECT_EQ(index->Insert(ChainBlock(0)).status().code(), Code::kBusy);
  index->Unlease(parent);
  index->Remove(parent);
  MustInsert(index.get(), ChainBlock(0));
  index->CheckConsistency();
}

TEST(IndexTest, AMatchIsTheLongestReadableRun) {
  const auto index = MakeIndex(100);
  const std::vector<BlockRef> refs = InsertChain(index.get(), 50);
  const std::vector<Key> chain = ChainKeys(60);
  std::vector<BlockRef> found(60);
  MatchQuery query{.chain = chain, .max_steps = 60};

  MatchResult result = index->Match(query, found);
  EXPECT_EQ(result.matched, 50u);
  EXPECT_EQ(result.end, MatchEnd::kMissing);
  EXPECT_EQ(result.stopped_at, kNoBlock);
  EXPECT_TRUE(std::equal(refs.begin(), refs.end(), found.begin()));

  query.max_steps = 20;
  query.from = 10;
  result = index->Match(query, found);
  EXPECT_EQ(result.matched, 20u);
  EXPECT_EQ(result.end, MatchEnd::kSlice);
  EXPECT_EQ(found[0], refs[10]);

  query.chain = std::span(chain).first(50);
  query.from = 45;
  result = index->Match(query, found);
  EXPECT_EQ(result.matched, 5u);
  EXPECT_EQ(result.end, MatchEnd::kChainEnd);

  query.from = 50;
  result = index->Match(query, found);
  EXPECT_EQ(result.matched, 0u);
  EXPECT_EQ(result.end, MatchEnd::kChainEnd);
}

TEST(IndexTest, AMatchSaysWhatEndedIt) {
  const auto index = MakeIndex(100);
  const std::vector<BlockRef> refs = InsertChain(index.get(), 3);
  const BlockRef filling = MustInsert(index.get(), ChainBlock(3, BlockState::kFilling));
  const std::vector<Key> chain = ChainKeys(4);
  std::vector<BlockRef> found(4);
  MatchQuery query{.chain = chain, .max_steps = 4, .unix_seconds = 100};

  MatchResult result = index->Match(query, found);
  EXPECT_EQ(result.matched, 3u);
  EXPECT_EQ(result.end, MatchEnd::kFilling);
  EXPECT_EQ(result.stopped_at, filling);

  index->SetExpiry(refs[2], 100);
  result = index->Match(query, found);
  EXPECT_EQ(result.matched, 2u);
  EXPECT_EQ(result.end, MatchEnd::kExpired);
  EXPECT_EQ(result.stopped_at, refs[2]);

  index->SetResident(refs[1], kTierNvme, true);
  query.tiers = TierBit(kTierNvme);
  query.from = 1;
  result = index->Match(query, found);
  EXPECT_EQ(result.matched, 1u);
  EXPECT_EQ(result.end, MatchEnd::kMissing);
  EXPECT_EQ(result.stopped_at, refs[2]);

  index->SetComplete(filling, {1, 2});
  EXPECT_EQ(index->at(filling).state, BlockState::kResident);
  EXPECT_EQ(index->at(filling).checksum, (Checksum{1, 2}));
}

TEST(IndexTest, ManyKeysAreFoundInAnyOrder) {
  const auto index = MakeIndex(200);
  const std::vector<BlockRef> refs = InsertChain(index.get(), 100);
  for (const size_t count : {0, 1, 15, 16, 17, 31, 32, 33, 100}) {
    std::vector<Key> keys;
    std::vector<BlockRef> expected;
    for (size_t i = 0; i < count; ++i) {
      const size_t block = i * 37 % 100;
      const bool there = i % 5 != 3;
      keys.push_back(KeyOf(there ? block + 1 : 1'000'000 + i));
      expected.push_back(there ? refs[block] : kNoBlock);
    }
    std::vector<BlockRef> found(count);
    index->FindMany(0, 0, 0, keys, found);
    EXPECT_EQ(found, expected);
  }
}

TEST(IndexTest, ExpiredBlocksAreCollectedInSlices) {
  const auto index = MakeIndex(100);
  const std::vector<BlockRef> refs = InsertChain(index.get(), 10);
  for (size_t i : {2, 5, 7}) index->SetExpiry(refs[i], 50);
  index->SetExpiry(refs[8], 51);
  std::vector<BlockRef> collected;
  BlockRef cursor = 0;
  std::vector<BlockRef> slice(2);
  do {
    const size_t count = index->CollectExpired(50, 4, &cursor, slice);
    collected.insert(collected.end(), slice.begin(), slice.begin() + static_cast<long>(count));
  } while (cursor != 0);
  EXPECT_THAT(collected, ElementsAre(refs[2], refs[5], refs[7]));
}

TEST(IndexTest, ABlockTakesAtMost150Bytes) {
  const auto index = MakeIndex(100'000);
  InsertChain(index.get(), 99'999);
  EXPECT_LE(index->bytes(), 150u * 100'000);
  index->CheckConsistency();
}

}  // namespace
}  // namespace aquifer
