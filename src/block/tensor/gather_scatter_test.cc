// Round trips through random layouts, compared with a reference that copies byte by byte from a
// tensor that everyone can read: [layer, K or V, head, token] of vectors.
#include "block/tensor/gather_scatter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0xee};

// One sequence of a model, all heads.
struct Model {
  Layout layout;
  uint32_t blocks = 0;
  Bytes vectors[2];  // Of K and of V: layer, head, token of the sequence.

  const KvGroup& group() const { return layout.groups[0]; }
  uint32_t kinds() const { return group().value_dim == 0 ? 1 : 2; }
  uint64_t VectorBytes(uint32_t kind) const {
    return uint64_t{kind == 0 ? group().key_dim : group().value_dim} * DTypeBytes(group().dtype);
  }
  uint64_t tokens() const { return uint64_t{blocks} * layout.tokens_per_block; }
  const std::byte* Vector(uint32_t layer, uint32_t kind, uint32_t head, uint64_t token) const {
    const uint64_t index = (uint64_t{layer} * group().kv_heads + head) * tokens() + token;
    return vectors[kind].data() + index * VectorBytes(kind);
  }

  // The bytes that the slot of a block must hold.
  Bytes Block(uint64_t index) const {
    Bytes block;
    for (uint32_t layer = 0; layer < group().layers; ++layer) {
      for (uint32_t kind = 0; kind < kinds(); ++kind) {
        for (uint32_t head = 0; head < group().kv_heads; ++head) {
          for (uint32_t i = 0; i < layout.tokens_per_block; ++i) {
            const std::byte* vector =
                Vector(layer, kind, head, index * layout.tokens_per_block + i);
            block.insert(block.end(), vector, vector + VectorBytes(kind));
          }
        }
      }
    }
    return block;
  }
};

Model RandomModel(SeededRandom* random) {
  const DType dtypes[] = {DType::kFloat8E4M3, DType::kBFloat16, DType::kFloat32};
  const uint32_t block_tokens[] = {16, 32, 48, 128};
  Model model;
  model.layout.kv_format = "test/1";
  model.layout.tokens_per_block = block_tokens[random->Below(4)];
  KvGroup group;
  group.dtype = dtypes[random->Below(3)];
  group.kv_heads = 1u << random->Below(5);
  // Odd dimensions give vectors that are no multiple of a checksum unit.
  const auto dim = [&] {
    return static_cast<uint32_t>(random->Below(2) == 0 ? 1 + random->Below(40)
                                                       : 8 << random->Below(5));
  };
  group.key_dim = dim();
  group.value_dim = random->Below(3) == 0 ? dim() : group.key_dim;
  if (random->Below(5) == 0) {
    group.kind = KvKind::kLatent;
    group.kv_heads = 1;
    group.value_dim = 0;
  }
  group.layers = 1 + static_cast<uint32_t>(random->Below(3));
  model.layout.groups = {group};
  while (BlockBytes(model.layout, 0) < kMinBlockBytes) model.layout.groups[0].layers += 1;
  model.blocks = 1 + static_cast<uint32_t>(random->Below(3));
  for (uint32_t kind = 0; kind < model.kinds(); ++kind) {
    model.vectors[kind].resize(uint64_t{model.group().layers} * group.kv_heads * model.tokens() *
                               model.VectorBytes(kind));
    random->Fill(model.vectors[kind]);
  }
  return model;
}

// The memory of one rank of an engine, in some order, and the description of it.
struct Rank {
  RankHeads held;
  Bytes arena;
  EngineLayout engine;
  std::vector<uint32_t> page_table;
  EngineMap map;
};

// An axis of the arena, from the innermost out.
enum Axis { kToken, kHead, kPage, kKind, kLayer, kAxes };

void PlacePlanes(const Model& model, SeededRandom* random, Rank* rank) {
  const uint64_t element = DTypeBytes(model.group().dtype);
  uint64_t counts[kAxes] = {rank->engine.page_tokens, rank->held.heads.count(), rank->engine.pages,
                            model.kinds(), model.group().layers};
  uint64_t strides[kAxes] = {};
  uint64_t kind_offset = 0;
  std::vector<int> order(kAxes);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random->Below(i)]);

  // K and V fused: a vector of both. Otherwise each takes the room of the longer one.
  const bool fused = random->Below(2) == 0 || model.group().key_dim != model.group().value_dim;
  uint64_t inside = model.VectorBytes(0);
  if (fused) {
    kind_offset = model.VectorBytes(0);
    inside += model.VectorBytes(1);
    counts[kKind] = 1;
  }
  const bool padded = random->Below(2) == 0;
  for (const int axis : order) {
    if (padded) inside += random->Below(3) * element;
    strides[axis] = inside;
    inside *= counts[axis];
  }
  if (!fused) kind_offset = strides[kKind];
  const uint64_t lead = random->Below(9) * element;
  rank->arena.assign(lead + inside, kUntouched);
  for (uint32_t layer = 0; layer < model.group().layers; ++layer) {
    for (uint32_t kind = 0; kind < model.kinds(); ++kind) {
      const uint64_t at = lead + layer * strides[kLayer] + kind * kind_offset;
      rank->engine.planes.push_back({.base = rank->arena.data() + at,
                                     .bytes = rank->arena.size() - at,
                                     .page_stride = strides[kPage],
                                     .head_stride = strides[kHead],
                                     .token_stride = strides[kToken]});
    }
  }
}

uint32_t RandomPageTokens(const Model& model, SeededRandom* random) {
  const uint32_t block = model.layout.tokens_per_block;
  if (random->Below(3) == 0) return block * (1 + static_cast<uint32_t>(random->Below(3)));
  std::vector<uint32_t> divisors;
  for (uint32_t tokens = 1; tokens <= block; ++tokens) {
    if (block % tokens == 0) divisors.push_back(tokens);
  }
  return divisors[random->Below(divisors.size())];
}

std::unique_ptr<Rank> RandomRank(const Model& model, uint32_t ranks, uint32_t index,
                                 uint32_t page_tokens, SeededRandom* random) {
  auto rank = std::make_unique<Rank>();
  rank->held = *HeadsOfRank(model.group().kv_heads, ranks, index);
  rank->engine.heads = rank->held.heads;
  rank->engine.page_tokens = page_tokens;
  const auto needed = static_cast<uint32_t>((model.tokens() + page_tokens - 1) / page_tokens);
  rank->engine.pages = needed + random->Below(3);
  std::vector<uint32_t> pages(rank->engine.pages);
  std::iota(pages.begin(), pages.end(), 0u);
  for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random->Below(i)]);
  rank->page_table.assign(pages.begin(), pages.begin() + needed);
  PlacePlanes(model, random, rank.get());
  auto map = CompileEngineLayout(model.layout, 0, rank->engine);
  EXPECT_TRUE(map.ok()) << map.status().ToString();
  if (map.ok()) rank->map = *std::move(map);
  return rank;
}

// Byte by byte, what an engine's own writes to its cache do.
void FillReference(const Model& model, const Rank& rank, Bytes* arena) {
  const HeadRange heads = rank.held.heads;
  for (uint32_t layer = 0; layer < model.group().layers; ++layer) {
    for (uint32_t kind = 0; kind < model.kinds(); ++kind) {
      const EnginePlane& plane = rank.engine.planes[layer * model.kinds() + kind];
      const auto begin = static_cast<uint64_t>(plane.base - rank.arena.data());
      for (uint32_t head = heads.begin; head < heads.end; ++head) {
        for (uint64_t token = 0; token < model.tokens(); ++token) {
          const uint64_t page = rank.page_table[token / rank.engine.page_tokens];
          const uint64_t at = begin + page * plane.page_stride +
                              (head - heads.begin) * plane.head_stride +
                              token % rank.engine.page_tokens * plane.token_stride;
          std::copy_n(model.Vector(layer, kind, head, token), model.VectorBytes(kind),
                      arena->begin() + static_cast<ptrdiff_t>(at));
        }
      }
    }
  }
}

// Gathers the sequence from an engine of `ranks` and checks every slot.
std::vector<Bytes> StoreBy(const Model& model, uint32_t ranks, SeededRandom* random) {
  std::vector<Bytes> slots(model.blocks, Bytes(BlockBytes(model.layout, 0), kUntouched));
  std::vector<LaneSums> sums(model.blocks);
  const uint32_t page_tokens = RandomPageTokens(model, random);
  for (uint32_t index = 0; index < ranks; ++index) {
    const auto rank = RandomRank(model, ranks, index, page_tokens, random);
    FillReference(model, *rank, &rank->arena);
    if (!rank->held.writes) continue;
    std::vector<GatherOp> ops(model.blocks);
    for (uint32_t i = 0; i < model.blocks; ++i) {
      ops[i].place = {rank->page_table, i};
      ops[i].slot = slots[i];
    }
    Gather(rank->map, ops);
    for (uint32_t i = 0; i < model.blocks; ++i) {
      EXPECT_TRUE(ops[i].status.ok()) << ops[i].status.ToString();
      sums[i] = sums[i] + ops[i].sums;
    }
  }
  for (uint32_t i = 0; i < model.blocks; ++i) {
    EXPECT_EQ(slots[i], model.Block(i)) << "block " << i;
    EXPECT_EQ(FinishChecksum(sums[i], slots[i].size()), ChecksumOf(model.Block(i)));
  }
  return slots;
}

// Scatters it to an engine of `ranks` and checks every byte of its memory.
void ReadBy(const Model& model, uint32_t ranks, const std::vector<Bytes>& slots, Verify verify,
            SeededRandom* random) {
  const uint32_t page_tokens = RandomPageTokens(model, random);
  std::vector<LaneSums> sums(model.blocks);
  for (uint32_t index = 0; index < ranks; ++index) {
    const auto rank = RandomRank(model, ranks, index, page_tokens, random);
    Bytes expected = rank->arena;
    FillReference(model, *rank, &expected);
    std::vector<ScatterOp> ops(model.blocks);
    for (uint32_t i = 0; i < model.blocks; ++i) {
      ops[i].place = {rank->page_table, i};
      ops[i].slot = slots[i];
      ops[i].checksum = ChecksumOf(slots[i]);
    }
    Scatter(rank->map, verify, ops);
    EXPECT_EQ(rank->arena, expected) << "rank " << index << " of " << ranks;
    for (uint32_t i = 0; i < model.blocks; ++i) {
      EXPECT_TRUE(ops[i].status.ok()) << ops[i].status.ToString();
      if (rank->held.writes) sums[i] = sums[i] + ops[i].sums;
    }
  }
  for (uint32_t i = 0; i < model.blocks; ++i) {
    EXPECT_EQ(FinishChecksum(sums[i], slots[i].size()), ChecksumOf(slots[i]));
  }
}

class RoundTripTest : public testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(StoredBy, RoundTripTest, testing::Values(1u, 2u, 4u, 8u, 32u));

TEST_P(RoundTripTest, AnyTensorParallelSizeReadsWhatAnyOtherStored) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed * 100 + GetParam());
    const Model model = RandomModel(&random);
    const std::vector<Bytes> slots = StoreBy(model, GetParam(), &random);
    for (const uint32_t ranks : {1u, 2u, 4u, 8u, 16u}) {
      ReadBy(model, ranks, slots, static_cast<Verify>(random.Below(3)), &random);
    }
    if (HasFailure()) break;
  }
}

// --- One small engine, for what can go wrong ----------------------------------------------------

// Two layers of two heads: 16 tokens of 64 bytes each. NHD pages of 8 tokens.
struct SmallEngine {
  SmallEngine() {
    layout.kv_format = "test/1";
    layout.tokens_per_block = 16;
    KvGroup group;
    group.layers = 2;
    group.kv_heads = 2;
    group.key_dim = 32;
    group.value_dim = 32;
    layout.groups = {group};
    SeededRandom(1).Fill(arena);
  }

  EngineMap Map(HeadRange heads) {
    EngineLayout engine;
    engine.heads = heads;
    engine.pages = 4;
    engine.page_tokens = 8;
    for (uint64_t plane = 0; plane < 4; ++plane) {
      engine.planes.push_back({.base = arena.data() + plane * 4096,
                               .bytes = 4096,
                               .page_stride = 1024,
                               .head_stride = 64,
                               .token_stride = 128});
    }
    auto map = CompileEngineLayout(layout, 0, engine);
    EXPECT_TRUE(map.ok()) << map.status().ToString();
    return *std::move(map);
  }

  Layout layout;
  Bytes arena = Bytes(16384);
  Bytes slot = Bytes(8192);
  std::vector<uint32_t> table = {3, 1, 0, 2};
};

TEST(GatherTest, OneBlocksMistakeIsItsOwn) {
  SmallEngine engine;
  const EngineMap map = engine.Map({0, 2});
  const std::vector<uint32_t> far = {0, 4};
  Bytes slots[4] = {engine.slot, engine.slot, engine.slot, Bytes(8191)};
  GatherOp ops[4];
  for (size_t i = 0; i < 4; ++i) {
    ops[i].place = {engine.table, 0};
    ops[i].slot = slots[i];
  }
  ops[0].place.index = 2;
  ops[1].place.page_table = far;
  Gather(map, ops);
  EXPECT_THAT(ops[0].status.message(), HasSubstr("block 2 is not one of the 2 whole blocks"));
  EXPECT_THAT(ops[1].status.message(), HasSubstr("page 4 is not one of the engine's 4"));
  EXPECT_TRUE(ops[2].status.ok());
  EXPECT_THAT(ops[3].status.message(), HasSubstr("the slot has 8191 bytes, but a block has 8192"));
  for (const size_t i : {0, 1, 3}) {
    EXPECT_EQ(ops[i].status.code(), Code::kInvalid);
    EXPECT_EQ(ops[i].sums, LaneSums{});
    EXPECT_EQ(slots[i], Bytes(slots[i].size())) << "written to slot " << i;
  }
  EXPECT_EQ(FinishChecksum(ops[2].sums, 8192), ChecksumOf(slots[2]));
}

TEST(GatherTest, ATailThatFillsNoBlockHasNone) {
  SmallEngine engine;
  const EngineMap map = engine.Map({0, 2});
  const std::span<const uint32_t> table = engine.table;
  GatherOp ops[3];
  for (GatherOp& op : ops) op.slot = engine.slot;
  ops[0].place = {table.first(3), 1};  // A block and a half.
  ops[1].place = {table.first(1), 0};
  ops[2].place = {{}, UINT64_MAX};
  Gather(map, ops);
  for (const GatherOp& op : ops) EXPECT_EQ(op.status.code(), Code::kInvalid);
}

struct ScatterCase {
  HeadRange heads;
  uint64_t damaged;  // Which byte of the slot; head 0 of layer 0's K comes first.
};

TEST(ScatterTest, DamageInAnyHeadIsFoundByAnyRank) {
  for (const ScatterCase& c :
       {ScatterCase{{0, 2}, 5}, ScatterCase{{0, 1}, 5}, ScatterCase{{1, 2}, 5},
        ScatterCase{{0, 1}, 8191}, ScatterCase{{1, 2}, 8191}, ScatterCase{{0, 1}, 4096}}) {
    SmallEngine engine;
    GatherOp gather;
    gather.place = {engine.table, 1};
    gather.slot = engine.slot;
    Gather(engine.Map({0, 2}), {&gather, 1});
    const EngineMap map = engine.Map(c.heads);
    ScatterOp op;
    op.place = {engine.table, 0};
    op.slot = engine.slot;
    op.checksum = ChecksumOf(engine.slot);
    for (const Verify verify : {Verify::kNever, Verify::kWhileCopying, Verify::kFirst}) {
      Scatter(map, verify, {&op, 1});
      EXPECT_TRUE(op.status.ok());
    }
    const LaneSums sums = op.sums;

    engine.slot[c.damaged] ^= std::byte{1};
    const Bytes before = engine.arena;
    Scatter(map, Verify::kFirst, {&op, 1});
    EXPECT_EQ(op.status.code(), Code::kCorrupt);
    EXPECT_EQ(engine.arena, before) << "written to pages before the block was verified";
    Scatter(map, Verify::kWhileCopying, {&op, 1});
    EXPECT_EQ(op.status.code(), Code::kCorrupt);
    Scatter(map, Verify::kNever, {&op, 1});
    EXPECT_TRUE(op.status.ok());
    const bool own = c.heads.count() == 2 || (c.damaged / 1024 % 2 == c.heads.begin);
    EXPECT_EQ(op.sums != sums, own);
  }
}

TEST(ScatterTest, AMistakeLeavesThePagesAsTheyWere) {
  SmallEngine engine;
  const EngineMap map = engine.Map({0, 2});
  const Bytes before = engine.arena;
  const std::vector<uint32_t> far = {0, UINT32_MAX};
  ScatterOp op;
  op.place = {far, 0};
  op.slot = engine.slot;
  Scatter(map, Verify::kNever, {&op, 1});
  EXPECT_EQ(op.status.code(), Code::kInvalid);
  op.place = {engine.table, 0};
  op.slot = std::span(engine.slot).first(4096);
  Scatter(map, Verify::kNever, {&op, 1});
  EXPECT_EQ(op.status.code(), Code::kInvalid);
  EXPECT_EQ(engine.arena, before);
}

// --- Opaque pages --------------------------------------------------------------------------------

TEST(OpaquePagesTest, PagesOfAnyLengthAreCopiedAsTheyAre) {
  for (const uint64_t page_bytes : {2048u, 4096u, 4104u, 4100u, 1001u, 333u, 8208u, 16385u}) {
    for (const bool cross_layer : {false, true}) {
      constexpr uint64_t kPlanes = 5;
      constexpr uint64_t kPages = 6;
      Layout layout;
      layout.kv_format = "packed-avx512/32";
      layout.tokens_per_block = 64;
      KvGroup group;
      group.kv_heads = 8;
      group.opaque_bytes = kPlanes * 2 * page_bytes;
      if (group.opaque_bytes < kMinBlockBytes) continue;
      layout.groups = {group};
      Bytes arena(kPlanes * kPages * page_bytes);
      SeededRandom(page_bytes).Fill(arena);
      EngineLayout engine;
      engine.heads = {0, 8};
      engine.pages = kPages;
      engine.page_tokens = 32;
      engine.opaque_page_bytes = page_bytes;
      const uint64_t plane_stride = cross_layer ? page_bytes : kPages * page_bytes;
      const uint64_t page_stride = cross_layer ? kPlanes * page_bytes : page_bytes;
      for (uint64_t i = 0; i < kPlanes; ++i) {
        engine.planes.push_back({.base = arena.data() + i * plane_stride,
                                 .bytes = arena.size() - i * plane_stride,
                                 .page_stride = page_stride,
                                 .head_stride = 0,
                                 .token_stride = 0});
      }
      const auto map = CompileEngineLayout(layout, 0, engine);
      ASSERT_TRUE(map.ok()) << map.status().ToString();

      const std::vector<uint32_t> from = {5, 0, 2, 1};
      Bytes slot(group.opaque_bytes);
      GatherOp gather;
      gather.place = {from, 1};
      gather.slot = slot;
      Gather(*map, {&gather, 1});
      ASSERT_TRUE(gather.status.ok());
      Bytes expected;
      for (uint64_t plane = 0; plane < kPlanes; ++plane) {
        for (const uint64_t page : {2, 1}) {
          const auto at =
              arena.begin() + static_cast<ptrdiff_t>(plane * plane_stride + page * page_stride);
          expected.insert(expected.end(), at, at + static_cast<ptrdiff_t>(page_bytes));
        }
      }
      EXPECT_EQ(slot, expected);
      EXPECT_EQ(FinishChecksum(gather.sums, slot.size()), ChecksumOf(slot)) << page_bytes;

      const std::vector<uint32_t> to = {4, 3};
      Bytes after = arena;
      for (uint64_t plane = 0; plane < kPlanes; ++plane) {
        for (const auto& [source, target] : {std::pair{2, 4}, std::pair{1, 3}}) {
          const uint64_t base = plane * plane_stride;
          std::copy_n(arena.begin() + static_cast<ptrdiff_t>(base + source * page_stride),
                      page_bytes,
                      after.begin() + static_cast<ptrdiff_t>(base + target * page_stride));
        }
      }
      ScatterOp scatter;
      scatter.place = {to, 0};
      scatter.slot = slot;
      scatter.checksum = ChecksumOf(slot);
      Scatter(*map, Verify::kWhileCopying, {&scatter, 1});
      EXPECT_TRUE(scatter.status.ok());
      EXPECT_EQ(scatter.sums, gather.sums);
      EXPECT_EQ(arena, after);
    }
  }
}

}  // namespace
}  // namespace aquifer
