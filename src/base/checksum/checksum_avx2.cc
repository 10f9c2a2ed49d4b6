#include <immintrin.h>

#include "base/checksum/checksum_x86.h"

#define AQ_TARGET __attribute__((target("avx2")))

namespace aquifer {
namespace {

struct Vector {
  using Type = __m256i;

  AQ_TARGET static Type Zero() { return _mm256_setzero_si256(); }
  AQ_TARGET static Type LoadAligned(const uint32_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  AQ_TARGET static Type Load(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  AQ_TARGET static void Store(std::byte* to, Type x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }
  AQ_TARGET static void Stream(std::byte* to, Type x) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), x);
  }
  AQ_TARGET static Type Add32(Type x, Type y) { return _mm256_add_epi32(x, y); }
  AQ_TARGET static Type Add64(Type x, Type y) { return _mm256_add_epi64(x, y); }
  AQ_TARGET static Type Xor(Type x, Type y) { return _mm256_xor_si256(x, y); }
  AQ_TARGET static Type HighHalves(Type x) { return _mm256_srli_epi64(x, 32); }
  AQ_TARGET static Type MultiplyPairs(Type x) { return _mm256_mul_epu32(x, HighHalves(x)); }
  AQ_TARGET static Type SwapMiddle(Type x) { return _mm256_shuffle_epi32(x, 0b11'01'10'00); }
  AQ_TARGET static uint64_t Sum(Type x) {
    alignas(32) uint64_t parts[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts), x);
    return parts[0] + parts[1] + parts[2] + parts[3];
  }
};

#include "base/checksum/checksum_vector.inc"

}  // namespace

ChecksumKernel Avx2ChecksumKernel() {
  return {"avx2", SumUnits<Order::kLine>, CopyUnits<Order::kLine>};
}
ChecksumKernel Avx2PagesChecksumKernel() {
  return {"avx2-pages", SumUnits<Order::kPages>, CopyUnits<Order::kPages>};
}

}  // namespace aquifer
