// The loops that take the time: a matrix product, softmax over a tile of scores, and what is done
// to a row. One set of them for each instruction set, chosen once at run time; the source is the
// same (kernels.inc) and the compiler vectorises it.
//
// What they promise, and all of this engine's exactness stands on it: an element of a result is
// computed by the same operations in the same order, however many rows are computed with it.
// Different sets round differently, so a set's name is part of the layout's kv_format.
//
// Pure functions over memory that the caller owns. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aquifer::reference {

// Columns of a matrix that lie together, row after row: what one pass of the product computes.
inline constexpr size_t kPanelColumns = 32;
// Keys that attention looks at in one go. Tiles begin at multiples of it, counted from the
// sequence's first token, so that a row meets the same tiles in whatever batch it is computed.
inline constexpr size_t kTileTokens = 64;

// c[rows x columns] = a[rows x inner] * b[inner x columns], or c += with `accumulate`. Each element
// adds its products from the first to the last.
struct Product {
  const float* a = nullptr;
  size_t a_stride = 0;            // From row to row.
  const float* panels = nullptr;  // b, a panel after the other, each [inner][kPanelColumns].
  float* c = nullptr;
  size_t c_stride = 0;
  size_t rows = 0;
  size_t inner = 0;
  size_t columns = 0;  // The last panel may have fewer than kPanelColumns.
  bool accumulate = false;
};

struct Kernels {
  const char* name = nullptr;

  void (*multiply)(const Product& product) = nullptr;

  // One tile of attention for one row, online: `scores` become weights, those from `valid` on 0.
  // `largest` and `sum` are carried from tile to tile (begin with -infinity and 0); returns what
  // the output so far has to be multiplied by.
  float (*softmax_tile)(float* scores, size_t valid, float scale, float* largest,
                        float* sum) = nullptr;

  void (*scale)(float* row, size_t count, float factor) = nullptr;
  // out = row / rms(row) * weight
  void (*normalize)(const float* row, const float* weight, float* out, size_t count,
                    float epsilon) = nullptr;
  // gate = silu(gate) * up
  void (*gate_row)(float* gate, const float* up, size_t count) = nullptr;

  // kTileTokens keys of `dim` bfloat16 elements each, as panels of [dim][kPanelColumns] floats.
  // Those from `valid` on become 0.
  void (*unpack_keys)(const uint16_t* const* keys, size_t valid, size_t dim,
                      float* panels) = nullptr;
  // The same for values: panels of [kTileTokens][kPanelColumns], as many as `dim` needs.
  void (*unpack_values)(const uint16_t* const* values, size_t valid, size_t dim,
                        float* panels) = nullptr;
};

// The best set that this processor has.
const Kernels& ChosenKernels();
// For tests: all that it has, the portable one last.
size_t UsableKernels(const Kernels** sets, size_t room);

// One in each file of that name.
Kernels PortableKernels();
Kernels Avx2Kernels();
Kernels Avx512Kernels();

}  // namespace aquifer::reference
