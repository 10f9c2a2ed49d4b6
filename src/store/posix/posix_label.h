// The page that a blob's file begins with: whose file it is, how long the blob is, and which grant
// pays for it. Its id is random and never used again: by that the file is known to be the same one
// still. What the file is called in its grant may be used again, for another blob.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "io/disk/disk.h"

namespace aquifer {

struct BlobLabel {
  std::string name;
  uint64_t blob_bytes = 0;
  uint32_t grant = 0;
  std::array<std::byte, 16> id{};
  std::string file;                 // 32 hex digits: which file of its grant.
  int64_t expiry_unix_seconds = 0;  // 0: never.
};

void EncodeLabel(const BlobLabel& label, std::span<std::byte, kPageBytes> page);

// kCorrupt: that is no label.
Result<BlobLabel> DecodeLabel(std::span<const std::byte, kPageBytes> page);

// What the file is called in its grant: "<32 hex digits>-<folders that its blob's name has>".
std::string DataFileName(const BlobLabel& label);
// How many folders it says; false when that is no such name.
bool ParseDataFileName(std::string_view name, uint64_t* folders);

// A second link to such a file, on its way to replace a blob.
inline constexpr std::string_view kReplacementEnding = "-new";

}  // namespace aquifer
