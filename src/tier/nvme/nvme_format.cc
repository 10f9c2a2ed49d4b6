#include "tier/nvme/nvme_format.h"

#include <algorithm>
#include <cstring>

#include "aquifer/checksum.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/planted_bug.h"

namespace aquifer {
namespace {

constexpr uint64_t kHeaderMagic = 0x4745534649555141;   // "AQUIFSEG".
constexpr uint64_t kMapMagic = 0x50414D4649555141;      // "AQUIFMAP".
constexpr uint64_t kGroupMagic = 0x5052474649555141;    // "AQUIFGRP".
constexpr uint64_t kFooterMagic = 0x54464D4649555141;   // "AQUIFMFT".
constexpr uint64_t kTrailerMagic = 0x444E454649555141;  // "AQUIFEND".

constexpr size_t kChecksumBytes = 16;
// The header proper is one sector, which drives write whole or not at all.
constexpr size_t kHeaderBytes = 512;
constexpr size_t kPageHeaderBytes = 64;  // Of maps and record pages.

void PutChecksum(std::span<std::byte> bytes) {
  const Checksum sum = ChecksumOf(bytes.first(bytes.size() - kChecksumBytes));
  std::byte* at = bytes.data() + bytes.size() - kChecksumBytes;
  PutU64(PutU64(at, sum.low), sum.high);
}

bool ChecksumHolds(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data() + bytes.size() - kChecksumBytes;
  const Checksum stored{GetU64(at), GetU64(at + 8)};
  return ChecksumOf(bytes.first(bytes.size() - kChecksumBytes)) == stored;
}

uint64_t MagicOf(RecordPageKind kind) {
  return kind == RecordPageKind::kGroup ? kGroupMagic : kFooterMagic;
}

}  // namespace

uint64_t MapBytes(uint64_t segment_bytes) {
  const uint64_t most_records = segment_bytes / kPageBytes;  // Each has a payload of a page.
  return RoundUpToPage(kPageHeaderBytes + (most_records + 7) / 8 + kChecksumBytes);
}

uint64_t DataOffset(uint64_t segment_bytes) { return kMapsOffset + 2 * MapBytes(segment_bytes); }

uint64_t FooterBytes(uint64_t records) {
  return ((records + kRecordsPerPage - 1) / kRecordsPerPage + 1) * kPageBytes;
}

uint64_t MinSegmentBytes(uint64_t block_bytes) {
  const uint64_t content = kPageBytes + RoundUpToPage(block_bytes) + FooterBytes(1);
  uint64_t bytes = content;
  while (DataOffset(bytes) + content > bytes) bytes = DataOffset(bytes) + content;
  return bytes;
}

void EncodeHeader(const SegmentHeader& header, std::span<std::byte, kPageBytes> page) {
  std::memset(page.data(), 0, page.size());
  std::byte* at = page.data();
  at = PutU64(at, kHeaderMagic);
  at = PutU16(at, kNvmeFormatVersion);
  at = PutU16(at, static_cast<uint16_t>(header.state));
  at = PutU32(at, header.file);
  at = PutU64(at, header.segment_bytes);
  at = PutBytes(at, header.drive_id.data(), header.drive_id.size());
  at = PutU64(at, header.use.generation);
  at = PutU64(at, header.use.salt);
  PutLe<int64_t>(at, header.created_unix_seconds);
  PutChecksum(page.first(kHeaderBytes));
}

HeaderVerdict DecodeHeader(std::span<const std::byte, kPageBytes> page, SegmentHeader* header) {
  const std::byte* at = page.data();
  if (GetU64(at) != kHeaderMagic) {
    const bool zero =
        std::all_of(page.begin(), page.end(), [](std::byte byte) { return byte == std::byte{0}; });
    return zero ? HeaderVerdict::kUnused : HeaderVerdict::kForeign;
  }
  // A later release may sum its header in another way, so this is asked before the checksum.
  if (GetU16(at + 8) > kNvmeFormatVersion) return HeaderVerdict::kNewerVersion;
  if (!ChecksumHolds(page.first(kHeaderBytes))) return HeaderVerdict::kDamaged;
  const uint16_t state = GetU16(at + 10);
  if (state != static_cast<uint16_t>(SegmentState::kUsed) &&
      state != static_cast<uint16_t>(SegmentState::kFree)) {
    return HeaderVerdict::kDamaged;
  }
  header->state = static_cast<SegmentState>(state);
  header->file = GetU32(at + 12);
  header->segment_bytes = GetU64(at + 16);
  std::memcpy(header->drive_id.data(), at + 24, header->drive_id.size());
  header->use.generation = GetU64(at + 40);
  header->use.salt = GetU64(at + 48);
  header->created_unix_seconds = GetLe<int64_t>(at + 56);
  if (header->segment_bytes % kPageBytes != 0 || header->segment_bytes < MinSegmentBytes(1)) {
    return HeaderVerdict::kDamaged;
  }
  return HeaderVerdict::kOk;
}

std::span<std::byte> MapBitmap(std::span<std::byte> bytes) {
  return bytes.subspan(kPageHeaderBytes, bytes.size() - kPageHeaderBytes - kChecksumBytes);
}

std::span<const std::byte> MapBitmap(std::span<const std::byte> bytes) {
  return bytes.subspan(kPageHeaderBytes, bytes.size() - kPageHeaderBytes - kChecksumBytes);
}

void FinishMap(const MapHeader& header, std::span<std::byte> bytes) {
  std::byte* at = bytes.data();
  at = PutU64(at, kMapMagic);
  at = PutU16(at, kNvmeFormatVersion);
  at = PutU16(at, 0);
  at = PutU32(at, header.records);
  at = PutU64(at, header.use.generation);
  at = PutU64(at, header.use.salt);
  PutU64(at, header.sequence);
  PutChecksum(bytes);
}

bool DecodeMap(std::span<const std::byte> bytes, const SegmentUse& use, MapHeader* header) {
  const std::byte* at = bytes.data();
  if (GetU64(at) != kMapMagic || GetU16(at + 8) != kNvmeFormatVersion) return false;
  header->records = GetU32(at + 12);
  header->use = {GetU64(at + 16), GetU64(at + 24)};
  header->sequence = GetU64(at + 32);
  if (header->use != use || !ChecksumHolds(bytes)) return false;
  return header->records <= MapBitmap(bytes).size() * 8;
}

std::span<std::byte, kRecordBytes> RecordAt(std::span<std::byte, kPageBytes> page, uint32_t index) {
  return std::span<std::byte, kRecordBytes>(page.data() + kPageHeaderBytes + index * kRecordBytes,
                                            kRecordBytes);
}

std::span<const std::byte, kRecordBytes> RecordAt(std::span<const std::byte, kPageBytes> page,
                                                  uint32_t index) {
  return std::span<const std::byte, kRecordBytes>(
      page.data() + kPageHeaderBytes + index * kRecordBytes, kRecordBytes);
}

uint64_t PageLink(std::span<const std::byte, kPageBytes> page) {
  return GetU64(page.data() + kPageBytes - kChecksumBytes);
}

void FinishRecordPage(const RecordPage& header, std::span<std::byte, kPageBytes> page) {
  AQ_CHECK(header.records <= kRecordsPerPage);
  std::byte* at = page.data();
  at = PutU64(at, MagicOf(header.kind));
  at = PutU16(at, kNvmeFormatVersion);
  at = PutU16(at, static_cast<uint16_t>(header.records));
  at = PutU32(at, header.number);
  at = PutU64(at, header.use.generation);
  at = PutU64(at, header.use.salt);
  at = PutU32(at, header.first_record);
  at = PutU32(at, 0);
  at = PutU64(at, header.offset);
  at = PutU64(at, header.end_offset);
  PutU64(at, header.previous);
  PutChecksum(page);
}

PageVerdict DecodeRecordPage(std::span<const std::byte, kPageBytes> page, RecordPage* header) {
  const std::byte* at = page.data();
  const SegmentUse use{GetU64(at + 16), GetU64(at + 24)};
  if (GetU64(at) != MagicOf(header->kind) || use != header->use) return PageVerdict::kOther;
  const uint16_t records = GetU16(at + 10);
  const bool trusted =
      header->kind == RecordPageKind::kFooter && Planted(PlantedBug::kFooterTrusted);
  if (GetU16(at + 8) != kNvmeFormatVersion || GetU32(at + 12) != header->number ||
      GetU64(at + 40) != header->offset || records > kRecordsPerPage ||
      !(ChecksumHolds(page) || trusted)) {
    return PageVerdict::kDamaged;
  }
  // Left over from a log that went on differently from here.
  if (GetU64(at + 56) != header->previous) return PageVerdict::kOther;
  header->records = records;
  header->first_record = GetU32(at + 32);
  header->end_offset = GetU64(at + 48);
  return PageVerdict::kOk;
}

void EncodeTrailer(const SegmentTrailer& trailer, std::span<std::byte, kPageBytes> page) {
  std::memset(page.data(), 0, page.size());
  std::byte* at = page.data();
  at = PutU64(at, kTrailerMagic);
  at = PutU16(at, kNvmeFormatVersion);
  at = PutU16(at, 0);
  at = PutU32(at, trailer.records);
  at = PutU64(at, trailer.use.generation);
  at = PutU64(at, trailer.use.salt);
  at = PutU32(at, trailer.groups);
  at = PutU32(at, 0);
  at = PutU64(at, trailer.footer_offset);
  PutU64(at, trailer.data_end);
  PutChecksum(page);
}

bool DecodeTrailer(std::span<const std::byte, kPageBytes> page, const SegmentUse& use,
                   uint64_t segment_bytes, SegmentTrailer* trailer) {
  const std::byte* at = page.data();
  if (GetU64(at) != kTrailerMagic || GetU16(at + 8) != kNvmeFormatVersion) return false;
  trailer->records = GetU32(at + 12);
  trailer->use = {GetU64(at + 16), GetU64(at + 24)};
  trailer->groups = GetU32(at + 32);
  trailer->footer_offset = GetU64(at + 40);
  trailer->data_end = GetU64(at + 48);
  if (trailer->use != use || !ChecksumHolds(page)) return false;
  const uint64_t footer_bytes = FooterBytes(trailer->records);
  return footer_bytes <= segment_bytes - DataOffset(segment_bytes) &&
         trailer->footer_offset == segment_bytes - footer_bytes &&
         trailer->data_end >= DataOffset(segment_bytes) &&
         trailer->data_end <= trailer->footer_offset;
}

}  // namespace aquifer
