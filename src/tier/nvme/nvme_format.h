// The pages of a segment, as docs/formats/nvme.md describes them: header, deletion maps, record
// pages (the same for groups and for the footer) and trailer. Encoding fills whole pages; decoding
// distrusts every byte and says why it refuses.
//
// Everything but the header carries the segment's generation and its salt, a random number drawn
// for each use of a file, so that what an earlier use left behind is never taken for this one's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/status.h"
#include "block/record.h"
#include "io/disk/disk.h"

namespace aquifer {

inline constexpr uint16_t kNvmeFormatVersion = 1;
inline constexpr uint32_t kRecordsPerPage = 12;
inline constexpr uint64_t kScratchOffset = kPageBytes;  // Ours to write to when probing a drive.
inline constexpr uint64_t kMapsOffset = 2 * kPageBytes;

using DriveId = std::array<std::byte, 16>;

// Where things lie in a segment of a given size.
uint64_t MapBytes(uint64_t segment_bytes);    // Of one of the two copies.
uint64_t DataOffset(uint64_t segment_bytes);  // Of the first group page.
uint64_t FooterBytes(uint64_t records);       // Footer pages and trailer.
// The smallest segment that holds one block of `block_bytes`.
uint64_t MinSegmentBytes(uint64_t block_bytes);

// Which use of which file a page belongs to.
struct SegmentUse {
  uint64_t generation = 0;
  uint64_t salt = 0;

  friend bool operator==(const SegmentUse&, const SegmentUse&) = default;
};

enum class SegmentState : uint16_t { kUsed = 1, kFree = 2 };

struct SegmentHeader {
  SegmentState state = SegmentState::kUsed;
  uint32_t file = 0;
  uint64_t segment_bytes = 0;
  DriveId drive_id{};
  SegmentUse use;
  int64_t created_unix_seconds = 0;
};

enum class HeaderVerdict : uint8_t {
  kOk,
  kUnused,        // All zero: allocated and never written.
  kForeign,       // Not ours. Never overwritten.
  kNewerVersion,  // Never overwritten.
  kDamaged,       // Ours, but torn or flipped: its file can be used again.
};

void EncodeHeader(const SegmentHeader& header, std::span<std::byte, kPageBytes> page);
HeaderVerdict DecodeHeader(std::span<const std::byte, kPageBytes> page, SegmentHeader* header);

// One copy of a deletion map. Bits are numbered like records; a set bit is a record that is gone.
// `bitmap` points into the encoded bytes.
struct MapHeader {
  SegmentUse use;
  uint64_t sequence = 0;
  uint32_t records = 0;  // Bits beyond it are zero.
};

// `bytes` is MapBytes() long and zero; fill the bitmap (MapBitmap) first.
std::span<std::byte> MapBitmap(std::span<std::byte> bytes);
std::span<const std::byte> MapBitmap(std::span<const std::byte> bytes);
void FinishMap(const MapHeader& header, std::span<std::byte> bytes);
bool DecodeMap(std::span<const std::byte> bytes, const SegmentUse& use, MapHeader* header);

enum class RecordPageKind : uint8_t { kGroup, kFooter };

struct RecordPage {
  RecordPageKind kind = RecordPageKind::kGroup;
  SegmentUse use;
  uint32_t number = 0;        // Of the group, or of the footer page.
  uint32_t first_record = 0;  // The number of the first record on the page.
  uint32_t records = 0;
  uint64_t offset = 0;      // Groups: where the page itself lies. Footer: 0.
  uint64_t end_offset = 0;  // Groups: where the next group page would be. Footer: 0.
  // Groups: PageLink() of the page before, so that only pages written after each other follow each
  // other. 0 for the first, and in the footer.
  uint64_t previous = 0;
};

uint64_t PageLink(std::span<const std::byte, kPageBytes> page);

enum class PageVerdict : uint8_t {
  kOk,
  kOther,    // No record page of this use: the end of the log.
  kDamaged,  // It was one, and its checksum fails.
};

// Records are encoded into RecordAt() first.
std::span<std::byte, kRecordBytes> RecordAt(std::span<std::byte, kPageBytes> page, uint32_t index);
std::span<const std::byte, kRecordBytes> RecordAt(std::span<const std::byte, kPageBytes> page,
                                                  uint32_t index);
void FinishRecordPage(const RecordPage& header, std::span<std::byte, kPageBytes> page);
// `header` names the kind, use, number, offset and previous page that are expected; the rest is
// filled in.
PageVerdict DecodeRecordPage(std::span<const std::byte, kPageBytes> page, RecordPage* header);

// The last page of a sealed segment.
struct SegmentTrailer {
  SegmentUse use;
  uint32_t records = 0;
  uint32_t groups = 0;
  uint64_t footer_offset = 0;
  uint64_t data_end = 0;
};

void EncodeTrailer(const SegmentTrailer& trailer, std::span<std::byte, kPageBytes> page);
// False unless it is this use's and everything in it fits a segment of `segment_bytes`.
bool DecodeTrailer(std::span<const std::byte, kPageBytes> page, const SegmentUse& use,
                   uint64_t segment_bytes, SegmentTrailer* trailer);

}  // namespace aquifer
