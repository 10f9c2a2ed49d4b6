// One register holds the same byte of 64 lanes, so a table of 64 entries is one instruction and one
// of 256 four, and a state moves a byte by moving its low half to its high half.
#include <immintrin.h>

#include <array>
#include <cstring>

#include "block/codec/lossless_x86.h"

#define AQ_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,popcnt")))
#define AQ_INLINE __attribute__((always_inline)) inline

namespace aquifer {
namespace {

using Bytes = __m512i;

// The zero-masking forms with a full mask: they compile to the plain instructions, whose own
// intrinsics GCC 12 warns about (-Wuninitialized, in its header).
constexpr __mmask32 kAll16 = ~__mmask32{0};
constexpr __mmask64 kAll8 = ~__mmask64{0};

AQ_TARGET AQ_INLINE Bytes Load(const void* from) { return _mm512_loadu_si512(from); }
AQ_TARGET AQ_INLINE void Store(void* to, Bytes x) { _mm512_storeu_si512(to, x); }
AQ_TARGET AQ_INLINE Bytes Lookup64(Bytes table, Bytes index) {
  return _mm512_maskz_permutexvar_epi8(kAll8, index, table);
}
template <int kBits>
AQ_TARGET AQ_INLINE Bytes Left16(Bytes x) {
  return _mm512_maskz_slli_epi16(kAll16, x, kBits);
}
template <int kBits>
AQ_TARGET AQ_INLINE Bytes Right16(Bytes x) {
  return _mm512_maskz_srli_epi16(kAll16, x, kBits);
}
AQ_TARGET AQ_INLINE Bytes LowMask() { return _mm512_set1_epi16(0x00ff); }

// `low` where the mask has a one, else `high`.
AQ_TARGET AQ_INLINE Bytes Select(Bytes mask, Bytes low, Bytes high) {
  return _mm512_ternarylogic_epi64(mask, low, high, 0xca);
}

// Two registers of 16-bit numbers, one of their low and one of their high bytes, and back.
AQ_TARGET AQ_INLINE Bytes LowBytes(Bytes even, Bytes odd) {
  return Select(LowMask(), even, Left16<8>(odd));
}
AQ_TARGET AQ_INLINE Bytes HighBytes(Bytes even, Bytes odd) {
  return Select(LowMask(), Right16<8>(even), odd);
}
AQ_TARGET AQ_INLINE Bytes EvenNumbers(Bytes low, Bytes high) {
  return Select(LowMask(), low, Left16<8>(high));
}
AQ_TARGET AQ_INLINE Bytes OddNumbers(Bytes low, Bytes high) {
  return Select(LowMask(), Right16<8>(low), high);
}

struct Table256 {
  Bytes part[4];

  AQ_TARGET AQ_INLINE explicit Table256(const uint8_t* from)
      : part{Load(from), Load(from + 64), Load(from + 128), Load(from + 192)} {}

  AQ_TARGET AQ_INLINE Bytes operator()(Bytes index) const {
    const Bytes low = _mm512_permutex2var_epi8(part[0], index, part[1]);
    const Bytes high = _mm512_permutex2var_epi8(part[2], index, part[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(index), high);
  }
};

struct States {
  Bytes low;
  Bytes high;
};

AQ_TARGET AQ_INLINE States LoadStates(const LaneStates& from) {
  return {Load(from.low.data()), Load(from.high.data())};
}

AQ_TARGET AQ_INLINE void StoreStates(const States& states, LaneStates* to) {
  Store(to->low.data(), states.low);
  Store(to->high.data(), states.high);
}

// Exponent first, then mantissa, the sign last.
AQ_TARGET AQ_INLINE Bytes SignToEnd(Bytes x) { return _mm512_maskz_shldi_epi16(kAll16, x, x, 1); }
AQ_TARGET AQ_INLINE Bytes SignToFront(Bytes x) { return _mm512_maskz_shrdi_epi16(kAll16, x, x, 1); }

template <bool kMiddle>
AQ_TARGET AQ_INLINE void SplitGroups(const std::byte* raw, size_t groups, uint8_t* exponents,
                                     RestPlanes rest) {
  for (size_t g = 0; g < groups; ++g) {
    const Bytes even = SignToEnd(Load(raw + g * 128));
    const Bytes odd = SignToEnd(Load(raw + g * 128 + 64));
    Bytes high = HighBytes(even, odd);
    Store(rest.low + g * 64, LowBytes(even, odd));
    if constexpr (kMiddle) {
      for (int bit = 0; bit < 3; ++bit) {
        const uint64_t ones = _mm512_test_epi8_mask(high, _mm512_set1_epi8(char(1 << bit)));
        std::memcpy(rest.middle + g * kMiddleGroupBytes + bit * 8, &ones, sizeof(ones));
      }
      high = _mm512_and_si512(Right16<3>(high), _mm512_set1_epi8(0x1f));
    }
    Store(exponents + g * 64, high);
  }
}

AQ_TARGET void Split(const std::byte* raw, size_t groups, uint8_t* exponents, RestPlanes rest) {
  if (rest.middle != nullptr) {
    SplitGroups<true>(raw, groups, exponents, rest);
  } else {
    SplitGroups<false>(raw, groups, exponents, rest);
  }
}

struct EncodeTables {
  Table256 code_of_value;
  Bytes frequency;
  Bytes start;
  Bytes reciprocal_low;
  Bytes reciprocal_high;

  AQ_TARGET AQ_INLINE explicit EncodeTables(const LosslessTables& tables)
      : code_of_value(tables.code_of_value.data()),
        frequency(Load(tables.frequency.data())),
        start(Load(tables.start.data())),
        reciprocal_low(Load(tables.reciprocal_low.data())),
        reciprocal_high(Load(tables.reciprocal_high.data())) {}
};

// The chosen lanes of `x`, and anything behind them; returns where they end.
AQ_TARGET AQ_INLINE uint8_t* PutLanes(Bytes x, __mmask64 lanes, uint8_t* to) {
  Store(to, _mm512_maskz_compress_epi8(lanes, x));
  return to + _mm_popcnt_u64(lanes);
}

AQ_TARGET AQ_INLINE Bytes Reversed(Bytes x) {
  static constexpr auto kBackwards = [] {
    std::array<uint8_t, 64> lanes{};
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<uint8_t>(63 - i);
    return lanes;
  }();
  return Lookup64(x, Load(kBackwards.data()));
}

struct Division {
  Bytes quotient;
  Bytes remainder;
};

// The product with the rounded reciprocal is the quotient or one less.
AQ_TARGET AQ_INLINE Division Divide(Bytes x, Bytes reciprocal, Bytes divisor) {
  const Bytes quotient = _mm512_maskz_mulhi_epu16(kAll16, x, reciprocal);
  const Bytes remainder = _mm512_sub_epi16(x, _mm512_mullo_epi16(quotient, divisor));
  const __mmask32 one_less = _mm512_cmpge_epu16_mask(remainder, divisor);
  return {_mm512_mask_add_epi16(quotient, one_less, quotient, _mm512_set1_epi16(1)),
          _mm512_mask_sub_epi16(remainder, one_less, remainder, divisor)};
}

AQ_TARGET AQ_INLINE void EncodeGroup(const EncodeTables& tables, Bytes values, States* states,
                                     uint8_t** stream, uint8_t** escapes) {
  const Bytes code = tables.code_of_value(values);
  const __mmask64 escaped = _mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8(kEscapeCode));
  if (escaped != 0) *escapes = PutLanes(values, escaped, *escapes);

  const Bytes frequency = Lookup64(tables.frequency, code);
  // At or above 256 times the frequency, what is coded next would not fit: a byte goes out.
  const __mmask64 full = _mm512_cmpge_epu8_mask(states->high, frequency);
  *stream = PutLanes(states->low, full, *stream);
  const Bytes low = _mm512_mask_mov_epi8(states->low, full, states->high);
  const Bytes high = _mm512_maskz_mov_epi8(~full, states->high);

  const Bytes reciprocal_low = Lookup64(tables.reciprocal_low, code);
  const Bytes reciprocal_high = Lookup64(tables.reciprocal_high, code);
  const Division even = Divide(EvenNumbers(low, high), EvenNumbers(reciprocal_low, reciprocal_high),
                               _mm512_and_si512(frequency, LowMask()));
  const Division odd = Divide(OddNumbers(low, high), OddNumbers(reciprocal_low, reciprocal_high),
                              Right16<8>(frequency));
  states->high = _mm512_or_si512(even.quotient, Left16<8>(odd.quotient));
  states->low = _mm512_add_epi8(_mm512_or_si512(even.remainder, Left16<8>(odd.remainder)),
                                Lookup64(tables.start, code));
}

// The last lane is the first one here: what is written forwards, last group first, is then the
// stream from its end to its beginning. Writing it backwards at once needs stores of a few bytes
// each, which take four times as long on Zen 4.
AQ_TARGET void Encode(const LosslessTables& from, const uint8_t* exponents, size_t groups,
                      EncodedStreams* streams) {
  const EncodeTables tables(from);
  States first = {Reversed(Load(streams->states[0].low.data())),
                  Reversed(Load(streams->states[0].high.data()))};
  States second = {Reversed(Load(streams->states[1].low.data())),
                   Reversed(Load(streams->states[1].high.data()))};
  uint8_t* first_stream = streams->end[0];
  uint8_t* second_stream = streams->end[1];
  uint8_t* escapes = streams->escapes_end;
  for (size_t g = groups; g != 0; g -= 2) {
    const uint8_t* const at = exponents + (g - 2) * 64;
    EncodeGroup(tables, Reversed(Load(at + 64)), &second, &second_stream, &escapes);
    EncodeGroup(tables, Reversed(Load(at)), &first, &first_stream, &escapes);
  }
  StoreStates({Reversed(first.low), Reversed(first.high)}, &streams->states[0]);
  StoreStates({Reversed(second.low), Reversed(second.high)}, &streams->states[1]);
  streams->end = {first_stream, second_stream};
  streams->escapes_end = escapes;
}

AQ_TARGET void Reverse(const uint8_t* from, size_t bytes, uint8_t* to) {
  for (; bytes >= 64; bytes -= 64, to += 64) Store(to, Reversed(Load(from + bytes - 64)));
  while (bytes != 0) *to++ = from[--bytes];
}

struct DecodeTables {
  Table256 code_of_slot;
  Bytes value;
  Bytes frequency;
  Bytes start;

  AQ_TARGET AQ_INLINE explicit DecodeTables(const LosslessTables& tables)
      : code_of_slot(tables.code_of_slot.data()),
        value(Load(tables.value.data())),
        frequency(Load(tables.frequency.data())),
        start(Load(tables.start.data())) {}
};

AQ_TARGET AQ_INLINE Bytes DecodeGroup(const DecodeTables& tables, States* states,
                                      const uint8_t** stream, const uint8_t** escapes) {
  const Bytes code = tables.code_of_slot(states->low);
  const Bytes frequency = Lookup64(tables.frequency, code);
  const Bytes offset = _mm512_sub_epi8(states->low, Lookup64(tables.start, code));
  const Bytes mask = LowMask();
  const Bytes even = _mm512_add_epi16(
      _mm512_mullo_epi16(_mm512_and_si512(states->high, mask), _mm512_and_si512(frequency, mask)),
      _mm512_and_si512(offset, mask));
  const Bytes odd = _mm512_add_epi16(
      _mm512_mullo_epi16(Right16<8>(states->high), Right16<8>(frequency)), Right16<8>(offset));
  const Bytes low = LowBytes(even, odd);
  const Bytes high = HighBytes(even, odd);

  const __mmask64 empty = _mm512_testn_epi8_mask(high, high);
  states->high = _mm512_mask_mov_epi8(high, empty, low);
  states->low = _mm512_mask_expand_epi8(low, empty, Load(*stream));
  *stream += _mm_popcnt_u64(empty);

  const __mmask64 escaped = _mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8(kEscapeCode));
  const Bytes values =
      _mm512_mask_expand_epi8(Lookup64(tables.value, code), escaped, Load(*escapes));
  *escapes += _mm_popcnt_u64(escaped);
  return values;
}

template <bool kMiddle>
AQ_TARGET AQ_INLINE void JoinGroup(Bytes exponents, size_t g, ConstRestPlanes rest,
                                   std::byte* raw) {
  if constexpr (kMiddle) {
    exponents = Left16<3>(_mm512_and_si512(exponents, _mm512_set1_epi8(0x1f)));
    for (int bit = 0; bit < 3; ++bit) {
      uint64_t ones;
      std::memcpy(&ones, rest.middle + g * kMiddleGroupBytes + bit * 8, sizeof(ones));
      exponents =
          _mm512_mask_add_epi8(exponents, ones, exponents, _mm512_set1_epi8(char(1 << bit)));
    }
  }
  const Bytes low = Load(rest.low + g * 64);
  Store(raw + g * 128, SignToFront(EvenNumbers(low, exponents)));
  Store(raw + g * 128 + 64, SignToFront(OddNumbers(low, exponents)));
}

template <bool kMiddle>
AQ_TARGET AQ_INLINE bool DecodeGroups(const LosslessTables& from, size_t groups,
                                      ConstRestPlanes rest, DecodedStreams* streams,
                                      std::byte* raw) {
  const DecodeTables tables(from);
  States first = LoadStates(streams->states[0]);
  States second = LoadStates(streams->states[1]);
  const uint8_t* first_stream = streams->begin[0];
  const uint8_t* second_stream = streams->begin[1];
  const uint8_t* escapes = streams->escapes_begin;
  for (size_t g = 0; g < groups; g += 2) {
    // A group takes at most 64 bytes, which are there behind the end of everything.
    if (first_stream > streams->end[0] || second_stream > streams->end[1]) return false;
    if (escapes > streams->escapes_end) return false;
    const Bytes a = DecodeGroup(tables, &first, &first_stream, &escapes);
    if (escapes > streams->escapes_end) return false;
    const Bytes b = DecodeGroup(tables, &second, &second_stream, &escapes);
    JoinGroup<kMiddle>(a, g, rest, raw);
    JoinGroup<kMiddle>(b, g + 1, rest, raw);
  }
  StoreStates(first, &streams->states[0]);
  StoreStates(second, &streams->states[1]);
  return first_stream == streams->end[0] && second_stream == streams->end[1] &&
         escapes == streams->escapes_end;
}

AQ_TARGET bool Decode(const LosslessTables& tables, size_t groups, ConstRestPlanes rest,
                      DecodedStreams* streams, std::byte* raw) {
  return rest.middle != nullptr ? DecodeGroups<true>(tables, groups, rest, streams, raw)
                                : DecodeGroups<false>(tables, groups, rest, streams, raw);
}

}  // namespace

LosslessKernel Avx512LosslessKernel() { return {"avx512-vbmi2", Split, Encode, Reverse, Decode}; }

}  // namespace aquifer
