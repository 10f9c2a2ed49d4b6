// Pages of a segment as recovery meets them. Whatever is accepted must lie within bounds, whoever
// wrote it. The first byte says which page it is and whether its checksum is repaired first.
#include <algorithm>
#include <cstring>
#include <vector>

#include "aquifer/checksum.h"
#include "base/bytes.h"
#include "base/check.h"
#include "tier/nvme/nvme_format.h"

namespace {

void Repair(std::span<std::byte> bytes) {
  const auto sum = aquifer::ChecksumOf(bytes.first(bytes.size() - 16));
  std::byte* at = bytes.data() + bytes.size() - 16;
  aquifer::PutU64(aquifer::PutU64(at, sum.low), sum.high);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aquifer;
  if (size < 1) return 0;
  constexpr uint64_t kSegmentBytes = 1 << 20;
  std::vector<std::byte> bytes(kPageBytes);
  std::memcpy(bytes.data(), data + 1, std::min(size - 1, bytes.size()));
  const std::span<std::byte, kPageBytes> page(bytes.data(), kPageBytes);
  const bool repair = (data[0] & 1) != 0;
  const SegmentUse use{GetU64(bytes.data() + 16), GetU64(bytes.data() + 24)};
  switch (data[0] >> 1 & 3) {
    case 0: {
      if (repair) Repair(page.first(512));
      SegmentHeader header;
      if (DecodeHeader(page, &header) != HeaderVerdict::kOk) break;
      AQ_CHECK(header.segment_bytes % kPageBytes == 0);
      AQ_CHECK(header.segment_bytes >= MinSegmentBytes(1));
      break;
    }
    case 1: {
      if (repair) Repair(page);
      MapHeader header;
      if (!DecodeMap(bytes, use, &header)) break;
      AQ_CHECK(header.records <= MapBitmap(std::span<const std::byte>(bytes)).size() * 8);
      break;
    }
    case 2: {
      if (repair) Repair(page);
      RecordPage header;
      header.use = use;
      header.number = GetU32(bytes.data() + 12);
      header.offset = GetU64(bytes.data() + 40);
      header.previous = GetU64(bytes.data() + 56);
      if (DecodeRecordPage(page, &header) != PageVerdict::kOk) break;
      AQ_CHECK(header.records <= kRecordsPerPage);
      for (uint32_t i = 0; i < header.records; ++i) {
        Record record;
        (void)DecodeRecord(RecordAt(std::span<const std::byte, kPageBytes>(page), i), &record);
      }
      break;
    }
    default: {
      if (repair) Repair(page);
      SegmentTrailer trailer;
      if (!DecodeTrailer(page, use, kSegmentBytes, &trailer)) break;
      AQ_CHECK(trailer.footer_offset + FooterBytes(trailer.records) == kSegmentBytes);
      AQ_CHECK(trailer.data_end <= trailer.footer_offset);
    }
  }
  return 0;
}
