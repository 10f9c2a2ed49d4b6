// The loops that take most of the time: a matrix product, softmax over a tile of scores, and
// operations on a row. There is one set for each instruction set, chosen once at run time. All have
// the same source (kernels.inc), which the compiler vectorises.
//
// All of this engine's exactness rests on one promise. An element of a result is computed by the
// same operations in the same order, however many rows are computed with it. Different sets round
// differently, so a set's name is part of the layout's kv_format.
//
// Pure functions over memory that the caller owns. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aquifer::reference {

// How many columns of a matrix lie together, row after row. One pass of the product computes so
// many.
inline constexpr size_t kPanelColumns = 32;
// How many keys attention handles at once. Tiles begin at multiples of it, counted from the
// sequence's first token. A row therefore meets the same tiles in every batch.
inline constexpr size_t kTileTokens = 64;

// c[rows x columns] = a[rows x inner] * b[inner x columns], or c += with `accumulate`. Each element
// adds its products from the first to the last.
struct Product {
  const float* a = nullptr;
  size_t a_stride = 0;            // Elements from one row to the next.
  const float* panels = nullptr;  // b as panels, one after the other, each [inner][kPanelColumns].
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

  // Attention of one row over one tile. `scores` become weights; those from `valid` on become 0.
  // `largest` and `sum` are carried from tile to tile (begin with -infinity and 0). Returns the
  // factor for the output so far.
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
// For tests: all sets that this processor can run, the portable one last.
size_t UsableKernels(const Kernels** sets, size_t room);

// Each is in the file of its name.
Kernels PortableKernels();
Kernels Avx2Kernels();
Kernels Avx512Kernels();

}  // namespace aquifer::reference
