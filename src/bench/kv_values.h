// bf16 values with the statistics of real K and V, for measuring what depends on them. Not real KV:
// what a codec saves on a model's own has to be measured there.
//
// In a block's order (docs/formats/block.md), 8 heads of 64 tokens and 128 channels: for each layer
// K, then V. They have the traits that papers report: K's channels have scales of their own
// (log-normal) and means that all tokens share, a few channels are outliers by a factor of ten, and
// rotary position encoding turns pairs of channels by the token's position; V is Gaussian with
// scales that differ little. Layers differ in scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aquifer {

// The same for the same seed. About 25 ns a value.
void FillLikeKv(std::span<std::byte> bytes, uint64_t seed);

}  // namespace aquifer
