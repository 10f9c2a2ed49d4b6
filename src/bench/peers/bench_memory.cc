#include "bench/peers/bench_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/text/size_text.h"

namespace aquifer {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kBatchBlocks = 64;

}  // namespace

Result<BenchMemory> BenchMemory::New(uint64_t bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Code::kNoSpace,
                  fmt::format("no {} of memory: {}", SizeText(bytes), std::strerror(errno)));
  }
  // Best effort: small pages work too.
  [[maybe_unused]] const int advised = madvise(memory, bytes, MADV_HUGEPAGE);
  BenchMemory result(std::span(static_cast<std::byte*>(memory), bytes));
  for (uint64_t at = 0; at < bytes; at += kPageBytes) result.data()[at] = std::byte{1};
  return result;
}

BenchMemory::~BenchMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

void FillFromSeed(std::span<std::byte> bytes, uint64_t seed) {
  AQ_CHECK(bytes.size() % sizeof(uint64_t) == 0);
  for (uint64_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    // splitmix64
    uint64_t z = (seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    std::memcpy(bytes.data() + at, &z, sizeof(z));
  }
}

uint64_t WorkingSetBytes(uint64_t block_bytes, uint64_t memory_available_bytes) {
  constexpr uint64_t kWanted = uint64_t{512} << 20;
  // Both ends of a copy, and the cache's slots beside them, still leave most of the host alone.
  constexpr uint64_t kShare = 8;
  const uint64_t batch_bytes = kBatchBlocks * block_bytes;
  const uint64_t bytes = std::min(kWanted, memory_available_bytes / kShare);
  return std::max<uint64_t>(bytes / batch_bytes, 1) * batch_bytes;
}

}  // namespace aquifer
