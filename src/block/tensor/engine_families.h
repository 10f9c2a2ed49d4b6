// The KV tensors of real engines, by name: what their shapes mean, as EngineLayouts.
//
// A connector passes tensors as they are: memory, shape, strides. The order in memory is in the
// strides and may be any: NHD and HND are the same shape, and cross-layer blocks are layers that
// lie in one tensor. So a family is only a shape, written as letters:
//
//   L layers   B pages   2 K, V   H heads of this rank   N tokens of a page   C a vector's elements
//
// Shapes are checked against the group here; strides and memory by CompileEngineLayout(). kInvalid
// names the tensor and the dimension. Elements may be wider or narrower than the group's (an int8
// view of a bf16 cache): only the bytes of C count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aquifer/layout.h"
#include "aquifer/status.h"
#include "block/tensor/engine_layout.h"

namespace aquifer {

struct EngineTensor {
  std::span<std::byte> memory;  // From the first element to the end of the storage.
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // In elements, as torch gives them.
  uint32_t element_bytes = 0;
};

// The group that the tensors hold, and the part of it that this rank has.
struct EngineGroup {
  const Layout* layout = nullptr;
  size_t group = 0;
  HeadRange heads;
};

// One tensor for all layers, [L, ...], taken apart. For vLLM's cross-layer blocks and for every
// family below.
Result<std::vector<EngineTensor>> LayersOf(const EngineTensor& all_layers);

// vLLM up to 0.22, FlashAttention and Triton: [2, B, N, H, C] a layer.
Result<EngineLayout> VllmKvFirst(const EngineGroup& group, std::span<const EngineTensor> layers);

// FlashInfer, and vLLM's FlashAttention 0.23 to 0.25: [B, 2, N, H, C] a layer.
Result<EngineLayout> VllmPageFirst(const EngineGroup& group, std::span<const EngineTensor> layers);

// vLLM's FlashAttention from 0.26 on, and all of its backends after 0.28: [B, H, N, C] a layer,
// each C a K and then a V, in any of the orders LBHNC, LBNHC, LHBNC, BLHNC, BLNHC and BHLNC.
Result<EngineLayout> VllmFused(const EngineGroup& group, std::span<const EngineTensor> layers);

// The same shape where a CPU attends: the bytes of a page's head are all K, then all V, each packed
// for the processor. Pages are not cut, and kv_format must name the packing and the page's size.
Result<EngineLayout> VllmCpuPacked(const EngineGroup& group, std::span<const EngineTensor> layers);

// MLA: [B, N, C] a layer, C the latent and rope vector (or fp8_ds_mla's 656 bytes).
Result<EngineLayout> VllmLatent(const EngineGroup& group, std::span<const EngineTensor> layers);

// K and V in tensors of their own: [B, N, H, C] (vLLM on Ascend).
Result<EngineLayout> PagedApart(const EngineGroup& group, std::span<const EngineTensor> keys,
                                std::span<const EngineTensor> values);

// SGLang: [slots, H, C], of which `page_tokens` in a row are a page (its --page-size; 1 is common).
// Without `values`: MLA, [slots, 1, C].
Result<EngineLayout> SglangSlots(const EngineGroup& group, std::span<const EngineTensor> keys,
                                 std::span<const EngineTensor> values, uint32_t page_tokens);

// transformers: [batch, H, T, C]. A sequence is one page, as long as its whole blocks; block `i` of
// sequence `b` is block `i` of the page table {b}.
Result<EngineLayout> TransformersSequences(const EngineGroup& group,
                                           std::span<const EngineTensor> keys,
                                           std::span<const EngineTensor> values);

// Pages that only the engine understands, [B, ...] with everything of a page in one run: packed
// caches, quantised ones with the scales in the page, state-space snapshots. One tensor or several
// a layer, in the order in which the block holds them, all with pages of one size. The rank holds
// all heads.
Result<EngineLayout> OpaquePages(const EngineGroup& group, std::span<const EngineTensor> tensors,
                                 uint32_t page_tokens);

}  // namespace aquifer
