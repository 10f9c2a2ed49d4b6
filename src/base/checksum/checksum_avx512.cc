#include <immintrin.h>

#include "base/checksum/checksum_x86.h"

#define AQ_TARGET __attribute__((target("avx512f")))

namespace aquifer {
namespace {

// The zero-masking forms with a full mask: they compile to the plain instructions, whose own
// intrinsics GCC 12 warns about (-Wuninitialized, in its header).
struct Vector {
  using Type = __m512i;

  AQ_TARGET static Type Zero() { return _mm512_setzero_si512(); }
  AQ_TARGET static Type LoadAligned(const uint32_t* from) { return _mm512_load_si512(from); }
  AQ_TARGET static Type Load(const std::byte* from) { return _mm512_loadu_si512(from); }
  AQ_TARGET static void Store(std::byte* to, Type x) { _mm512_storeu_si512(to, x); }
  AQ_TARGET static void Stream(std::byte* to, Type x) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), x);
  }
  AQ_TARGET static Type Add32(Type x, Type y) { return _mm512_add_epi32(x, y); }
  AQ_TARGET static Type Add64(Type x, Type y) { return _mm512_add_epi64(x, y); }
  AQ_TARGET static Type Xor(Type x, Type y) { return _mm512_xor_si512(x, y); }
  AQ_TARGET static Type HighHalves(Type x) { return _mm512_maskz_srli_epi64(0xff, x, 32); }
  AQ_TARGET static Type MultiplyPairs(Type x) {
    return _mm512_maskz_mul_epu32(0xff, x, HighHalves(x));
  }
  AQ_TARGET static Type SwapMiddle(Type x) {
    return _mm512_maskz_shuffle_epi32(0xffff, x, _MM_PERM_DBCA);
  }
  AQ_TARGET static uint64_t Sum(Type x) {
    alignas(64) uint64_t parts[8];
    _mm512_store_si512(parts, x);
    uint64_t sum = 0;
    for (const uint64_t part : parts) sum += part;
    return sum;
  }
};

#include "base/checksum/checksum_vector.inc"

}  // namespace

ChecksumKernel Avx512ChecksumKernel() {
  return {"avx512", SumUnits<Order::kLine>, CopyUnits<Order::kLine>};
}
ChecksumKernel Avx512PagesChecksumKernel() {
  return {"avx512-pages", SumUnits<Order::kPages>, CopyUnits<Order::kPages>};
}

}  // namespace aquifer
