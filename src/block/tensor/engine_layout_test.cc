#include "block/tensor/engine_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>

namespace aquifer {
namespace {

using testing::HasSubstr;

// Two layers, four heads, 16 tokens of 64 bytes a head: blocks of 16 KiB. Nothing here is read or
// written, so the memory is only addresses.
constexpr uint64_t kHeadBytes = 16 * 64;

std::byte* Address(uint64_t offset) {
  return reinterpret_cast<std::byte*>(uintptr_t{0x10000000} + offset);
}

Layout SomeLayout() {
  Layout layout;
  layout.kv_format = "test/1";
  layout.tokens_per_block = 16;
  KvGroup group;
  group.layers = 2;
  group.kv_heads = 4;
  group.key_dim = 32;
  group.value_dim = 32;
  layout.groups = {group};
  return layout;
}

// HND pages of 16 tokens, each plane in 8 pages of its own.
EngineLayout SomeEngine() {
  EngineLayout engine;
  engine.heads = {0, 4};
  engine.pages = 8;
  engine.page_tokens = 16;
  const uint64_t page_bytes = 4 * kHeadBytes;
  for (uint64_t plane = 0; plane < 4; ++plane) {
    engine.planes.push_back({.base = Address(plane * 8 * page_bytes),
                             .bytes = 8 * page_bytes,
                             .page_stride = page_bytes,
                             .head_stride = kHeadBytes,
                             .token_stride = 64});
  }
  return engine;
}

// Where every run of a block lies, by the comment over Piece: block offset and distance from the
// first address, for pages 0, 1, ... of the table.
std::vector<std::pair<uint64_t, uint64_t>> Runs(const EngineMap& map) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  for (const Piece& piece : map.pieces) {
    uint64_t offset = piece.block_offset;
    for (uint64_t head = 0; head < piece.heads; ++head) {
      for (uint64_t page = 0; page < map.pages_per_block; ++page) {
        for (uint64_t run = 0; run < piece.runs; ++run) {
          runs.emplace_back(offset, static_cast<uint64_t>(piece.base - Address(0)) +
                                        page * piece.page_stride + head * piece.head_stride +
                                        run * piece.run_stride);
          offset += piece.run_bytes;
        }
      }
    }
    EXPECT_EQ(offset, piece.block_offset + piece.block_bytes);
  }
  return runs;
}

TEST(CompileEngineLayoutTest, HeadsThatLieAsInTheBlockAreOneRun) {
  const auto map = CompileEngineLayout(SomeLayout(), 0, SomeEngine());
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  ASSERT_EQ(map->pieces.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(map->pieces[i].run_bytes, 4 * kHeadBytes);
    EXPECT_EQ(map->pieces[i].runs, 1u);
    EXPECT_EQ(map->pieces[i].heads, 1u);
    EXPECT_EQ(map->pieces[i].block_offset, i * 4 * kHeadBytes);
  }
  EXPECT_EQ(map->block_bytes, 16384u);
  EXPECT_EQ(map->alignment, 16u);
  EXPECT_FALSE(map->ragged);
}

TEST(CompileEngineLayoutTest, CrossLayerPagesAsLargeAsABlockAreOneRun) {
  EngineLayout engine = SomeEngine();
  for (uint64_t i = 0; i < 4; ++i) {
    engine.planes[i].base = Address(i * 4 * kHeadBytes);
    engine.planes[i].page_stride = 16384;
    engine.planes[i].bytes = 8 * 16384 - i * 4 * kHeadBytes;
  }
  const auto map = CompileEngineLayout(SomeLayout(), 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  ASSERT_EQ(map->pieces.size(), 1u);
  EXPECT_EQ(map->pieces[0].run_bytes, 16384u);
}

TEST(CompileEngineLayoutTest, ARanksHeadsGoToTheirPlacesInTheBlock) {
  EngineLayout engine = SomeEngine();
  engine.heads = {1, 3};
  const auto map = CompileEngineLayout(SomeLayout(), 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(Runs(*map),
            (std::vector<std::pair<uint64_t, uint64_t>>{{1 * kHeadBytes, 0 * 8 * 4096},
                                                        {5 * kHeadBytes, 1 * 8 * 4096},
                                                        {9 * kHeadBytes, 2 * 8 * 4096},
                                                        {13 * kHeadBytes, 3 * 8 * 4096}}));
}

TEST(CompileEngineLayoutTest, GroupedPagesInterleaveWithHeads) {
  EngineLayout engine = SomeEngine();
  engine.page_tokens = 8;  // HND pages with room for 16: two make a block.
  engine.heads = {0, 2};
  const auto map = CompileEngineLayout(SomeLayout(), 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(map->pages_per_block, 2u);
  const auto runs = Runs(*map);
  ASSERT_EQ(runs.size(), 16u);
  EXPECT_EQ(runs[0], (std::pair<uint64_t, uint64_t>{0, 0}));
  EXPECT_EQ(runs[1], (std::pair<uint64_t, uint64_t>{512, 4096}));
  EXPECT_EQ(runs[2], (std::pair<uint64_t, uint64_t>{1024, 1024}));
  EXPECT_EQ(runs[3], (std::pair<uint64_t, uint64_t>{1536, 5120}));
}

TEST(CompileEngineLayoutTest, ACutPageStepsByABlocksTokens) {
  EngineLayout engine = SomeEngine();
  engine.page_tokens = 32;
  for (EnginePlane& plane : engine.planes) plane.head_stride = 32 * 64;
  engine.pages = 4;
  for (EnginePlane& plane : engine.planes) plane.page_stride = 4 * 32 * 64;
  const auto map = CompileEngineLayout(SomeLayout(), 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(map->blocks_per_page, 2u);
  for (const Piece& piece : map->pieces) {
    EXPECT_EQ(piece.cut_stride, 16u * 64);
    EXPECT_EQ(piece.run_bytes, 16u * 64);
    EXPECT_EQ(piece.heads, 4u);
  }
}

TEST(CompileEngineLayoutTest, TheAlignmentIsTheWorstOfAll) {
  EngineLayout engine = SomeEngine();
  engine.pages = 7;
  engine.planes[3].base += 4;
  engine.planes[3].bytes -= 4;
  const auto map = CompileEngineLayout(SomeLayout(), 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(map->alignment, 4u);
}

struct Mistake {
  const char* message;
  std::function<void(Layout*, EngineLayout*)> make;
};

TEST(CompileEngineLayoutTest, EveryMistakeIsNamed) {
  const std::vector<Mistake> mistakes = {
      {"tokens_per_block is zero", [](Layout* l, EngineLayout*) { l->tokens_per_block = 0; }},
      {"pages is zero", [](Layout*, EngineLayout* e) { e->pages = 0; }},
      {"0 planes; 1 to 4096", [](Layout*, EngineLayout* e) { e->planes.clear(); }},
      {"4097 planes; 1 to", [](Layout*, EngineLayout* e) { e->planes.resize(4097); }},
      {"3 planes, but 2 layers need 4", [](Layout*, EngineLayout* e) { e->planes.pop_back(); }},
      {"page_tokens is zero", [](Layout*, EngineLayout* e) { e->page_tokens = 0; }},
      {"a page of 24 tokens neither divides nor is a multiple of a block of 16",
       [](Layout*, EngineLayout* e) { e->page_tokens = 24; }},
      {"heads 0 to 0 are no range of the group's 4",
       [](Layout*, EngineLayout* e) { e->heads = {0, 0}; }},
      {"heads 3 to 2 are no range", [](Layout*, EngineLayout* e) { e->heads = {3, 2}; }},
      {"heads 0 to 5 are no range", [](Layout*, EngineLayout* e) { e->heads = {0, 5}; }},
      {"layer 1's K: base is null", [](Layout*, EngineLayout* e) { e->planes[2].base = nullptr; }},
      {"layer 0's V: 8 pages reach 32768 bytes from the base, but the tensor has 32767",
       [](Layout*, EngineLayout* e) { e->planes[1].bytes -= 1; }},
      {"layer 0's K: 9 pages reach 36864", [](Layout*, EngineLayout* e) { e->pages = 9; }},
      {"layer 0's K: 18446744073709551615 pages reach",
       [](Layout*, EngineLayout* e) { e->pages = UINT64_MAX; }},
      {"layer 1's V: 8 pages reach 18446744073709551615",
       [](Layout*, EngineLayout* e) { e->planes[3].page_stride = UINT64_MAX / 7 + 1; }},
      {"layer 0's K: 18446744073709551615 bytes reach past the end of memory",
       [](Layout*, EngineLayout* e) { e->planes[0].bytes = UINT64_MAX; }},
      {"layer 0's K: strides of 1024 (page), 1024 (head) and 64 (token) bytes put vectors of 64",
       [](Layout*, EngineLayout* e) { e->planes[0].page_stride = 1024; }},
      {"layer 0's K: strides of 4096 (page), 1024 (head) and 0 (token)",
       [](Layout*, EngineLayout* e) { e->planes[0].token_stride = 0; }},
      {"strides of 4096 (page), 1024 (head) and 62 (token)",
       [](Layout*, EngineLayout* e) { e->planes[0].token_stride = 62; }},
      {"layer 0's K: a stride of 65 bytes is no multiple of an element's 2",
       [](Layout*, EngineLayout* e) {
         e->planes[0].token_stride = 65;
         e->pages = 7;
       }},
      {"layer 0's K: base is not aligned to an element's 2 bytes",
       [](Layout*, EngineLayout* e) {
         e->planes[0].base += 1;
         e->pages = 7;
       }},
      {"layer 0's K and layer 0's V share bytes",
       [](Layout*, EngineLayout* e) { e->planes[1] = e->planes[0]; }},
      {"layer 0's V and layer 1's K share bytes",
       [](Layout*, EngineLayout* e) {
         e->planes[1].base += 62;
         e->planes[1].bytes += 64;
       }},
      {"layer 0's K and layer 1's V share bytes, or their strides differ",
       [](Layout*, EngineLayout* e) {
         e->planes[3] = e->planes[0];
         e->planes[3].head_stride = 64;
         e->planes[3].token_stride = 256;
       }},
      {"opaque_page_bytes is set, but the group has no opaque_bytes",
       [](Layout*, EngineLayout* e) { e->opaque_page_bytes = 4096; }},
      {"a page of 32 tokens cannot be cut, and a block has 16; register the layout with "
       "tokens_per_block 32",
       [](Layout*, EngineLayout* e) {
         e->tokens_packed = true;
         e->page_tokens = 32;
       }},
      {"layer 0's K: tokens are packed, so token_stride must be 64 and not 128",
       [](Layout*, EngineLayout* e) {
         e->tokens_packed = true;
         e->page_tokens = 8;
         for (EnginePlane& plane : e->planes) plane.token_stride = 128;
       }},
      {"a head's 5 vectors of 70 bytes are no multiple of 16 bytes; make tokens_per_block a",
       [](Layout* l, EngineLayout* e) {
         l->tokens_per_block = e->page_tokens = 5;
         l->groups[0].key_dim = l->groups[0].value_dim = 35;
         l->groups[0].kv_heads = 8;
       }},
  };
  for (const Mistake& mistake : mistakes) {
    Layout layout = SomeLayout();
    EngineLayout engine = SomeEngine();
    mistake.make(&layout, &engine);
    const auto map = CompileEngineLayout(layout, 0, engine);
    ASSERT_FALSE(map.ok()) << mistake.message;
    EXPECT_EQ(map.status().code(), Code::kInvalid);
    EXPECT_THAT(map.status().message(), HasSubstr(mistake.message));
  }
  EXPECT_THAT(CompileEngineLayout(SomeLayout(), 1, SomeEngine()).status().message(),
              HasSubstr("group 1 is not one of the layout's 1"));
}

TEST(CompileEngineLayoutTest, OpaquePagesAreRefusedWhereTheyDoNotFit) {
  Layout layout = SomeLayout();
  layout.groups[0].opaque_bytes = 4 * 5000;
  EngineLayout engine = SomeEngine();
  engine.opaque_page_bytes = 5000;
  engine.pages = 4;
  for (EnginePlane& plane : engine.planes) plane.page_stride = 5000;
  const auto map = CompileEngineLayout(layout, 0, engine);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_TRUE(map->ragged);

  const std::vector<Mistake> mistakes = {
      {"opaque pages cannot be split by heads, and this rank holds heads 0 to 2 of 4; run with "
       "tensor parallel size 1",
       [](Layout*, EngineLayout* e) { e->heads = {0, 2}; }},
      {"a page of 32 tokens cannot be cut", [](Layout*, EngineLayout* e) { e->page_tokens = 32; }},
      {"4 planes with 2 pages a block of 5000 bytes are not the group's opaque_bytes, 20000",
       [](Layout*, EngineLayout* e) { e->page_tokens = 8; }},
      {"3 planes with 1 pages a block", [](Layout*, EngineLayout* e) { e->planes.pop_back(); }},
      {"pages a block of 0 bytes", [](Layout*, EngineLayout* e) { e->opaque_page_bytes = 0; }},
      {"pages a block of 18446744073709551615 bytes",
       [](Layout*, EngineLayout* e) { e->opaque_page_bytes = UINT64_MAX; }},
      {"tokens_packed is set, but the whole page is opaque",
       [](Layout*, EngineLayout* e) { e->tokens_packed = true; }},
      {"plane 2: strides of 4999",
       [](Layout*, EngineLayout* e) { e->planes[2].page_stride = 4999; }},
  };
  for (const Mistake& mistake : mistakes) {
    EngineLayout bad = engine;
    mistake.make(&layout, &bad);
    EXPECT_THAT(CompileEngineLayout(layout, 0, bad).status().message(), HasSubstr(mistake.message));
  }
}

}  // namespace
}  // namespace aquifer
