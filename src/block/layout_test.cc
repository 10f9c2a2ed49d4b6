#include "aquifer/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace aquifer {
namespace {

using testing::HasSubstr;

KvGroup FullGroup() {
  return {.kind = KvKind::kFull,
          .dtype = DType::kBFloat16,
          .layers = 32,
          .kv_heads = 8,
          .key_dim = 128,
          .value_dim = 128,
          .window_tokens = 0,
          .opaque_bytes = 0};
}

// Llama 8B: 128 KiB a token.
Layout SomeLayout() {
  Layout layout;
  layout.tokens_per_block = 16;
  layout.groups = {FullGroup()};
  layout.kv_format = "test/1";
  return layout;
}

TEST(LayoutTest, EveryDTypeHasASize) {
  EXPECT_EQ(DTypeBytes(DType::kFloat32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kFloat16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kBFloat16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kFloat8E4M3), 1u);
  EXPECT_EQ(DTypeBytes(DType::kFloat8E5M2), 1u);
  EXPECT_EQ(DTypeBytes(DType::kInt8), 1u);
  EXPECT_EQ(DTypeBytes(DType::kUInt8), 1u);
  EXPECT_EQ(DTypeBytes(static_cast<DType>(0)), 0u);
}

TEST(LayoutTest, BlockBytesAreTheProductOfTheFieldsOrTheOpaqueBytes) {
  Layout layout = SomeLayout();
  EXPECT_EQ(BlockBytes(layout, 0), 2u << 20);
  layout.tokens_per_block = 256;
  EXPECT_EQ(BlockBytes(layout, 0), 32u << 20);
  layout.groups[0].opaque_bytes = 5000;
  EXPECT_EQ(BlockBytes(layout, 0), 5000u);
}

TEST(LayoutTest, ABlockTooLargeForAnyNumberIsTooLargeAndNotSmall) {
  Layout layout = SomeLayout();
  layout.groups[0] = {.kind = KvKind::kFull,
                      .dtype = DType::kFloat32,
                      .layers = UINT32_MAX,
                      .kv_heads = UINT32_MAX,
                      .key_dim = UINT32_MAX,
                      .value_dim = UINT32_MAX,
                      .window_tokens = 0,
                      .opaque_bytes = 0};
  layout.tokens_per_block = UINT32_MAX;
  EXPECT_EQ(BlockBytes(layout, 0), UINT64_MAX);
  EXPECT_THAT(ValidateLayout(layout).message(), HasSubstr("at most 67108864 are allowed"));
  // 2^32 layers of 2^32 heads would wrap to zero bytes.
  layout.groups[0].layers = 1u << 31;
  layout.groups[0].kv_heads = 1u << 31;
  layout.groups[0].key_dim = 2;
  layout.groups[0].value_dim = 2;
  EXPECT_EQ(BlockBytes(layout, 0), UINT64_MAX);
  EXPECT_EQ(TokensPerBlock(layout), 16u);
}

TEST(LayoutDeathTest, AGroupThatIsNotThereIsOurMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)BlockBytes(SomeLayout(), 1), "check failed");
}

TEST(ValidateLayoutTest, RealLayoutsAreTaken) {
  Layout layout = SomeLayout();
  EXPECT_TRUE(ValidateLayout(layout).ok());
  KvGroup window = FullGroup();
  window.kind = KvKind::kWindow;
  window.window_tokens = 4096;
  layout.groups.push_back(window);
  layout.groups.push_back({.kind = KvKind::kLatent,
                           .dtype = DType::kBFloat16,
                           .layers = 61,
                           .kv_heads = 1,
                           .key_dim = 576,
                           .value_dim = 0,
                           .window_tokens = 0,
                           .opaque_bytes = 0});
  KvGroup state;
  state.kind = KvKind::kState;
  state.opaque_bytes = 3 << 20;
  layout.groups.push_back(state);
  KvGroup packed = FullGroup();
  packed.opaque_bytes = 4096;
  layout.groups.push_back(packed);
  EXPECT_TRUE(ValidateLayout(layout).ok()) << ValidateLayout(layout).ToString();
}

TEST(ValidateLayoutTest, EveryMistakeIsNamedByItsField) {
  struct Case {
    const char* message;
    std::function<void(Layout*)> spoil;
  };
  const std::vector<Case> cases = {
      {"tokens_per_block is zero", [](Layout* l) { l->tokens_per_block = 0; }},
      {"kv_format has 0 bytes; 1 to 128", [](Layout* l) { l->kv_format.clear(); }},
      {"kv_format has 129 bytes", [](Layout* l) { l->kv_format.assign(129, 'x'); }},
      {"groups has 0 entries; 1 to 16", [](Layout* l) { l->groups.clear(); }},
      {"groups has 17 entries", [](Layout* l) { l->groups.resize(17, FullGroup()); }},
      {"groups[0].kind is unknown: 0", [](Layout* l) { l->groups[0].kind = KvKind{0}; }},
      {"groups[0].kind is unknown: 5", [](Layout* l) { l->groups[0].kind = KvKind{5}; }},
      {"groups[0].dtype is unknown: 8", [](Layout* l) { l->groups[0].dtype = DType{8}; }},
      {"groups[0].layers is zero", [](Layout* l) { l->groups[0].layers = 0; }},
      {"groups[0].kv_heads is zero", [](Layout* l) { l->groups[0].kv_heads = 0; }},
      {"groups[0].key_dim is zero", [](Layout* l) { l->groups[0].key_dim = 0; }},
      {"groups[0].value_dim is zero", [](Layout* l) { l->groups[0].value_dim = 0; }},
      {"groups[0].window_tokens is zero", [](Layout* l) { l->groups[0].kind = KvKind::kWindow; }},
      {"groups[0].window_tokens is set", [](Layout* l) { l->groups[0].window_tokens = 1; }},
      {"groups[0].kv_heads is not 1",
       [](Layout* l) {
         l->groups[0].kind = KvKind::kLatent;
         l->groups[0].value_dim = 0;
       }},
      {"groups[0].value_dim is not 0",
       [](Layout* l) {
         l->groups[0].kind = KvKind::kLatent;
         l->groups[0].kv_heads = 1;
       }},
      {"groups[0].opaque_bytes is zero", [](Layout* l) { l->groups[0].kind = KvKind::kState; }},
      {"groups[0].opaque_bytes: a block has 4095 bytes; at least 4096",
       [](Layout* l) { l->groups[0].opaque_bytes = 4095; }},
      {"groups[0].opaque_bytes: a block has 67108865 bytes; at most 67108864",
       [](Layout* l) { l->groups[0].opaque_bytes = kMaxBlockBytes + 1; }},
      {"groups[0].block: a block has 67239936 bytes", [](Layout* l) { l->tokens_per_block = 513; }},
      {"groups[1].layers is zero",
       [](Layout* l) {
         l->groups.push_back(FullGroup());
         l->groups[1].layers = 0;
       }},
  };
  for (const Case& c : cases) {
    Layout layout = SomeLayout();
    c.spoil(&layout);
    const Status status = ValidateLayout(layout);
    EXPECT_EQ(status.code(), Code::kInvalid) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

TEST(ValidateLayoutTest, TheSmallestAndLargestBlocksAreTaken) {
  Layout layout = SomeLayout();
  layout.groups[0].opaque_bytes = kMinBlockBytes;
  EXPECT_TRUE(ValidateLayout(layout).ok());
  layout.groups[0].opaque_bytes = kMaxBlockBytes;
  EXPECT_TRUE(ValidateLayout(layout).ok());
  layout.groups[0].opaque_bytes = 0;
  layout.tokens_per_block = 512;
  EXPECT_TRUE(ValidateLayout(layout).ok());
}

TEST(LayoutFingerprintTest, EveryFieldChangesIt) {
  const std::vector<std::function<void(Layout*)>> changes = {
      [](Layout*) {},
      [](Layout* l) { l->model[31] = std::byte{1}; },
      [](Layout* l) { l->tokens_per_block = 32; },
      [](Layout* l) { l->kv_format = "test/2"; },
      [](Layout* l) { l->kv_format = "test/"; },
      [](Layout* l) { l->groups.push_back(FullGroup()); },
      [](Layout* l) { l->groups.clear(); },
      [](Layout* l) { l->groups[0].kind = KvKind::kWindow; },
      [](Layout* l) { l->groups[0].dtype = DType::kFloat16; },
      [](Layout* l) { l->groups[0].layers = 33; },
      [](Layout* l) { l->groups[0].kv_heads = 9; },
      [](Layout* l) { l->groups[0].key_dim = 129; },
      [](Layout* l) { l->groups[0].value_dim = 129; },
      [](Layout* l) { l->groups[0].window_tokens = 1; },
      [](Layout* l) { l->groups[0].opaque_bytes = 1; },
      [](Layout* l) { l->groups[0].opaque_bytes = uint64_t{1} << 32; },
  };
  std::set<Digest> seen;
  for (const auto& change : changes) {
    Layout layout = SomeLayout();
    change(&layout);
    seen.insert(LayoutFingerprint(layout));
    EXPECT_EQ(LayoutFingerprint(layout), LayoutFingerprint(layout));
  }
  EXPECT_EQ(seen.size(), changes.size());
}

TEST(LayoutFingerprintTest, TheOrderOfGroupsCounts) {
  Layout one = SomeLayout();
  one.groups.push_back(FullGroup());
  one.groups[1].layers = 4;
  Layout other = one;
  std::swap(other.groups[0], other.groups[1]);
  EXPECT_NE(LayoutFingerprint(one), LayoutFingerprint(other));
}

TEST(TokensPerBlockTest, BlocksAreAsLargeAsEightMebibytesAllow) {
  const auto tokens_for = [](uint32_t layers, uint32_t kv_heads, uint32_t dim) {
    Layout layout = SomeLayout();
    layout.tokens_per_block = 0;  // Ignored.
    layout.groups[0].layers = layers;
    layout.groups[0].kv_heads = kv_heads;
    layout.groups[0].key_dim = dim;
    layout.groups[0].value_dim = dim;
    return TokensPerBlock(layout);
  };
  EXPECT_EQ(tokens_for(32, 8, 128), 64u);   // 128 KiB a token, Llama 8B: exactly 8 MiB.
  EXPECT_EQ(tokens_for(33, 8, 128), 32u);   // A little more.
  EXPECT_EQ(tokens_for(80, 8, 128), 16u);   // 320 KiB a token, Llama 70B: 5 MiB.
  EXPECT_EQ(tokens_for(24, 2, 64), 256u);   // 12 KiB a token, Qwen 0.5B.
  EXPECT_EQ(tokens_for(80, 64, 128), 16u);  // 2.5 MiB a token: 16 is the least, whatever it takes.
}

TEST(TokensPerBlockTest, TheLargestGroupDecidesAndSnapshotsDoNot) {
  Layout layout = SomeLayout();
  KvGroup small = FullGroup();
  small.layers = 1;
  layout.groups.insert(layout.groups.begin(), small);
  KvGroup state;
  state.kind = KvKind::kState;
  state.opaque_bytes = 32 << 20;
  layout.groups.push_back(state);
  EXPECT_EQ(TokensPerBlock(layout), 64u);
  layout.groups.back().layers = 96;  // Also where its shape is told.
  layout.groups.back().kv_heads = 64;
  layout.groups.back().key_dim = layout.groups.back().value_dim = 128;
  EXPECT_EQ(TokensPerBlock(layout), 64u);
}

TEST(TokensPerBlockTest, HowAnEnginePacksItsPagesMakesNoDifference) {
  Layout layout = SomeLayout();
  layout.groups[0].opaque_bytes = 12345;
  EXPECT_EQ(TokensPerBlock(layout), TokensPerBlock(SomeLayout()));
}

TEST(FitPagesTest, PagesThatDivideABlockAreGrouped) {
  for (const uint32_t page : {1u, 8u, 16u, 32u, 64u}) {
    EXPECT_EQ(*FitPages(64, page, false), 64u);
    EXPECT_EQ(*FitPages(64, page, true), 64u);
  }
}

TEST(FitPagesTest, LargerPagesAreCutOrRaiseTheBlock) {
  EXPECT_EQ(*FitPages(16, 128, true), 16u);
  EXPECT_EQ(*FitPages(16, 128, false), 128u);
}

TEST(FitPagesTest, PagesThatFitNeitherWayAreRefusedByName) {
  const Result<uint32_t> fitted = FitPages(64, 48, true);
  EXPECT_EQ(fitted.status().code(), Code::kInvalid);
  EXPECT_THAT(fitted.status().message(), HasSubstr("a page of 48 tokens"));
  EXPECT_THAT(fitted.status().message(), HasSubstr("a block of 64 tokens"));
  EXPECT_THAT(FitPages(16, 24, false).status().message(), HasSubstr("24 tokens"));
  EXPECT_EQ(FitPages(0, 16, true).status().message(), "tokens_per_block is zero");
  EXPECT_EQ(FitPages(16, 0, true).status().message(), "page_tokens is zero");
}

}  // namespace
}  // namespace aquifer
