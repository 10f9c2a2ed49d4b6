// The codec's loops in plain C++, and the choice among all of them. The state of a lane is kept as
// one number here; the order of lanes and bytes is that of lossless_kernel.h.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/bytes.h"
#include "block/codec/lossless_kernel.h"

namespace aquifer {
namespace {

constexpr size_t kLanes = kLosslessLanes;

// Which value of its group a lane holds.
constexpr size_t ValueOfLane(size_t lane) { return lane / 2 + lane % 2 * 32; }

uint16_t SignToEnd(uint16_t x) { return static_cast<uint16_t>(x << 1 | x >> 15); }
uint16_t SignToFront(uint16_t x) { return static_cast<uint16_t>(x >> 1 | x << 15); }

void SplitMiddle(uint8_t* high, uint8_t* middle) {
  std::array<uint64_t, 3> bits{};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t bit = 0; bit < 3; ++bit) bits[bit] |= uint64_t{high[lane] >> bit & 1u} << lane;
    high[lane] >>= 3;
  }
  std::memcpy(middle, bits.data(), sizeof(bits));
}

void JoinMiddle(const uint8_t* middle, uint8_t* high) {
  std::array<uint64_t, 3> bits;
  std::memcpy(bits.data(), middle, sizeof(bits));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    unsigned value = high[lane] & 0x1fu;
    for (size_t bit = 3; bit-- > 0;) value = value << 1 | (bits[bit] >> lane & 1);
    high[lane] = static_cast<uint8_t>(value);
  }
}

void Split(const std::byte* raw, size_t groups, uint8_t* exponents, RestPlanes rest) {
  for (size_t g = 0; g < groups; ++g) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint16_t value = SignToEnd(GetU16(raw + (g * kLanes + ValueOfLane(lane)) * 2));
      rest.low[g * kLanes + lane] = static_cast<uint8_t>(value);
      exponents[g * kLanes + lane] = static_cast<uint8_t>(value >> 8);
    }
    if (rest.middle != nullptr) {
      SplitMiddle(exponents + g * kLanes, rest.middle + g * kMiddleGroupBytes);
    }
  }
}

using LaneNumbers = std::array<uint32_t, kLanes>;

LaneNumbers NumbersOf(const LaneStates& states) {
  LaneNumbers numbers;
  for (size_t k = 0; k < kLanes; ++k) numbers[k] = states.low[k] | states.high[k] << 8;
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

// All that encoding one value needs, in one load.
struct Coding {
  uint32_t reciprocal;
  uint8_t frequency;
  uint8_t start;
  uint8_t is_escape;
};

std::array<Coding, 256> CodingsOf(const LosslessTables& tables) {
  std::array<Coding, 256> codings;
  for (size_t value = 0; value < codings.size(); ++value) {
    const uint8_t code = tables.code_of_value[value];
    codings[value] = {
        .reciprocal = static_cast<uint32_t>(tables.reciprocal_low[code]) |
                      static_cast<uint32_t>(tables.reciprocal_high[code]) << 8,
        .frequency = tables.frequency[code],
        .start = tables.start[code],
        .is_escape = code == kEscapeCode,
    };
  }
  return codings;
}

// Without a branch, which nobody could predict: a byte is always written, and sometimes stays.
inline uint8_t* PutLane(const Coding& coding, uint32_t* state, uint8_t* stream) {
  uint32_t x = *state;
  *stream = static_cast<uint8_t>(x);
  const uint32_t full = x >> 8 >= coding.frequency;
  x >>= full * 8;
  // As in the vectors: the product with the rounded reciprocal is the quotient or one less.
  uint32_t quotient = x * coding.reciprocal >> 16;
  uint32_t remainder = x - quotient * coding.frequency;
  const uint32_t one_less = remainder >= coding.frequency;
  quotient += one_less;
  remainder -= coding.frequency & (0 - one_less);
  *state = quotient << 8 | (remainder + coding.start);
  return stream + full;
}

void Encode(const LosslessTables& tables, const uint8_t* exponents, size_t groups,
            EncodedStreams* streams) {
  const std::array<Coding, 256> codings = CodingsOf(tables);
  LaneNumbers first = NumbersOf(streams->states[0]);
  LaneNumbers second = NumbersOf(streams->states[1]);
  uint8_t* first_stream = streams->end[0];
  uint8_t* second_stream = streams->end[1];
  uint8_t* escapes = streams->escapes_end;
  for (size_t g = groups; g != 0; g -= kLosslessStreams) {
    const uint8_t* const at = exponents + (g - 2) * kLanes;
    for (size_t i = kLosslessStreams * kLanes; i-- > 0;) {
      *escapes = at[i];
      escapes += codings[at[i]].is_escape;
    }
    for (size_t lane = kLanes; lane-- > 0;) {
      first_stream = PutLane(codings[at[lane]], &first[lane], first_stream);
      second_stream = PutLane(codings[at[kLanes + lane]], &second[lane], second_stream);
    }
  }
  streams->states = {StatesOf(first), StatesOf(second)};
  streams->end = {first_stream, second_stream};
  streams->escapes_end = escapes;
}

void Reverse(const uint8_t* from, size_t bytes, uint8_t* to) {
  std::reverse_copy(from, from + bytes, to);
}

// All that a step needs to know of a slot, in one load: frequency, offset in it, value, and whether
// it is the escape's, a byte each.
std::array<uint32_t, 256> SlotsOf(const LosslessTables& tables) {
  std::array<uint32_t, 256> slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    const uint8_t code = tables.code_of_slot[i];
    const auto offset = static_cast<uint8_t>(i - tables.start[code]);
    const uint32_t is_escape = code == kEscapeCode;
    slots[i] = tables.frequency[code] | uint32_t{offset} << 8 | uint32_t{tables.value[code]} << 16 |
               is_escape << 24;
  }
  return slots;
}

// A byte is taken where the state ran low; without a branch here, too.
inline const uint8_t* TakeLane(uint32_t slot, uint32_t* state, const uint8_t* stream) {
  const uint32_t x = (slot & 0xff) * (*state >> 8) + (slot >> 8 & 0xff);
  const uint32_t empty = x < 256;
  const uint32_t next = *stream;
  *state = x << empty * 8 | (next & (0 - empty));
  return stream + empty;
}

void PutEscapes(const uint8_t* is_escape, uint8_t* values, const uint8_t** escapes) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (is_escape[lane] != 0) values[lane] = *(*escapes)++;
  }
}

void JoinGroup(uint8_t* exponents, size_t g, ConstRestPlanes rest, std::byte* raw) {
  if (rest.middle != nullptr) JoinMiddle(rest.middle + g * kMiddleGroupBytes, exponents);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto value =
        static_cast<uint16_t>(rest.low[g * kLanes + lane] | uint32_t{exponents[lane]} << 8);
    PutU16(raw + (g * kLanes + ValueOfLane(lane)) * 2, SignToFront(value));
  }
}

bool Decode(const LosslessTables& tables, size_t groups, ConstRestPlanes rest,
            DecodedStreams* streams, std::byte* raw) {
  const std::array<uint32_t, 256> slots = SlotsOf(tables);
  LaneNumbers first = NumbersOf(streams->states[0]);
  LaneNumbers second = NumbersOf(streams->states[1]);
  const uint8_t* first_stream = streams->begin[0];
  const uint8_t* second_stream = streams->begin[1];
  const uint8_t* escapes = streams->escapes_begin;
  std::array<std::array<uint8_t, kLanes>, kLosslessStreams> values;
  std::array<std::array<uint8_t, kLanes>, kLosslessStreams> is_escape;
  for (size_t g = 0; g < groups; g += kLosslessStreams) {
    if (first_stream > streams->end[0] || second_stream > streams->end[1]) return false;
    uint32_t any = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t a = slots[first[lane] & 0xff];
      const uint32_t b = slots[second[lane] & 0xff];
      first_stream = TakeLane(a, &first[lane], first_stream);
      second_stream = TakeLane(b, &second[lane], second_stream);
      values[0][lane] = static_cast<uint8_t>(a >> 16);
      values[1][lane] = static_cast<uint8_t>(b >> 16);
      is_escape[0][lane] = static_cast<uint8_t>(a >> 24);
      is_escape[1][lane] = static_cast<uint8_t>(b >> 24);
      any |= a | b;
    }
    for (size_t s = 0; s < kLosslessStreams; ++s) {
      if (escapes > streams->escapes_end) return false;
      if (any >> 24 != 0) PutEscapes(is_escape[s].data(), values[s].data(), &escapes);
      JoinGroup(values[s].data(), g + s, rest, raw);
    }
  }
  streams->states = {StatesOf(first), StatesOf(second)};
  return first_stream == streams->end[0] && second_stream == streams->end[1] &&
         escapes == streams->escapes_end;
}

struct KernelTable {
  KernelTable() {
    for (const LosslessKernel& kernel : VectorLosslessKernels()) kernels[count++] = kernel;
    kernels[count++] = PortableLosslessKernel();
  }

  std::array<LosslessKernel, 4> kernels{};
  size_t count = 0;
};

std::atomic<const LosslessKernel*> forced_kernel{nullptr};

}  // namespace

LosslessKernel PortableLosslessKernel() { return {"portable", Split, Encode, Reverse, Decode}; }

std::span<const LosslessKernel> LosslessKernels() {
  static const KernelTable table;
  return std::span(table.kernels).first(table.count);
}

void ForceLosslessKernel(const LosslessKernel* kernel) {
  forced_kernel.store(kernel, std::memory_order_release);
}

const LosslessKernel& CurrentLosslessKernel() {
  const LosslessKernel* const forced = forced_kernel.load(std::memory_order_acquire);
  return forced != nullptr ? *forced : LosslessKernels().front();
}

}  // namespace aquifer
