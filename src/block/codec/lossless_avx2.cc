// Eight lanes in a register, a number of 32 bits each. Tables are in memory and gathered from, and
// bytes are spread over lanes, or picked from them, by a shuffle for each of the 256 masks.
#include <immintrin.h>

#include <array>
#include <cstring>

#include "block/codec/lossless_x86.h"

#define AQ_TARGET __attribute__((target("avx2,bmi,popcnt")))
#define AQ_INLINE __attribute__((always_inline)) inline

namespace aquifer {
namespace {

using Numbers = __m256i;

constexpr size_t kWidth = 8;
constexpr size_t kLanes = kLosslessLanes;

AQ_TARGET AQ_INLINE Numbers Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const Numbers*>(from));
}
AQ_TARGET AQ_INLINE void Store(void* to, Numbers x) {
  _mm256_storeu_si256(static_cast<Numbers*>(to), x);
}
AQ_TARGET AQ_INLINE Numbers LowByte(Numbers x) {
  return _mm256_and_si256(x, _mm256_set1_epi32(0xff));
}
AQ_TARGET AQ_INLINE unsigned MaskOf(Numbers x) {  // The sign of each lane.
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(x)));
}

using ShuffleTable = std::array<std::array<uint8_t, 8>, 256>;

// The next byte to each lane of the mask, zero to the others.
constexpr ShuffleTable kSpread = [] {
  ShuffleTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    uint8_t next = 0;
    for (unsigned lane = 0; lane < kWidth; ++lane) {
      table[mask][lane] = (mask >> lane & 1) != 0 ? next++ : uint8_t{0x80};
    }
  }
  return table;
}();

// The bytes of the mask's lanes, the last one first.
constexpr ShuffleTable kPick = [] {
  ShuffleTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    size_t next = 0;
    for (unsigned lane = kWidth; lane-- > 0;) {
      if ((mask >> lane & 1) != 0) table[mask][next++] = static_cast<uint8_t>(lane);
    }
  }
  return table;
}();

AQ_TARGET AQ_INLINE __m128i Load8(const void* from) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(from));
}

// The low bytes of eight lanes, in order.
AQ_TARGET AQ_INLINE __m128i PackBytes(Numbers x) {
  const Numbers in_halves =
      _mm256_shuffle_epi8(x, _mm256_set1_epi64x(static_cast<long long>(0x808080800c080400)));
  const Numbers together =
      _mm256_permutevar8x32_epi32(in_halves, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
  return _mm256_castsi256_si128(together);
}

AQ_TARGET AQ_INLINE Numbers SignToEnd(Numbers x) {
  return _mm256_or_si256(_mm256_slli_epi16(x, 1), _mm256_srli_epi16(x, 15));
}
AQ_TARGET AQ_INLINE Numbers SignToFront(Numbers x) {
  return _mm256_or_si256(_mm256_srli_epi16(x, 1), _mm256_slli_epi16(x, 15));
}

// Half a group: 16 values of its first and 16 of its second half.
template <bool kMiddle>
AQ_TARGET AQ_INLINE void SplitHalf(const std::byte* raw, uint8_t* exponents, uint8_t* low,
                                   uint32_t* middle) {
  const Numbers mask = _mm256_set1_epi16(0x00ff);
  const Numbers even = SignToEnd(Load(raw));
  const Numbers odd = SignToEnd(Load(raw + 64));
  Store(low, _mm256_or_si256(_mm256_and_si256(even, mask), _mm256_slli_epi16(odd, 8)));
  Numbers high = _mm256_or_si256(_mm256_srli_epi16(even, 8), _mm256_andnot_si256(mask, odd));
  if constexpr (kMiddle) {
    middle[0] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(high, 7)));
    middle[1] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(high, 6)));
    middle[2] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(high, 5)));
    high = _mm256_and_si256(_mm256_srli_epi16(high, 3), _mm256_set1_epi8(0x1f));
  }
  Store(exponents, high);
}

template <bool kMiddle>
AQ_TARGET AQ_INLINE void SplitGroups(const std::byte* raw, size_t groups, uint8_t* exponents,
                                     RestPlanes rest) {
  for (size_t g = 0; g < groups; ++g) {
    uint32_t middle[2][3] = {};
    for (size_t half = 0; half < 2; ++half) {
      SplitHalf<kMiddle>(raw + g * 128 + half * 32, exponents + g * kLanes + half * 32,
                         rest.low + g * kLanes + half * 32, middle[half]);
    }
    if constexpr (kMiddle) {
      for (size_t bit = 0; bit < 3; ++bit) {
        const uint32_t both[2] = {middle[0][bit], middle[1][bit]};
        std::memcpy(rest.middle + g * kMiddleGroupBytes + bit * 8, both, sizeof(both));
      }
    }
  }
}

AQ_TARGET void Split(const std::byte* raw, size_t groups, uint8_t* exponents, RestPlanes rest) {
  if (rest.middle != nullptr) {
    SplitGroups<true>(raw, groups, exponents, rest);
  } else {
    SplitGroups<false>(raw, groups, exponents, rest);
  }
}

using LaneNumbers = std::array<uint32_t, kLanes>;

LaneNumbers NumbersOf(const LaneStates& states) {
  LaneNumbers numbers;
  for (size_t k = 0; k < kLanes; ++k) {
    numbers[k] = states.low[k] | static_cast<uint32_t>(states.high[k]) << 8;
  }
  return numbers;
}

LaneStates StatesOf(const LaneNumbers& numbers) {
  LaneStates states;
  for (size_t k = 0; k < kLanes; ++k) {
    states.low[k] = static_cast<uint8_t>(numbers[k]);
    states.high[k] = static_cast<uint8_t>(numbers[k] >> 8);
  }
  return states;
}

// All that encoding a value needs: reciprocal in 16 bits, frequency, start.
struct Codings {
  alignas(32) std::array<int32_t, 256> of_value;
  int32_t of_escape;
};

int32_t CodingOf(const LosslessTables& tables, uint8_t code) {
  return static_cast<int32_t>(tables.reciprocal_low[code] |
                              static_cast<uint32_t>(tables.reciprocal_high[code]) << 8 |
                              static_cast<uint32_t>(tables.frequency[code]) << 16 |
                              static_cast<uint32_t>(tables.start[code]) << 24);
}

Codings CodingsOf(const LosslessTables& tables) {
  Codings codings;
  for (size_t value = 0; value < 256; ++value) {
    codings.of_value[value] = CodingOf(tables, tables.code_of_value[value]);
  }
  codings.of_escape = CodingOf(tables, kEscapeCode);  // No other code has its start.
  return codings;
}

// The picked lanes' low bytes, and anything behind them; returns where they end.
AQ_TARGET AQ_INLINE uint8_t* PutLanes(__m128i bytes, unsigned mask, uint8_t* to) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                   _mm_shuffle_epi8(bytes, Load8(kPick[mask].data())));
  return to + _mm_popcnt_u32(mask);
}

AQ_TARGET AQ_INLINE void EncodeLanes(const Codings& codings, const uint8_t* values,
                                     uint32_t* states, uint8_t** stream, uint8_t** escapes) {
  const __m128i bytes = Load8(values);
  const Numbers coding =
      _mm256_i32gather_epi32(codings.of_value.data(), _mm256_cvtepu8_epi32(bytes), 4);
  const unsigned escaped = MaskOf(_mm256_cmpeq_epi32(coding, _mm256_set1_epi32(codings.of_escape)));
  if (escaped != 0) *escapes = PutLanes(bytes, escaped, *escapes);

  const Numbers frequency = LowByte(_mm256_srli_epi32(coding, 16));
  Numbers x = Load(states);
  const Numbers keeps = _mm256_cmpgt_epi32(frequency, _mm256_srli_epi32(x, 8));
  *stream = PutLanes(PackBytes(x), ~MaskOf(keeps) & 0xff, *stream);
  x = _mm256_srlv_epi32(x, _mm256_andnot_si256(keeps, _mm256_set1_epi32(8)));

  // The product with the rounded reciprocal is the quotient or one less.
  const Numbers reciprocal = _mm256_and_si256(coding, _mm256_set1_epi32(0xffff));
  Numbers quotient = _mm256_mulhi_epu16(x, reciprocal);
  Numbers remainder = _mm256_sub_epi32(x, _mm256_mullo_epi16(quotient, frequency));
  const Numbers exact = _mm256_cmpgt_epi32(frequency, remainder);
  quotient = _mm256_add_epi32(quotient, _mm256_andnot_si256(exact, _mm256_set1_epi32(1)));
  remainder = _mm256_sub_epi32(remainder, _mm256_andnot_si256(exact, frequency));
  Store(states, _mm256_add_epi32(_mm256_slli_epi32(quotient, 8),
                                 _mm256_add_epi32(remainder, _mm256_srli_epi32(coding, 24))));
}

AQ_TARGET void Encode(const LosslessTables& tables, const uint8_t* exponents, size_t groups,
                      EncodedStreams* streams) {
  const Codings codings = CodingsOf(tables);
  LaneNumbers first = NumbersOf(streams->states[0]);
  LaneNumbers second = NumbersOf(streams->states[1]);
  uint8_t* first_stream = streams->end[0];
  uint8_t* second_stream = streams->end[1];
  uint8_t* escapes = streams->escapes_end;
  for (size_t g = groups; g != 0; g -= 2) {
    const uint8_t* const at = exponents + (g - 2) * kLanes;
    for (size_t lane = kLanes; lane != 0; lane -= kWidth) {
      EncodeLanes(codings, at + kLanes + lane - kWidth, &second[lane - kWidth], &second_stream,
                  &escapes);
    }
    for (size_t lane = kLanes; lane != 0; lane -= kWidth) {
      EncodeLanes(codings, at + lane - kWidth, &first[lane - kWidth], &first_stream, &escapes);
    }
  }
  streams->states = {StatesOf(first), StatesOf(second)};
  streams->end = {first_stream, second_stream};
  streams->escapes_end = escapes;
}

AQ_TARGET void Reverse(const uint8_t* from, size_t bytes, uint8_t* to) {
  const __m128i backwards = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (; bytes >= 16; bytes -= 16, to += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + bytes - 16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(x, backwards));
  }
  while (bytes != 0) *to++ = from[--bytes];
}

// All that decoding a slot needs: frequency, offset in it, value, and a bit for the escape's.
struct Slots {
  alignas(32) std::array<int32_t, 256> of_state;
};

Slots SlotsOf(const LosslessTables& tables) {
  Slots slots;
  for (size_t i = 0; i < 256; ++i) {
    const uint8_t code = tables.code_of_slot[i];
    const auto offset = static_cast<uint8_t>(i - tables.start[code]);
    slots.of_state[i] = static_cast<int32_t>(tables.frequency[code] | uint32_t{offset} << 8 |
                                             uint32_t{tables.value[code]} << 16 |
                                             (code == kEscapeCode ? uint32_t{1} << 31 : 0));
  }
  return slots;
}

// Eight lanes' slots, for their values; the states go on.
AQ_TARGET AQ_INLINE Numbers TakeLanes(const Slots& slots, uint32_t* states,
                                      const uint8_t** stream) {
  const Numbers state = Load(states);
  const Numbers slot = _mm256_i32gather_epi32(slots.of_state.data(), LowByte(state), 4);
  const Numbers x = _mm256_add_epi32(_mm256_madd_epi16(LowByte(slot), _mm256_srli_epi32(state, 8)),
                                     LowByte(_mm256_srli_epi32(slot, 8)));
  const Numbers empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(256), x);
  const unsigned mask = MaskOf(empty);
  const __m128i bytes = _mm_shuffle_epi8(Load8(*stream), Load8(kSpread[mask].data()));
  *stream += _mm_popcnt_u32(mask);
  Store(states, _mm256_or_si256(_mm256_sllv_epi32(x, _mm256_and_si256(empty, _mm256_set1_epi32(8))),
                                _mm256_cvtepu8_epi32(bytes)));
  return slot;
}

// The values of those lanes; returns which are escaped.
AQ_TARGET AQ_INLINE uint64_t PutValues(Numbers slot, uint8_t* values) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(values), PackBytes(_mm256_srli_epi32(slot, 16)));
  return MaskOf(slot);
}

AQ_INLINE void PutEscapes(uint64_t escaped, uint8_t* values, const uint8_t** escapes) {
  for (; escaped != 0; escaped &= escaped - 1) {
    values[__builtin_ctzll(escaped)] = *(*escapes)++;
  }
}

// Bit i of 32 to byte i, as zero or `one`.
AQ_TARGET AQ_INLINE Numbers SpreadBits(uint32_t bits, char one) {
  const Numbers copies = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(bits)),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const Numbers own = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(copies, own), own),
                          _mm256_set1_epi8(one));
}

template <bool kMiddle>
AQ_TARGET AQ_INLINE void JoinGroup(const uint8_t* exponents, size_t g, ConstRestPlanes rest,
                                   std::byte* raw) {
  const Numbers mask = _mm256_set1_epi16(0x00ff);
  for (size_t half = 0; half < 2; ++half) {
    Numbers high = Load(exponents + half * 32);
    if constexpr (kMiddle) {
      high = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(0x1f)), 3);
      for (size_t bit = 0; bit < 3; ++bit) {
        uint32_t bits;
        std::memcpy(&bits, rest.middle + g * kMiddleGroupBytes + bit * 8 + half * 4, sizeof(bits));
        high = _mm256_or_si256(high, SpreadBits(bits, static_cast<char>(1 << bit)));
      }
    }
    const Numbers low = Load(rest.low + g * kLanes + half * 32);
    const Numbers even = _mm256_or_si256(_mm256_and_si256(low, mask), _mm256_slli_epi16(high, 8));
    const Numbers odd = _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(mask, high));
    Store(raw + g * 128 + half * 32, SignToFront(even));
    Store(raw + g * 128 + half * 32 + 64, SignToFront(odd));
  }
}

template <bool kMiddle>
AQ_TARGET AQ_INLINE bool DecodeGroups(const LosslessTables& tables, size_t groups,
                                      ConstRestPlanes rest, DecodedStreams* streams,
                                      std::byte* raw) {
  const Slots slots = SlotsOf(tables);
  LaneNumbers first = NumbersOf(streams->states[0]);
  LaneNumbers second = NumbersOf(streams->states[1]);
  const uint8_t* first_stream = streams->begin[0];
  const uint8_t* second_stream = streams->begin[1];
  const uint8_t* escapes = streams->escapes_begin;
  alignas(32) std::array<uint8_t, kLanes> values[kLosslessStreams];
  for (size_t g = 0; g < groups; g += 2) {
    // A group takes at most 64 bytes, which are there behind the end of everything.
    if (first_stream > streams->end[0] || second_stream > streams->end[1]) return false;
    uint64_t escaped[kLosslessStreams] = {};
    for (size_t lane = 0; lane < kLanes; lane += kWidth) {
      const Numbers a = TakeLanes(slots, &first[lane], &first_stream);
      const Numbers b = TakeLanes(slots, &second[lane], &second_stream);
      escaped[0] |= PutValues(a, &values[0][lane]) << lane;
      escaped[1] |= PutValues(b, &values[1][lane]) << lane;
    }
    if (escapes > streams->escapes_end) return false;
    PutEscapes(escaped[0], values[0].data(), &escapes);
    if (escapes > streams->escapes_end) return false;
    PutEscapes(escaped[1], values[1].data(), &escapes);
    JoinGroup<kMiddle>(values[0].data(), g, rest, raw);
    JoinGroup<kMiddle>(values[1].data(), g + 1, rest, raw);
  }
  streams->states = {StatesOf(first), StatesOf(second)};
  return first_stream == streams->end[0] && second_stream == streams->end[1] &&
         escapes == streams->escapes_end;
}

AQ_TARGET bool Decode(const LosslessTables& tables, size_t groups, ConstRestPlanes rest,
                      DecodedStreams* streams, std::byte* raw) {
  return rest.middle != nullptr ? DecodeGroups<true>(tables, groups, rest, streams, raw)
                                : DecodeGroups<false>(tables, groups, rest, streams, raw);
}

}  // namespace

LosslessKernel Avx2LosslessKernel() { return {"avx2", Split, Encode, Reverse, Decode}; }

}  // namespace aquifer
