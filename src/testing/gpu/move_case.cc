#include "testing/gpu/move_case.h"

#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

// An axis of the arena.
enum Axis : uint8_t { kToken, kHead, kPage, kKind, kLayer, kAxes };

template <class T>
void Shuffle(SeededRandom* random, T* values) {
  for (size_t i = values->size(); i > 1; --i) {
    std::swap((*values)[i - 1], (*values)[random->Below(i)]);
  }
}

KvGroup RandomGroup(SeededRandom* random) {
  constexpr DType kTypes[] = {DType::kFloat8E4M3, DType::kBFloat16, DType::kFloat32};
  KvGroup group;
  group.dtype = kTypes[random->Below(3)];
  group.layers = 1 + static_cast<uint32_t>(random->Below(3));
  group.kv_heads = 1u << random->Below(4);
  // Odd dimensions give vectors that are no multiple of a checksum unit.
  group.key_dim =
      static_cast<uint32_t>(random->Below(2) == 0 ? 1 + random->Below(40) : 16 << random->Below(4));
  group.value_dim = group.key_dim;
  return group;
}

void PlacePlanes(const KvGroup& group, SeededRandom* random, MoveCase* made) {
  EngineLayout& engine = made->engine;
  const uint64_t element = DTypeBytes(group.dtype);
  const std::array<uint64_t, kAxes> counts = {engine.page_tokens, engine.heads.count(),
                                              engine.pages, 2, group.layers};
  std::array<uint64_t, kAxes> strides{};
  std::array<size_t, kAxes> order{};
  std::iota(order.begin(), order.end(), 0);
  Shuffle(random, &order);
  const bool padded = random->Below(2) == 0;
  uint64_t inside = group.key_dim * element;
  for (const size_t axis : order) {
    if (padded) inside += random->Below(3) * element;
    strides[axis] = inside;
    inside *= counts[axis];
  }
  // Aligned to 16 more often than not, as real tensors are.
  const uint64_t lead = random->Below(3) == 0 ? random->Below(9) * element : 0;
  made->arena.resize(lead + inside);
  for (uint32_t i = 0; i < 2 * group.layers; ++i) {
    const uint64_t at = lead + i / 2 * strides[kLayer] + i % 2 * strides[kKind];
    engine.planes.push_back({.base = reinterpret_cast<std::byte*>(at + 1),
                             .bytes = made->arena.size() - at,
                             .page_stride = strides[kPage],
                             .head_stride = strides[kHead],
                             .token_stride = strides[kToken]});
  }
}

void MakeVectors(SeededRandom* random, MoveCase* made) {
  KvGroup group = RandomGroup(random);
  made->layout.groups = {group};
  while (made->block_bytes() < kMinBlockBytes) ++made->layout.groups[0].layers;
  group = made->layout.groups[0];
  const uint32_t ranks = random->Below(2) == 0 ? 1 : 1u << random->Below(4);
  const uint32_t rank = static_cast<uint32_t>(random->Below(ranks));
  made->engine.heads = HeadsOfRank(group.kv_heads, ranks, rank).ok()
                           ? HeadsOfRank(group.kv_heads, ranks, rank)->heads
                           : HeadRange{.begin = 0, .end = group.kv_heads};
  const uint32_t block = made->layout.tokens_per_block;
  const uint32_t page_tokens[] = {block, block / 2, block / 16, 1, 2 * block};
  made->engine.page_tokens = page_tokens[random->Below(5)];
}

// Pages of any length, odd ones too.
void MakeOpaque(SeededRandom* random, MoveCase* made) {
  const auto planes = static_cast<uint32_t>(1 + random->Below(3));
  const uint64_t page_bytes = kMinBlockBytes + random->Below(3000);
  const auto pages_per_block = static_cast<uint32_t>(1 + random->Below(2));
  made->layout.groups = {{.layers = planes,
                          .kv_heads = 1,
                          .key_dim = 64,
                          .value_dim = 64,
                          .opaque_bytes = planes * pages_per_block * page_bytes}};
  made->engine.heads = {.begin = 0, .end = 1};
  made->engine.page_tokens = made->layout.tokens_per_block / pages_per_block;
  made->engine.opaque_page_bytes = page_bytes;
}

void PlaceOpaque(uint64_t planes, SeededRandom* random, MoveCase* made) {
  const uint64_t stride = made->engine.opaque_page_bytes + random->Below(20);
  const uint64_t plane_bytes = stride * made->engine.pages;
  made->arena.resize(planes * plane_bytes);
  for (uint64_t i = 0; i < planes; ++i) {
    made->engine.planes.push_back({.base = reinterpret_cast<std::byte*>(i * plane_bytes + 1),
                                   .bytes = plane_bytes,
                                   .page_stride = stride});
  }
}

}  // namespace

MoveCase RandomMoveCase(SeededRandom* random) {
  constexpr uint32_t kBlockTokens[] = {16, 32, 64};
  MoveCase made;
  made.layout.kv_format = "test/1";
  made.layout.tokens_per_block = kBlockTokens[random->Below(3)];
  const bool opaque = random->Below(6) == 0;
  if (opaque) {
    MakeOpaque(random, &made);
  } else {
    MakeVectors(random, &made);
  }
  made.blocks = 1 + static_cast<uint32_t>(random->Below(9));
  const uint32_t tokens = made.blocks * made.layout.tokens_per_block;
  const uint32_t needed = (tokens + made.engine.page_tokens - 1) / made.engine.page_tokens;
  made.engine.pages = needed + random->Below(3);
  made.pages.resize(made.engine.pages);
  std::iota(made.pages.begin(), made.pages.end(), 0u);
  Shuffle(random, &made.pages);
  made.pages.resize(needed);
  if (opaque) {
    PlaceOpaque(made.layout.groups[0].layers, random, &made);
  } else {
    PlacePlanes(made.layout.groups[0], random, &made);
  }
  random->Fill(made.arena);
  return made;
}

EngineMap MoveCase::MapAt(std::byte* arena) const {
  EngineLayout placed = engine;
  for (EnginePlane& plane : placed.planes) {
    plane.base = arena + (reinterpret_cast<uintptr_t>(plane.base) - 1);
  }
  Result<EngineMap> map = CompileEngineLayout(layout, 0, placed);
  AQ_CHECK(map.ok());
  return *std::move(map);
}

}  // namespace aquifer
