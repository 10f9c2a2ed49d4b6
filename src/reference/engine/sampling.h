// Chooses the next token. Pure: the same logits and random state give the same token.
#pragma once

#include <cstdint>
#include <span>

namespace aquifer::reference {

// Temperature 0: the most likely token. Otherwise one of the likeliest tokens that make up `top_p`
// of the weight.
uint32_t Sample(std::span<const float> logits, float temperature, float top_p, uint64_t* random);

}  // namespace aquifer::reference
