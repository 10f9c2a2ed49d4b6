// Every family, filled and read through its shape alone: element [i][j][k]... of a tensor as the
// engine's own code would index it.
#include "block/tensor/engine_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "block/tensor/gather_scatter.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kLayers = 3;
constexpr uint64_t kHeads = 4;
constexpr uint64_t kDim = 24;
constexpr uint64_t kPages = 7;
constexpr uint64_t kPage = 16;
constexpr uint64_t kBlock = 32;
constexpr uint64_t kElementBytes = 2;

Layout SomeLayout(uint64_t block_tokens = kBlock) {
  Layout layout;
  layout.kv_format = "test/1";
  layout.tokens_per_block = static_cast<uint32_t>(block_tokens);
  KvGroup group;
  group.layers = kLayers;
  group.kv_heads = kHeads;
  group.key_dim = kDim;
  group.value_dim = kDim;
  layout.groups = {group};
  return layout;
}

Layout LatentLayout() {
  Layout layout = SomeLayout();
  layout.groups[0].kind = KvKind::kLatent;
  layout.groups[0].kv_heads = 1;
  layout.groups[0].key_dim = 72;
  layout.groups[0].value_dim = 0;
  return layout;
}

// A tensor with memory of its own, whose dimensions lie in memory in `order`, outermost first.
struct OwnTensor {
  explicit OwnTensor(std::vector<uint64_t> sizes, std::vector<size_t> order = {})
      : shape(std::move(sizes)), strides(shape.size()) {
    if (order.empty()) {
      order.resize(shape.size());
      std::iota(order.begin(), order.end(), size_t{0});
    }
    uint64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      strides[order[i]] = stride;
      stride *= shape[order[i]];
    }
    memory.resize(stride * kElementBytes);
    SeededRandom(stride).Fill(memory);
  }

  EngineTensor View() { return {memory, shape, strides, kElementBytes}; }

  std::byte* At(const std::vector<uint64_t>& index) {
    EXPECT_EQ(index.size(), shape.size());
    uint64_t element = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      EXPECT_LT(index[i], shape[i]);
      element += index[i] * strides[i];
    }
    return memory.data() + element * kElementBytes;
  }

  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;
  Bytes memory;
};

std::vector<EngineTensor> Views(std::vector<OwnTensor>* tensors) {
  std::vector<EngineTensor> views;
  views.reserve(tensors->size());
  for (OwnTensor& tensor : *tensors) views.push_back(tensor.View());
  return views;
}

// Where the element of [layer, K or V, head, page, token in it, dimension] is.
using Element = std::function<std::byte*(uint64_t layer, uint64_t kind, uint64_t head,
                                         uint64_t page, uint64_t token, uint64_t dim)>;

struct Expectation {
  Layout layout = SomeLayout();
  Result<EngineLayout> engine = Status(Code::kInvalid);
  Element element;
  std::vector<uint32_t> page_table = {4, 2, 6, 0};
};

// The block by the definition: layer, K then V, head, token.
Bytes ReferenceBlock(const Expectation& e, uint64_t page_tokens, uint64_t index) {
  const KvGroup& group = e.layout.groups[0];
  Bytes block;
  for (uint64_t layer = 0; layer < group.layers; ++layer) {
    for (uint64_t kind = 0; kind < (group.value_dim == 0 ? 1 : 2); ++kind) {
      for (uint64_t head = 0; head < group.kv_heads; ++head) {
        for (uint64_t i = 0; i < e.layout.tokens_per_block; ++i) {
          const uint64_t token = index * e.layout.tokens_per_block + i;
          const uint64_t page = e.page_table[token / page_tokens];
          for (uint64_t dim = 0; dim < (kind == 0 ? group.key_dim : group.value_dim); ++dim) {
            const std::byte* at = e.element(layer, kind, head, page, token % page_tokens, dim);
            block.insert(block.end(), at, at + kElementBytes);
          }
        }
      }
    }
  }
  return block;
}

// Gathers two blocks, scatters each to the other's place, and gathers again.
void ExpectMaps(const Expectation& e) {
  ASSERT_TRUE(e.engine.ok()) << e.engine.status().ToString();
  const auto map = CompileEngineLayout(e.layout, 0, *e.engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  const uint64_t page_tokens = e.engine->page_tokens;
  const Bytes expected[2] = {ReferenceBlock(e, page_tokens, 0), ReferenceBlock(e, page_tokens, 1)};
  Bytes slots[2] = {Bytes(map->block_bytes), Bytes(map->block_bytes)};
  GatherOp gathers[2];
  for (size_t i = 0; i < 2; ++i) {
    gathers[i].place = {e.page_table, i};
    gathers[i].slot = slots[i];
  }
  Gather(*map, gathers);
  ScatterOp scatters[2];
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(gathers[i].status.ok()) << gathers[i].status.ToString();
    EXPECT_EQ(slots[i], expected[i]) << "block " << i;
    scatters[i].place = {e.page_table, 1 - i};
    scatters[i].slot = slots[i];
    scatters[i].checksum = FinishChecksum(gathers[i].sums, slots[i].size());
  }
  Scatter(*map, Verify::kWhileCopying, scatters);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(scatters[i].status.ok()) << scatters[i].status.ToString();
    EXPECT_EQ(ReferenceBlock(e, page_tokens, i), expected[1 - i]) << "block " << i;
  }
}

EngineGroup AllHeads(const Layout& layout) {
  return {.layout = &layout, .group = 0, .heads = {0, layout.groups[0].kv_heads}};
}

std::vector<OwnTensor> Tensors(const std::vector<uint64_t>& shape,
                               const std::vector<size_t>& order = {}) {
  std::vector<OwnTensor> tensors;
  tensors.reserve(kLayers);
  for (uint64_t layer = 0; layer < kLayers; ++layer) tensors.emplace_back(shape, order);
  return tensors;
}

TEST(EngineFamiliesTest, VllmWithKAndVFirst) {
  // As they are, and in HND order: the same shape with other strides.
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 3, 4}, {0, 1, 3, 2, 4}}) {
    auto tensors = Tensors({2, kPages, kPage, kHeads, kDim}, order);
    Expectation e;
    e.engine = VllmKvFirst(AllHeads(e.layout), Views(&tensors));
    e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
      return tensors[layer].At({kind, page, token, head, dim});
    };
    ExpectMaps(e);
  }
}

TEST(EngineFamiliesTest, VllmWithPagesFirst) {
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 3, 4}, {0, 1, 3, 2, 4}}) {
    auto tensors = Tensors({kPages, 2, kPage, kHeads, kDim}, order);
    Expectation e;
    e.engine = VllmPageFirst(AllHeads(e.layout), Views(&tensors));
    e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
      return tensors[layer].At({page, kind, token, head, dim});
    };
    ExpectMaps(e);
  }
}

TEST(EngineFamiliesTest, VllmWithCrossLayerBlocks) {
  // [L, B, 2, N, H, C] with B outermost in memory: NHD and HND.
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{1, 0, 2, 3, 4, 5}, {1, 0, 2, 4, 3, 5}, {1, 4, 0, 2, 3, 5}}) {
    OwnTensor all({kLayers, kPages, 2, kPage, kHeads, kDim}, order);
    Expectation e;
    const auto layers = LayersOf(all.View());
    ASSERT_TRUE(layers.ok());
    e.engine = VllmPageFirst(AllHeads(e.layout), *layers);
    e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
      return all.At({layer, page, kind, token, head, dim});
    };
    ExpectMaps(e);
  }
}

TEST(EngineFamiliesTest, VllmFusedInAllOfItsOrders) {
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2, 3, 4},   // LBHNC
                                                   {0, 1, 3, 2, 4},   // LBNHC
                                                   {0, 2, 1, 3, 4},   // LHBNC
                                                   {1, 0, 2, 3, 4},   // BLHNC
                                                   {1, 0, 3, 2, 4},   // BLNHC
                                                   {1, 2, 0, 3, 4}};  // BHLNC
  for (const auto& order : orders) {
    for (const uint64_t value_dim : {kDim, kDim / 2}) {
      OwnTensor all({kLayers, kPages, kHeads, kPage, kDim + value_dim}, order);
      Expectation e;
      e.layout.groups[0].value_dim = static_cast<uint32_t>(value_dim);
      const auto layers = LayersOf(all.View());
      ASSERT_TRUE(layers.ok());
      e.engine = VllmFused(AllHeads(e.layout), *layers);
      e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
        return all.At({layer, page, head, token, kind * kDim + dim});
      };
      ExpectMaps(e);
    }
  }
}

TEST(EngineFamiliesTest, VllmFusedAsBytes) {
  OwnTensor all({kLayers, kPages, kHeads, kPage, 2 * kDim});
  Expectation e;
  EngineTensor bytes = all.View();
  bytes.element_bytes = 1;
  bytes.shape.back() *= kElementBytes;
  for (size_t i = 0; i < 4; ++i) bytes.strides[i] *= kElementBytes;
  const auto layers = LayersOf(bytes);
  ASSERT_TRUE(layers.ok());
  e.engine = VllmFused(AllHeads(e.layout), *layers);
  e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
    return all.At({layer, page, head, token, kind * kDim + dim});
  };
  ExpectMaps(e);
}

TEST(EngineFamiliesTest, VllmPackedForCpus) {
  // As a CPU kernel sees it: [B, H, 2 * N, C], the first N rows K's and the others V's, in an order
  // of elements that only it knows. Where the bytes of a head's K lie is all that is promised.
  auto tensors = Tensors({kPages, kHeads, kPage, 2 * kDim});
  Expectation e;
  e.engine = VllmCpuPacked(AllHeads(e.layout), Views(&tensors));
  e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
    const uint64_t in_head = (kind * kPage + token) * kDim + dim;
    return tensors[layer].At({page, head, in_head / (2 * kDim), in_head % (2 * kDim)});
  };
  ExpectMaps(e);

  // Pages larger than the block cannot be cut: the layout must say 16.
  const Layout small = SomeLayout(kPage / 2);
  const auto engine = VllmCpuPacked(AllHeads(small), Views(&tensors));
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT(CompileEngineLayout(small, 0, *engine).status().message(),
              HasSubstr("register the layout with tokens_per_block 16"));

  auto scattered = Tensors({kPages, kHeads, kPage, 2 * kDim}, {0, 2, 1, 3});
  EXPECT_THAT(VllmCpuPacked(AllHeads(e.layout), Views(&scattered)).status().message(),
              HasSubstr("tensor 0: the bytes of a page's head do not lie together"));
}

TEST(EngineFamiliesTest, Latents) {
  auto tensors = Tensors({kPages, kPage, 72});
  Expectation e;
  e.layout = LatentLayout();
  e.engine = VllmLatent(AllHeads(e.layout), Views(&tensors));
  e.element = [&](auto layer, auto, auto, auto page, auto token, auto dim) {
    return tensors[layer].At({page, token, dim});
  };
  ExpectMaps(e);

  // The same in vLLM's fused shape, with one head and no V.
  auto fused = Tensors({kPages, 1, kPage, 72});
  e.engine = VllmFused(AllHeads(e.layout), Views(&fused));
  e.element = [&](auto layer, auto, auto, auto page, auto token, auto dim) {
    return fused[layer].At({page, 0, token, dim});
  };
  ExpectMaps(e);

  const Layout full = SomeLayout();
  EXPECT_THAT(VllmLatent(AllHeads(full), Views(&tensors)).status().message(),
              HasSubstr("the group is not a latent one"));
}

TEST(EngineFamiliesTest, KAndVInTensorsOfTheirOwn) {
  auto keys = Tensors({kPages, kPage, kHeads, kDim});
  auto values = Tensors({kPages, kPage, kHeads, kDim / 2}, {0, 2, 1, 3});
  Expectation e;
  e.layout.groups[0].value_dim = kDim / 2;
  e.engine = PagedApart(AllHeads(e.layout), Views(&keys), Views(&values));
  e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
    return (kind == 0 ? keys : values)[layer].At({page, token, head, dim});
  };
  ExpectMaps(e);
}

TEST(EngineFamiliesTest, SglangSlotsInPagesOfAnySize) {
  auto keys = Tensors({kPages * kPage + 1, kHeads, kDim});  // SGLang keeps a spare slot.
  auto values = Tensors({kPages * kPage + 1, kHeads, kDim});
  for (const uint64_t page_tokens : {uint64_t{1}, uint64_t{8}, kPage}) {
    Expectation e;
    e.engine = SglangSlots(AllHeads(e.layout), Views(&keys), Views(&values),
                           static_cast<uint32_t>(page_tokens));
    e.page_table.resize(2 * kBlock / page_tokens);
    for (size_t i = 0; i < e.page_table.size(); ++i) {
      e.page_table[i] = static_cast<uint32_t>(i * 5 % (kPages * kPage / page_tokens));
    }
    e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
      return (kind == 0 ? keys : values)[layer].At({page * page_tokens + token, head, dim});
    };
    ExpectMaps(e);
  }

  auto latents = Tensors({kPages * kPage, 1, 72});
  Expectation e;
  e.layout = LatentLayout();
  e.engine = SglangSlots(AllHeads(e.layout), Views(&latents), {}, kPage);
  e.element = [&](auto layer, auto, auto, auto page, auto token, auto dim) {
    return latents[layer].At({page * kPage + token, 0, dim});
  };
  ExpectMaps(e);
}

TEST(EngineFamiliesTest, TransformersSequencesAreCutIntoWholeBlocks) {
  auto keys = Tensors({2, kHeads, 2 * kBlock + 5, kDim});
  auto values = Tensors({2, kHeads, 2 * kBlock + 5, kDim});
  Expectation e;
  e.engine = TransformersSequences(AllHeads(e.layout), Views(&keys), Views(&values));
  e.page_table = {1};
  e.element = [&](auto layer, auto kind, auto head, auto page, auto token, auto dim) {
    return (kind == 0 ? keys : values)[layer].At({page, head, token, dim});
  };
  ASSERT_TRUE(e.engine.ok());
  EXPECT_EQ(e.engine->page_tokens, 2 * kBlock);
  ExpectMaps(e);

  auto brief = Tensors({2, kHeads, kBlock - 1, kDim});
  EXPECT_THAT(
      TransformersSequences(AllHeads(e.layout), Views(&brief), Views(&brief)).status().message(),
      HasSubstr("sequences of 31 tokens hold no whole block of 32"));
}

TEST(EngineFamiliesTest, OpaquePagesOfAnyShape) {
  auto tensors = Tensors({kPages, 2, 333, 3});
  Layout layout = SomeLayout();
  layout.groups[0].opaque_bytes = kLayers * 2 * (2 * 333 * 3 * kElementBytes);
  const auto engine = OpaquePages(AllHeads(layout), Views(&tensors), kPage);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const auto map = CompileEngineLayout(layout, 0, *engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  const std::vector<uint32_t> table = {3, 5};
  Bytes slot(map->block_bytes);
  GatherOp op;
  op.place = {table, 0};
  op.slot = slot;
  Gather(*map, {&op, 1});
  Bytes expected;
  for (OwnTensor& tensor : tensors) {
    for (const uint64_t page : {3, 5}) {
      const std::byte* at = tensor.At({page, 0, 0, 0});
      expected.insert(expected.end(), at, at + 2 * 333 * 3 * kElementBytes);
    }
  }
  EXPECT_EQ(slot, expected);
  EXPECT_EQ(FinishChecksum(op.sums, slot.size()), ChecksumOf(slot));

  auto scattered = Tensors({kPages, 2, 333, 3}, {0, 2, 1, 3});
  EXPECT_THAT(OpaquePages(AllHeads(layout), Views(&scattered), kPage).status().message(),
              HasSubstr("tensor 0: a page does not lie in one run"));
  tensors[2].shape[0] -= 1;
  EXPECT_THAT(OpaquePages(AllHeads(layout), Views(&tensors), kPage).status().message(),
              HasSubstr("tensor 2: 6 pages of 3996 bytes, but the first has 7 of 3996"));
}

struct Mistake {
  const char* message;
  std::function<void(EngineTensor*)> make;
};

TEST(EngineFamiliesTest, AWrongShapeIsNamed) {
  const Layout layout = SomeLayout();
  const std::vector<Mistake> mistakes = {
      {"tensor 1: 4 dimensions and 5 strides, where 5 are expected",
       [](EngineTensor* t) { t->shape.pop_back(); }},
      {"tensor 1: 5 dimensions and 4 strides", [](EngineTensor* t) { t->strides.pop_back(); }},
      {"tensor 1: element_bytes is zero", [](EngineTensor* t) { t->element_bytes = 0; }},
      {"tensor 1: C is 96, but its bytes by the layout are 48; the shape is [B, 2, N, H, C]",
       [](EngineTensor* t) { t->element_bytes = 4; }},
      {"tensor 1: the elements of a vector do not lie together (stride 2)",
       [](EngineTensor* t) { t->strides.back() = 2; }},
      {"tensor 1: 2 is 3, but K and V are 2", [](EngineTensor* t) { t->shape[1] = 3; }},
      {"tensor 1: H is 5, but the rank's heads are 4", [](EngineTensor* t) { t->shape[3] = 5; }},
      {"tensor 1: B is 8, but the first tensor's is 7", [](EngineTensor* t) { t->shape[0] = 8; }},
      {"tensor 1: N is 17, but the first tensor's is 16",
       [](EngineTensor* t) { t->shape[2] = 17; }},
  };
  for (const Mistake& mistake : mistakes) {
    auto tensors = Tensors({kPages, 2, kPage, kHeads, kDim});
    auto views = Views(&tensors);
    mistake.make(&views[1]);
    const auto engine = VllmPageFirst(AllHeads(layout), views);
    EXPECT_EQ(engine.status().code(), Code::kInvalid);
    EXPECT_THAT(engine.status().message(), HasSubstr(mistake.message));
  }
}

TEST(EngineFamiliesTest, MemoryThatDoesNotReachIsRefusedWhenCompiled) {
  const Layout layout = SomeLayout();
  auto tensors = Tensors({kPages, 2, kPage, kHeads, kDim});
  const std::vector<std::function<void(EngineTensor*)>> spoils = {
      [](EngineTensor* t) { t->memory = t->memory.first(t->memory.size() - 1); },
      [](EngineTensor* t) { t->memory = {}; }, [](EngineTensor* t) { t->strides[1] = UINT64_MAX; },
      [](EngineTensor* t) { t->strides[0] = UINT64_MAX / 2; },
      [](EngineTensor* t) { t->strides[3] = 0; }};
  for (const auto& spoil : spoils) {
    auto views = Views(&tensors);
    spoil(&views[1]);
    const auto engine = VllmPageFirst(AllHeads(layout), views);
    ASSERT_TRUE(engine.ok());
    const auto map = CompileEngineLayout(layout, 0, *engine);
    EXPECT_EQ(map.status().code(), Code::kInvalid);
    EXPECT_THAT(map.status().message(), HasSubstr("layer 1's"));
  }
}

TEST(EngineFamiliesTest, AGroupWithoutAShapeHereIsRefused) {
  Layout layout = SomeLayout();
  auto tensors = Tensors({kPages, 2, kPage, kHeads, kDim});
  EXPECT_EQ(VllmPageFirst({.layout = &layout, .group = 1, .heads = {0, 4}}, Views(&tensors))
                .status()
                .message(),
            "group 1 is not in the layout");
  EXPECT_FALSE(VllmPageFirst({}, Views(&tensors)).ok());
  layout.groups[0].value_dim = 8;
  EXPECT_THAT(VllmPageFirst(AllHeads(layout), Views(&tensors)).status().message(),
              HasSubstr("key_dim 24 and value_dim 8 do not fit into one tensor"));
  EXPECT_THAT(PagedApart(AllHeads(layout), Views(&tensors), {}).status().message(),
              HasSubstr("0 tensors of V, where 3 are expected"));
  EXPECT_THAT(SglangSlots(AllHeads(layout), {}, {}, 0).status().message(),
              HasSubstr("page_tokens is zero"));
  EXPECT_FALSE(SglangSlots(AllHeads(layout), Views(&tensors), Views(&tensors), 1).ok());
  EXPECT_FALSE(OpaquePages(AllHeads(layout), std::vector<EngineTensor>(1), 16).ok());
}

TEST(LayersOfTest, LayersThatDoNotLieInTheTensorAreRefused) {
  OwnTensor all({kLayers, kPages, 2});
  EXPECT_EQ(LayersOf(all.View())->size(), kLayers);
  const std::vector<std::function<void(EngineTensor*)>> spoils = {
      [](EngineTensor* t) { t->shape.clear(); },
      [](EngineTensor* t) { t->strides.pop_back(); },
      [](EngineTensor* t) { t->shape[0] = 0; },
      [](EngineTensor* t) { t->shape[0] = UINT64_MAX; },
      [](EngineTensor* t) { t->strides[0] = UINT64_MAX; },
      [](EngineTensor* t) {
        t->shape[0] = UINT64_MAX;
        t->strides[0] = 0;
      },
      [](EngineTensor* t) { t->memory = t->memory.first(2); }};
  for (const auto& spoil : spoils) {
    EngineTensor tensor = all.View();
    spoil(&tensor);
    EXPECT_EQ(LayersOf(tensor).status().code(), Code::kInvalid);
  }
}

}  // namespace
}  // namespace aquifer
