// Which blocks deserve a place on NVMe when they are stored. Writing wears the device out and
// competes with reads, so what will not return should not be written; the rules say how that is
// guessed.
#pragma once

#include <cstdint>

#include "policy/block_features.h"

namespace aquifer {

enum class WriteDownRule : uint8_t {
  kAlways,       // To begin with: nothing that DRAM gives up is lost.
  kNever,        // The tier serves what is on it.
  kSecondTouch,  // Once it has been used after it was stored.
};

struct WriteDownOptions {
  WriteDownRule rule = WriteDownRule::kAlways;
  // kSecondTouch: the first blocks of a chain are shared by everything below them, and are always
  // written.
  uint32_t always_below_position = 0;
};

bool ShouldWriteDown(const WriteDownOptions& options, const BlockFeatures& features);

}  // namespace aquifer
