// Small tiers, and blocks for them. For tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tier/nvme/nvme_harness.h"

namespace aquifer {

inline constexpr uint64_t kSegment = 128 << 10;

inline NvmeTierOptions Small(uint64_t segments = 8) {
  NvmeTierOptions options;
  options.segment_bytes = kSegment;
  options.capacity_bytes = segments * kSegment;
  options.max_block_bytes = 16 << 10;
  return options;
}

inline std::vector<std::unique_ptr<TestBlock>> Blocks(uint64_t first, uint64_t count,
                                                      uint64_t bytes) {
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = first; i < first + count; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, bytes));
  }
  return blocks;
}

// Until a segment is sealed, so that there is a footer.
inline std::vector<std::unique_ptr<TestBlock>> FillSegments(NvmeHarness* harness, uint64_t sealed) {
  std::vector<std::unique_ptr<TestBlock>> blocks;
  while (harness->Counter("segments_sealed") < sealed) {
    blocks.push_back(std::make_unique<TestBlock>(blocks.size(), 5000));
    EXPECT_TRUE(harness->Write(*blocks.back()).ok());
  }
  return blocks;
}

// Keeps everything, oldest first.
inline void KeepAll(std::span<const BlockId> ids, std::vector<size_t>* order) {
  for (size_t i = 0; i < ids.size(); ++i) order->push_back(i);
}

}  // namespace aquifer
