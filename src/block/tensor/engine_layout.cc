#include "block/tensor/engine_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "aquifer/checksum.h"
#include "block/codec/plane_overlap.h"

namespace aquifer {
namespace {

constexpr uint32_t kMaxAlignment = 16;
// K and V of 2048 layers. The checks compare each plane with those it interleaves with.
constexpr size_t kMaxPlanes = 4096;
// So that no sum or difference of places in planes overflows.
constexpr uint64_t kMaxPlaneBytes = uint64_t{1} << 60;

Status Bad(std::string message) { return Status(Code::kInvalid, std::move(message)); }

// The group as CompileEngineLayout() has come to know it.
struct Shape {
  bool opaque = false;
  uint32_t kinds = 1;             // Planes of a layer: K and V, or one.
  uint64_t vector_bytes[2] = {};  // Of K and of V; an opaque page counts as one vector.
  uint32_t page_vectors = 1;      // Of one head in one page: tokens, or one opaque page.
  uint32_t heads = 1;
  uint32_t all_heads = 1;
  uint32_t pages_per_block = 1;
  uint32_t blocks_per_page = 1;
};

Status CheckHeads(const KvGroup& group, const EngineLayout& engine) {
  const auto [begin, end] = engine.heads;
  const bool all = begin == 0 && end == group.kv_heads;
  if (group.opaque_bytes != 0) {
    if (all) return Status();
    return Bad(
        fmt::format("opaque pages cannot be split by heads, and this rank holds heads {} to "
                    "{} of {}; run with tensor parallel size 1, or describe the group "
                    "without opaque_bytes",
                    begin, end, group.kv_heads));
  }
  if (begin < end && end <= group.kv_heads) return Status();
  return Bad(
      fmt::format("heads {} to {} are no range of the group's {}", begin, end, group.kv_heads));
}

// How pages and blocks of tokens go together.
Status FitTokens(uint32_t tokens_per_block, const EngineLayout& engine, Shape* shape) {
  const bool can_cut = !shape->opaque && !engine.tokens_packed;
  AQ_ASSIGN_OR_RETURN(const uint32_t tokens,
                      FitPages(tokens_per_block, engine.page_tokens, can_cut));
  if (tokens != tokens_per_block) {
    return Bad(
        fmt::format("a page of {} tokens cannot be cut, and a block has {}; register the "
                    "layout with tokens_per_block {}",
                    engine.page_tokens, tokens_per_block, tokens));
  }
  shape->pages_per_block = std::max(1u, tokens_per_block / engine.page_tokens);
  shape->blocks_per_page = std::max(1u, engine.page_tokens / tokens_per_block);
  return Status();
}

Status CheckOpaque(const KvGroup& group, const EngineLayout& engine, const Shape& shape) {
  if (engine.tokens_packed) {
    return Bad("tokens_packed is set, but the whole page is opaque; set one of the two");
  }
  uint64_t bytes = 0;
  const uint64_t runs = uint64_t{engine.planes.size()} * shape.pages_per_block;
  if (__builtin_mul_overflow(runs, engine.opaque_page_bytes, &bytes) ||
      bytes != group.opaque_bytes) {
    return Bad(fmt::format(
        "{} planes with {} pages a block of {} bytes are not the group's "
        "opaque_bytes, {}",
        engine.planes.size(), shape.pages_per_block, engine.opaque_page_bytes, group.opaque_bytes));
  }
  return Status();
}

Status CheckVectors(const Layout& layout, const KvGroup& group, const EngineLayout& engine,
                    const Shape& shape) {
  if (engine.opaque_page_bytes != 0) {
    return Bad("opaque_page_bytes is set, but the group has no opaque_bytes");
  }
  const size_t wanted = size_t{group.layers} * shape.kinds;
  if (engine.planes.size() != wanted) {
    return Bad(fmt::format("{} planes, but {} layers need {}", engine.planes.size(), group.layers,
                           wanted));
  }
  for (uint32_t kind = 0; kind < shape.kinds; ++kind) {
    // Otherwise two ranks would share a unit of the checksum, and neither could sum it.
    if (shape.vector_bytes[kind] * layout.tokens_per_block % kChecksumUnitBytes != 0) {
      return Bad(
          fmt::format("a head's {} vectors of {} bytes are no multiple of {} bytes; make "
                      "tokens_per_block a multiple of 16",
                      layout.tokens_per_block, shape.vector_bytes[kind], kChecksumUnitBytes));
    }
  }
  return Status();
}

Result<Shape> Fit(const Layout& layout, const KvGroup& group, const EngineLayout& engine) {
  Shape shape;
  shape.opaque = group.opaque_bytes != 0;
  if (engine.pages == 0) return Bad("pages is zero");
  if (engine.planes.empty() || engine.planes.size() > kMaxPlanes) {
    return Bad(fmt::format("{} planes; 1 to {} are allowed", engine.planes.size(), kMaxPlanes));
  }
  AQ_RETURN_IF_ERROR(CheckHeads(group, engine));
  AQ_RETURN_IF_ERROR(FitTokens(layout.tokens_per_block, engine, &shape));
  if (shape.opaque) {
    AQ_RETURN_IF_ERROR(CheckOpaque(group, engine, shape));
    shape.vector_bytes[0] = engine.opaque_page_bytes;
    return shape;
  }
  shape.kinds = group.value_dim == 0 ? 1 : 2;
  shape.vector_bytes[0] = uint64_t{group.key_dim} * DTypeBytes(group.dtype);
  shape.vector_bytes[1] = uint64_t{group.value_dim} * DTypeBytes(group.dtype);
  shape.page_vectors = engine.page_tokens;
  shape.heads = engine.heads.count();
  shape.all_heads = group.kv_heads;
  AQ_RETURN_IF_ERROR(CheckVectors(layout, group, engine, shape));
  return shape;
}

std::string PlaneName(const Shape& shape, size_t index) {
  if (shape.opaque) return fmt::format("plane {}", index);
  if (shape.kinds == 1) return fmt::format("layer {}", index);
  return fmt::format("layer {}'s {}", index / 2, index % 2 == 0 ? 'K' : 'V');
}

StridedSet PlaneSet(const EngineLayout& engine, const Shape& shape, size_t index) {
  const EnginePlane& plane = engine.planes[index];
  return {.base = reinterpret_cast<uintptr_t>(plane.base),
          .run_bytes = shape.vector_bytes[index % shape.kinds],
          .axes = {{{engine.pages, plane.page_stride},
                    {shape.heads, plane.head_stride},
                    {shape.page_vectors, plane.token_stride}}}};
}

Status CheckPlane(const EngineLayout& engine, const Shape& shape, uint64_t element_bytes,
                  size_t index) {
  const EnginePlane& plane = engine.planes[index];
  const StridedSet set = PlaneSet(engine, shape, index);
  const auto bad = [&](std::string_view what) {
    return Bad(fmt::format("{}: {}", PlaneName(shape, index), what));
  };
  if (plane.base == nullptr) return bad("base is null");
  if (plane.bytes > kMaxPlaneBytes || plane.bytes > UINTPTR_MAX - set.base) {
    return bad(fmt::format("{} bytes reach past the end of memory", plane.bytes));
  }
  const uint64_t extent = set.Extent();
  if (extent > plane.bytes) {
    return bad(fmt::format("{} pages reach {} bytes from the base, but the tensor has {}",
                           engine.pages, extent, plane.bytes));
  }
  for (const StridedSet::Axis& axis : set.axes) {
    if (axis.count > 1 && axis.stride % element_bytes != 0) {
      return bad(
          fmt::format("a stride of {} bytes is no multiple of an element's {}; strides are "
                      "in bytes",
                      axis.stride, element_bytes));
    }
  }
  if (set.base % element_bytes != 0) {
    return bad(fmt::format("base is not aligned to an element's {} bytes", element_bytes));
  }
  if (!set.Nested()) {
    return bad(
        fmt::format("strides of {} (page), {} (head) and {} (token) bytes put vectors of {} "
                    "bytes over each other",
                    plane.page_stride, plane.head_stride, plane.token_stride, set.run_bytes));
  }
  // The bytes of packed tokens are a region: they lie together or nobody knows where they are.
  if (engine.tokens_packed && shape.page_vectors > 1 && plane.token_stride != set.run_bytes) {
    return bad(fmt::format("tokens are packed, so token_stride must be {} and not {}",
                           set.run_bytes, plane.token_stride));
  }
  return Status();
}

Status CheckPlanes(const EngineLayout& engine, const Shape& shape, uint64_t element_bytes) {
  std::vector<StridedSet> sets;
  sets.reserve(engine.planes.size());
  for (size_t i = 0; i < engine.planes.size(); ++i) {
    AQ_RETURN_IF_ERROR(CheckPlane(engine, shape, element_bytes, i));
    sets.push_back(PlaneSet(engine, shape, i));
  }
  const auto found = FindOverlap(sets);
  if (!found.has_value()) return Status();
  return Bad(fmt::format("{} and {} share bytes, or their strides differ so that it cannot be told",
                         PlaneName(shape, found->first), PlaneName(shape, found->second)));
}

// One plane as a piece, its vectors joined as far as they lie together on both sides.
Piece MakePiece(const EnginePlane& plane, const Shape& shape, uint64_t vector_bytes) {
  Piece piece{.base = plane.base,
              .page_stride = plane.page_stride,
              .head_stride = plane.head_stride,
              .run_stride = plane.token_stride,
              .cut_stride = 0,
              .run_bytes = vector_bytes,
              .heads = shape.heads,
              .runs = shape.page_vectors / shape.blocks_per_page,
              .block_offset = 0,
              .block_bytes = 0};
  if (shape.blocks_per_page > 1) piece.cut_stride = piece.runs * plane.token_stride;
  piece.block_bytes = piece.run_bytes * piece.runs * piece.heads * shape.pages_per_block;
  if (piece.runs == 1 || piece.run_stride == piece.run_bytes) {
    piece.run_bytes *= piece.runs;
    piece.runs = 1;
    piece.run_stride = 0;
    // In the block a head's other pages come before the next head.
    if (shape.pages_per_block == 1 && (piece.heads == 1 || piece.head_stride == piece.run_bytes)) {
      piece.run_bytes *= piece.heads;
      piece.heads = 1;
    }
  }
  if (piece.heads == 1) piece.head_stride = 0;
  return piece;
}

bool IsOneRun(const Piece& piece) { return piece.runs == 1 && piece.heads == 1; }

// K with V, and layer with layer, where every page holds them one after the other.
bool Join(const EngineMap& map, const Piece& next, Piece* last) {
  if (map.pages_per_block != 1 || map.blocks_per_page != 1) return false;
  if (!IsOneRun(*last) || !IsOneRun(next) || last->page_stride != next.page_stride) return false;
  if (last->base + last->run_bytes != next.base) return false;
  if (last->block_offset + last->block_bytes != next.block_offset) return false;
  last->run_bytes += next.run_bytes;
  last->block_bytes += next.block_bytes;
  return true;
}

uint32_t Alignment(const std::vector<Piece>& pieces) {
  uint64_t bits = kMaxAlignment;
  for (const Piece& piece : pieces) {
    bits |= reinterpret_cast<uintptr_t>(piece.base) | piece.page_stride | piece.head_stride |
            piece.run_stride | piece.cut_stride | piece.run_bytes | piece.block_offset;
  }
  return uint32_t{1} << std::countr_zero(bits);
}

}  // namespace

Result<EngineMap> CompileEngineLayout(const Layout& layout, size_t group,
                                      const EngineLayout& engine) {
  AQ_RETURN_IF_ERROR(ValidateLayout(layout));
  if (group >= layout.groups.size()) {
    return Bad(fmt::format("group {} is not one of the layout's {}", group, layout.groups.size()));
  }
  const KvGroup& kv = layout.groups[group];
  AQ_ASSIGN_OR_RETURN(const Shape shape, Fit(layout, kv, engine));
  AQ_RETURN_IF_ERROR(CheckPlanes(engine, shape, shape.opaque ? 1 : DTypeBytes(kv.dtype)));

  EngineMap map{.pieces = {},
                .heads = engine.heads,
                .pages = engine.pages,
                .block_bytes = BlockBytes(layout, group),
                .tokens_per_block = layout.tokens_per_block,
                .pages_per_block = shape.pages_per_block,
                .blocks_per_page = shape.blocks_per_page,
                .alignment = 1,
                .ragged = shape.opaque && shape.vector_bytes[0] % kChecksumUnitBytes != 0};
  uint64_t plane_offset = 0;  // Of the plane's head 0 in the block, which may be another rank's.
  for (size_t i = 0; i < engine.planes.size(); ++i) {
    Piece piece = MakePiece(engine.planes[i], shape, shape.vector_bytes[i % shape.kinds]);
    const uint64_t head_bytes = piece.block_bytes / shape.heads;
    piece.block_offset = plane_offset + (shape.opaque ? 0 : engine.heads.begin) * head_bytes;
    plane_offset += head_bytes * shape.all_heads;
    if (map.pieces.empty() || !Join(map, piece, &map.pieces.back())) map.pieces.push_back(piece);
  }
  map.alignment = Alignment(map.pieces);
  return map;
}

}  // namespace aquifer
