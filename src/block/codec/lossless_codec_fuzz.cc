// Any bytes decode to something or are refused, by every kernel alike, inside of their bounds. The
// first input byte says which way: the rest as a stored payload of a length that its own header
// (or, where that is absurd, the input) gives, or as values that must come back as they were.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "block/codec/lossless_codec.h"
#include "block/codec/lossless_kernel.h"

namespace {

using namespace aquifer;  // NOLINT(google-build-using-namespace)

// In memory of exactly their size, so that a sanitizer sees the first byte beyond.
void DecodeWithAll(const std::vector<std::byte>& stored) {
  constexpr uint64_t kMostBytes = 1 << 18;
  uint64_t raw_bytes = stored.size() < 16 ? 0 : GetU64(stored.data() + 8);
  if (raw_bytes > kMostBytes) raw_bytes = stored.size();
  std::vector<std::byte> first;
  bool first_ok = false;
  bool is_first = true;
  for (const LosslessKernel& kernel : LosslessKernels()) {
    ForceLosslessKernel(&kernel);
    std::vector<std::byte> raw(raw_bytes);
    const bool ok = DecodeLossless(stored, raw).ok();
    if (is_first) {
      first_ok = ok;
      first = std::move(raw);
      is_first = false;
      continue;
    }
    AQ_CHECK(ok == first_ok);
    if (ok) AQ_CHECK(raw == first);
  }
  ForceLosslessKernel(nullptr);
}

void EncodeWithAll(DType dtype, const std::vector<std::byte>& raw) {
  static LosslessEncoder encoder;
  for (const LosslessKernel& kernel : LosslessKernels()) {
    ForceLosslessKernel(&kernel);
    std::vector<std::byte> stored(MaxLosslessBytes(raw.size()));
    stored.resize(encoder.Encode(dtype, raw, stored));
    std::vector<std::byte> back(raw.size());
    AQ_CHECK(DecodeLossless(stored, back).ok());
    AQ_CHECK(back == raw);
  }
  ForceLosslessKernel(nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const auto* const begin = reinterpret_cast<const std::byte*>(data + 1);
  const std::vector<std::byte> bytes(begin, begin + size - 1);
  switch (data[0] % 3) {
    case 0:
      DecodeWithAll(bytes);
      break;
    case 1:
      EncodeWithAll(DType::kBFloat16, bytes);
      break;
    default:
      EncodeWithAll(DType::kFloat16, bytes);
  }
  return 0;
}
