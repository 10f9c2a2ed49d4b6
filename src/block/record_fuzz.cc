// Whatever decodes must be within bounds and encode to the very bytes it came from, reserved ones
// aside. The first input byte says whether to repair the checksum, so that the fuzzer gets past it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aquifer/checksum.h"
#include "aquifer/layout.h"
#include "base/check.h"
#include "block/record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aquifer;  // NOLINT(google-build-using-namespace)
  if (size < 1) return 0;
  std::array<std::byte, kRecordBytes> bytes{};
  std::memcpy(bytes.data(), data + 1, std::min(size - 1, bytes.size()));
  constexpr size_t kSummed = kRecordBytes - 16;
  if (data[0] & 1) {
    const Checksum sum = ChecksumOf(std::span(bytes).first(kSummed));
    std::memcpy(bytes.data() + kSummed, &sum.low, 8);
    std::memcpy(bytes.data() + kSummed + 8, &sum.high, 8);
  }
  Record record;
  if (DecodeRecord(bytes, &record) != RecordVerdict::kOk) return 0;
  AQ_CHECK(record.meta.raw_bytes > 0 && record.meta.raw_bytes <= kMaxBlockBytes);
  const bool whole = record.meta.stored_bytes == record.meta.raw_bytes;
  AQ_CHECK(record.meta.stored_bytes > 0 && record.meta.stored_bytes <= record.meta.raw_bytes);
  AQ_CHECK(whole == (record.meta.codec == Codec::kNone));
  AQ_CHECK(record.payload_offset % 4096 == 0);
  std::array<std::byte, kRecordBytes> again;
  EncodeRecord(record, again);
  AQ_CHECK(std::memcmp(again.data(), bytes.data(), 256) == 0);
  return 0;
}
