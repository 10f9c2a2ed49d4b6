#include "tier/nvme/nvme_index.h"

#include <cstring>
#include <map>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

BlockMeta MetaOf(uint64_t number) {
  SeededRandom random(number);
  BlockMeta meta;
  random.Fill(meta.id.key.bytes);
  random.Fill(meta.parent.bytes);
  meta.id.tenant.bytes[0] = static_cast<std::byte>(number % 5);
  meta.id.group = static_cast<uint16_t>(number % 3);
  meta.id.part = static_cast<uint16_t>(number % 2);
  meta.position = static_cast<uint32_t>(number % 100);
  meta.layout_fingerprint[1] = static_cast<std::byte>(number % 2);
  meta.raw_bytes = meta.stored_bytes = 4096 + number;
  meta.checksum = {number, ~number};
  if (number % 4 == 0) {
    meta.data_key_id[0] = std::byte{1};
    random.Fill(meta.nonce);
    random.Fill(meta.tag);
  }
  meta.expiry_unix_seconds = static_cast<int64_t>(number) * 10;
  meta.engine_hash = number * 3;
  return meta;
}

RecordPlace PlaceOf(uint64_t number) {
  return {.drive = static_cast<uint32_t>(number % 256),
          .segment = static_cast<uint32_t>(number % 1'000'000),
          .page = static_cast<uint32_t>(number * 7),
          .record = static_cast<uint32_t>(number % 5000)};
}

TEST(NvmeIndexTest, EverythingThatWasPutInComesBack) {
  NvmeIndex index;
  for (uint64_t i = 0; i < 5000; ++i) index.Insert(MetaOf(i), {i + 1, i + 1}, PlaceOf(i));
  for (uint64_t i = 0; i < 5000; ++i) {
    const BlockMeta want = MetaOf(i);
    const NvmeIndex::EntryId entry = index.Find(want.id);
    ASSERT_NE(entry, NvmeIndex::kNone);
    const BlockMeta meta = index.Meta(entry);
    EXPECT_EQ(meta.id, want.id);
    EXPECT_EQ(meta.parent, want.parent);
    EXPECT_EQ(meta.position, want.position);
    EXPECT_EQ(meta.layout_fingerprint, want.layout_fingerprint);
    EXPECT_EQ(meta.raw_bytes, want.raw_bytes);
    EXPECT_EQ(meta.data_key_id, want.data_key_id);
    EXPECT_EQ(meta.nonce, want.nonce);
    EXPECT_EQ(meta.tag, want.tag);
    EXPECT_EQ(meta.checksum, want.checksum);
    EXPECT_EQ(meta.expiry_unix_seconds, want.expiry_unix_seconds);
    EXPECT_EQ(meta.engine_hash, want.engine_hash);
    EXPECT_EQ(index.Place(entry), PlaceOf(i));
    EXPECT_EQ(index.age(entry).sequence, i + 1);
  }
}

// Every entry, in the order in which the tier shows them.
std::vector<NvmeIndex::OrderKey> Ordered(const NvmeIndex& index) {
  std::vector<NvmeIndex::OrderKey> keys;
  NvmeIndex::EntryId next = 0;
  while (next != NvmeIndex::kNone) next = index.Collect(next, 100, &keys);
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(NvmeIndexTest, ARandomHistoryAgreesWithAMap) {
  NvmeIndex index;
  std::map<BlockId, uint64_t> model;
  SeededRandom random(3);
  for (uint64_t step = 0; step < 50'000; ++step) {
    const BlockMeta meta = MetaOf(random.Below(3000));
    const NvmeIndex::EntryId entry = index.Find(meta.id);
    ASSERT_EQ(entry != NvmeIndex::kNone, model.contains(meta.id));
    if (entry == NvmeIndex::kNone) {
      index.Insert(meta, {step, step}, PlaceOf(step));
      model[meta.id] = step;
    } else if (random.Below(2) == 0) {
      index.Remove(entry);
      EXPECT_FALSE(index.Holds(entry, meta.id));
      model.erase(meta.id);
    } else {
      ASSERT_EQ(index.age(entry).sequence, model[meta.id]);
      index.Move(entry, {step, step}, PlaceOf(step));
      model[meta.id] = step;
    }
  }
  EXPECT_EQ(index.size(), model.size());
  EXPECT_EQ(Ordered(index).size(), model.size());
}

TEST(NvmeIndexTest, TheOrderIsByPositionAndThenBySequence) {
  NvmeIndex index;
  for (uint64_t i = 0; i < 1000; ++i) index.Insert(MetaOf(i), {5000 - i, 5000 - i}, PlaceOf(i));
  std::pair<uint32_t, uint64_t> last{0, 0};
  for (const NvmeIndex::OrderKey& key : Ordered(index)) {
    const std::pair now(index.Meta(key.entry).position, index.age(key.entry).sequence);
    EXPECT_LT(last, now);
    last = now;
  }
}

TEST(NvmeIndexTest, ABlockCostsUnderTwoHundredBytes) {
  NvmeIndex index;
  for (uint64_t i = 0; i < 100'000; ++i) {
    BlockMeta meta = MetaOf(i);
    meta.nonce = {};
    meta.tag = {};
    index.Insert(meta, {i, i}, PlaceOf(i));
  }
  EXPECT_LE(index.memory_bytes(), 100'000u * 200);
}

TEST(NvmeIndexTest, ModelsThatComeAndGoCostNothing) {
  NvmeIndex index;
  const auto put_and_remove = [&index](uint64_t number) {
    BlockMeta meta = MetaOf(1);
    std::memcpy(meta.layout_fingerprint.data(), &number, sizeof(number));
    std::memcpy(meta.id.tenant.bytes.data(), &number, sizeof(number));
    const NvmeIndex::EntryId entry = index.Insert(meta, {1, 1}, PlaceOf(1));
    EXPECT_EQ(index.Meta(entry).layout_fingerprint, meta.layout_fingerprint);
    EXPECT_EQ(index.Find(meta.id), entry);
    index.Remove(entry);
  };
  put_and_remove(0);
  const uint64_t before = index.memory_bytes();
  for (uint64_t i = 1; i < 10'000; ++i) put_and_remove(i);
  EXPECT_EQ(index.memory_bytes(), before);
}

}  // namespace
}  // namespace aquifer
