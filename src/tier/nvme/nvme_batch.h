// What the NVMe tier knows of each operation in a caller's batch (pending_batch.h). Private to the
// tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tier/nvme/nvme_drive.h"
#include "tier/nvme/nvme_index.h"
#include "tier/nvme/nvme_writer.h"
#include "tier/packing/packed_block.h"
#include "tier/pending_batch.h"
#include "tier/tier.h"

namespace aquifer {

struct PendingRead {
  PendingBatch<ReadOp, PendingRead>* batch = nullptr;
  size_t index = 0;
  bool settled = false;
  bool touched = false;
  bool counted = false;  // In the bound on queued operations.
  BlockId id;
  RecordPlace place;
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
  Checksum checksum;
  std::span<std::byte> target;
  std::shared_ptr<UnpackJob> unpack;  // Null: what is stored are the raw bytes.
};

class NvmeTierImpl;

struct PendingWrite final : AppendItem {
  enum class Stage : uint8_t { kNew, kVerifying, kReady, kAtDrive, kFollowing };

  void OnTaken() override;
  void OnPayloadDone() override;
  void OnAppended(const Status& status) override;

  NvmeTierImpl* tier = nullptr;
  PendingBatch<WriteOp, PendingWrite>* batch = nullptr;
  size_t index = 0;
  bool settled = false;
  bool touched = false;
  bool counted = false;
  Stage stage = Stage::kNew;
  uint32_t drive = UINT32_MAX;
  SharedDataKey key;                    // Null: nothing is sealed.
  std::shared_ptr<PackedBlock> packed;  // Where the tier has a packer.
};

struct PendingErase {
  PendingBatch<EraseOp, PendingErase>* batch = nullptr;
  size_t index = 0;
  bool settled = false;
  bool touched = false;  // Never: an erase has no buffer.
  bool counted = false;
  BlockId id;
  uint32_t drive = UINT32_MAX;  // Whose map is being written.
  bool unknown = false;         // No drive has it, as far as is known.
  size_t drives_read = 0;       // When that was looked up.
};

using ReadBatch = PendingBatch<ReadOp, PendingRead>;
using WriteBatch = PendingBatch<WriteOp, PendingWrite>;
using EraseBatch = PendingBatch<EraseOp, PendingErase>;

}  // namespace aquifer
