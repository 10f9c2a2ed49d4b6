#include <xxhash.h>

#include "bench/peers/other_checksum.h"

namespace aquifer {

std::string_view OtherChecksumName() { return "XXH3-128"; }

uint64_t OtherChecksum(std::span<const std::byte> bytes) {
  return XXH3_128bits(bytes.data(), bytes.size()).low64;
}

}  // namespace aquifer
