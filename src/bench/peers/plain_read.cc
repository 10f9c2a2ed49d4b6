#include "bench/peers/plain_read.h"

#include <cstring>

#include "base/check.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace aquifer {
namespace {

constexpr size_t kStepBytes = 512;

uint64_t ReadWords(const std::byte* from, const std::byte* end) {
  uint64_t sums[8] = {};
  for (; from != end; from += sizeof(sums)) {
    uint64_t words[8];
    std::memcpy(words, from, sizeof(words));
    for (int i = 0; i < 8; ++i) sums[i] += words[i];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

#ifdef __x86_64__

__attribute__((target("avx2"))) uint64_t ReadAvx2(const std::byte* from, const std::byte* end) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (; from != end; from += sizeof(sums)) {
    const auto* const at = reinterpret_cast<const __m256i*>(from);
    for (int i = 0; i < 8; ++i) sums[i] = _mm256_add_epi64(sums[i], _mm256_loadu_si256(at + i));
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] + words[1] + words[2] + words[3];
}

__attribute__((target("avx512f"))) uint64_t ReadAvx512(const std::byte* from,
                                                       const std::byte* end) {
  __m512i sums[8];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (; from != end; from += sizeof(sums)) {
    const auto* const at = reinterpret_cast<const __m512i*>(from);
    for (int i = 0; i < 8; ++i) sums[i] = _mm512_add_epi64(sums[i], _mm512_loadu_si512(at + i));
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm512_add_epi64(sums[0], sums[i]);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sums[0]);
  uint64_t sum = 0;
  for (const uint64_t word : words) sum += word;
  return sum;
}

#endif

struct Reader {
  uint64_t (*read)(const std::byte* from, const std::byte* end);
  std::string_view name;
};

const Reader& BestReader() {
  static const Reader best = [] {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return Reader{ReadAvx512, "AVX-512"};
    if (__builtin_cpu_supports("avx2")) return Reader{ReadAvx2, "AVX2"};
#endif
    return Reader{ReadWords, "64-bit"};
  }();
  return best;
}

}  // namespace

uint64_t PlainRead(std::span<const std::byte> bytes) {
  AQ_CHECK(bytes.size() % kStepBytes == 0);
  return BestReader().read(bytes.data(), bytes.data() + bytes.size());
}

std::string_view PlainReadName() { return BestReader().name; }

}  // namespace aquifer
