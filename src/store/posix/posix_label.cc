#include "store/posix/posix_label.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "aquifer/checksum.h"
#include "base/bytes.h"
#include "store/blob_store.h"
#include "store/posix/posix_paths.h"

namespace aquifer {
namespace {

constexpr std::string_view kMagic = "AQBLOB01";
constexpr size_t kIdAt = 32;
constexpr size_t kFileAt = 48;
constexpr size_t kNameAt = 80;
constexpr size_t kChecksumAt = kPageBytes - 16;
constexpr size_t kFileDigits = 32;

}  // namespace

void EncodeLabel(const BlobLabel& label, std::span<std::byte, kPageBytes> page) {
  std::fill(page.begin(), page.end(), std::byte{0});
  std::byte* at = PutBytes(page.data(), kMagic.data(), kMagic.size());
  at = PutU32(at, label.grant);
  at = PutU32(at, static_cast<uint32_t>(label.name.size()));
  at = PutU64(at, label.blob_bytes);
  PutLe<int64_t>(at, label.expiry_unix_seconds);
  PutBytes(page.data() + kIdAt, label.id.data(), label.id.size());
  PutBytes(page.data() + kFileAt, label.file.data(), std::min(label.file.size(), kFileDigits));
  PutBytes(page.data() + kNameAt, label.name.data(), label.name.size());
  const Checksum checksum = ChecksumOf(page.first<kChecksumAt>());
  PutU64(PutU64(page.data() + kChecksumAt, checksum.low), checksum.high);
}

Result<BlobLabel> DecodeLabel(std::span<const std::byte, kPageBytes> page) {
  const Status bad(Code::kCorrupt, "a blob's file without a label");
  if (std::memcmp(page.data(), kMagic.data(), kMagic.size()) != 0) return bad;
  const Checksum checksum = ChecksumOf(page.first<kChecksumAt>());
  if (GetU64(page.data() + kChecksumAt) != checksum.low ||
      GetU64(page.data() + kChecksumAt + 8) != checksum.high) {
    return bad;
  }
  BlobLabel label;
  label.grant = GetU32(page.data() + 8);
  const size_t name_bytes = GetU32(page.data() + 12);
  label.blob_bytes = GetU64(page.data() + 16);
  label.expiry_unix_seconds = GetLe<int64_t>(page.data() + 24);
  std::copy_n(page.data() + kIdAt, label.id.size(), label.id.begin());
  label.file.assign(reinterpret_cast<const char*>(page.data() + kFileAt), kFileDigits);
  if (name_bytes > kChecksumAt - kNameAt) return bad;
  label.name.assign(reinterpret_cast<const char*>(page.data() + kNameAt), name_bytes);
  uint64_t folders = 0;
  if (!CheckBlobName(label.name).ok() || !ParseDataFileName(DataFileName(label), &folders)) {
    return bad;
  }
  return label;
}

std::string DataFileName(const BlobLabel& label) {
  return fmt::format("{}-{}", label.file, FoldersOf(label.name));
}

bool ParseDataFileName(std::string_view name, uint64_t* folders) {
  if (name.size() < kFileDigits + 2 || name[kFileDigits] != '-') return false;
  if (name.substr(0, kFileDigits).find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return false;
  }
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kFileDigits + 1, end, *folders);
  return error == std::errc() && stop == end;
}

}  // namespace aquifer
