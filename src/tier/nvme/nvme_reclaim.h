// What NvmeDrive knows while it empties a segment. Private to the drive.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tier/nvme/nvme_drive.h"

namespace aquifer {

struct NvmeDrive::Move final : AppendItem {
  void OnTaken() override {}
  void OnPayloadDone() override {}
  void OnAppended(const Status& status) override { drive->OnMoveDone(this, status); }

  NvmeDrive* drive = nullptr;
};

struct NvmeDrive::Reclaim {
  struct Kept {
    NvmeIndex::EntryId entry = NvmeIndex::kNone;
    uint64_t sequence = 0;  // Tells whether the entry is still this record's.
    uint64_t bytes = 0;
  };
  // What could be kept, until it is sorted by value. Goes to a worker for that, and comes back.
  struct Candidates {
    std::unique_ptr<ReclaimChoice> choice;
    std::vector<Kept> blocks;
    uint64_t keep_bytes = 0;         // No more than this.
    uint64_t max_segment_bytes = 0;  // Nor what does not fit into a segment of this size.

    std::vector<Kept> Best();
  };

  uint32_t victim = 0;
  std::shared_ptr<Candidates> candidates;  // While it is not chosen what to keep.
  size_t next_look = 0;                    // Records of the victim that are among them.
  bool sorting = false;                    // A worker has them.
  std::vector<Kept> keep;                  // In falling order of value.
  size_t next = 0;                         // Of `keep`, the first that is not on its way.
  std::vector<std::unique_ptr<Move>> moves;
  uint64_t moving_bytes = 0;
  size_t next_drop = 0;     // Records of the victim that are dropped, from its end on.
  bool failed = false;      // The drive failed: the victim stays as it is.
  bool freeing = false;     // Its header is being written.
  bool continuing = false;  // A task to go on is posted.
};

}  // namespace aquifer
