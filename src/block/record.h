// The header that stands for one block on a medium: what the block is, where its bytes lie, and how
// they are checked. The NVMe log keeps it beside the payload and once more in the segment's footer
// (docs/formats/nvme.md); a durable store's blob begins with it (docs/formats/durable.md). 320
// bytes, little-endian, with a checksum of its own.
//
// Decoding distrusts every byte: what it accepts has a known version and codec, lengths within the
// product's bounds and a payload that begins on a page. Whether the payload lies inside its file is
// for the caller to say.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "block/block_meta.h"

namespace aquifer {

inline constexpr size_t kRecordBytes = 320;
inline constexpr uint16_t kRecordVersion = 1;

// Of two records of a block the greater one counts: that of the later storing, and of the same
// storing the one that was written last.
struct RecordAge {
  uint64_t origin = 0;    // The sequence of the record with which these bytes were stored.
  uint64_t sequence = 0;  // Rises with every record that a tier writes.

  bool stores() const { return origin == sequence; }  // Rather than moves or renews another.
  friend auto operator<=>(const RecordAge&, const RecordAge&) = default;
};

struct Record {
  BlockMeta meta;
  RecordAge age;
  uint64_t payload_offset = 0;  // In its file; a multiple of 4 KiB.
  uint64_t generation = 0;      // Of the segment that it was written to.
};

enum class RecordVerdict : uint8_t {
  kOk,
  kDamaged,       // Not a record, or one whose checksum or bounds do not hold.
  kNewerVersion,  // Written by a later release.
  kUnknownCodec,
};

void EncodeRecord(const Record& record, std::span<std::byte, kRecordBytes> bytes);

// `record` is set only when the verdict is kOk.
RecordVerdict DecodeRecord(std::span<const std::byte, kRecordBytes> bytes, Record* record);

}  // namespace aquifer
