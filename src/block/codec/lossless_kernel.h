// The loops of the lossless codec, and the table of those that this processor can run. Only
// lossless_*.cc and benchmarks include this; everyone else wants lossless_codec.h.
//
// Values come in groups of 64, a group is a vector register of bytes, and lane k of it holds value
// k/2 of the group where k is even and value 32 + k/2 where it is odd: so two registers of 16-bit
// values become one of exponents and one of the rest by shifts alone. Groups go to two streams in
// turn, so that a processor works on two at once. Each lane of each stream is an rANS coder of its
// own: a state of 16 bits that moves whole bytes, and all lanes of a stream share its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace aquifer {

inline constexpr size_t kLosslessLanes = 64;
inline constexpr size_t kLosslessStreams = 2;
// Per lane bits that are neither exponent nor in the low byte (fp16 has three) take this much.
inline constexpr size_t kMiddleGroupBytes = 24;
inline constexpr size_t kLosslessCodes = 64;
inline constexpr uint8_t kEscapeCode = kLosslessCodes - 1;
// A loop may read, and an encoder write, so far past the end of a stream.
inline constexpr size_t kStreamSlackBytes = 64;

// Frequencies are out of 256. The escape stands for every value without a code of its own; the
// value itself follows in a list.
struct LosslessTables {
  alignas(64) std::array<uint8_t, kLosslessCodes> value;
  alignas(64) std::array<uint8_t, kLosslessCodes> frequency;
  alignas(64) std::array<uint8_t, kLosslessCodes> start;  // The sum of the frequencies before it.
  // For decoding.
  alignas(64) std::array<uint8_t, 256> code_of_slot;
  // For encoding. 65536 / frequency, rounded down, in two bytes.
  alignas(64) std::array<uint8_t, 256> code_of_value;
  alignas(64) std::array<uint8_t, kLosslessCodes> reciprocal_low;
  alignas(64) std::array<uint8_t, kLosslessCodes> reciprocal_high;
};

// The 16 bits of each lane, low bytes and high bytes apart.
struct LaneStates {
  alignas(64) std::array<uint8_t, kLosslessLanes> low;
  alignas(64) std::array<uint8_t, kLosslessLanes> high;
};

// Encoding a payload begins, and decoding it ends, with each lane at 256.
inline constexpr uint8_t kFirstLow = 0;
inline constexpr uint8_t kFirstHigh = 1;

// rANS decodes the last value first, so encoders begin with the last value; what they write is the
// stream from its end to its beginning. The pointers say where the next byte goes.
struct EncodedStreams {
  std::array<LaneStates, kLosslessStreams> states;
  std::array<uint8_t*, kLosslessStreams> end;
  uint8_t* escapes_end;
};

struct DecodedStreams {
  std::array<LaneStates, kLosslessStreams> states;
  std::array<const uint8_t*, kLosslessStreams> begin;  // Readable kStreamSlackBytes past `end`.
  std::array<const uint8_t*, kLosslessStreams> end;
  const uint8_t* escapes_begin;
  const uint8_t* escapes_end;
};

// Where the bits go that are not coded. `middle` is null for bf16.
struct RestPlanes {
  uint8_t* low;
  uint8_t* middle;
};
struct ConstRestPlanes {
  const uint8_t* low;
  const uint8_t* middle;
};

struct LosslessKernel {
  const char* name;
  // `groups` groups of 16-bit values, an even number of them everywhere.
  void (*split)(const std::byte* raw, size_t groups, uint8_t* exponents, RestPlanes rest);
  // Each stream, and the list of escapes, has room for a byte a value and kStreamSlackBytes.
  void (*encode)(const LosslessTables& tables, const uint8_t* exponents, size_t groups,
                 EncodedStreams* streams);
  // The last byte first.
  void (*reverse)(const uint8_t* from, size_t bytes, uint8_t* to);
  // Leaves the states as they are at the end. False when the streams do not end where they should;
  // never reads further than that and the slack.
  bool (*decode)(const LosslessTables& tables, size_t groups, ConstRestPlanes rest,
                 DecodedStreams* streams, std::byte* raw);
};

// Those that this processor can run, the preferred one first and the portable one last.
std::span<const LosslessKernel> LosslessKernels();

// All later calls in this process use `kernel`; nullptr goes back to the preferred one. For tests.
void ForceLosslessKernel(const LosslessKernel* kernel);
const LosslessKernel& CurrentLosslessKernel();

LosslessKernel PortableLosslessKernel();

// Supplied by the one file that CMake picks for the processor: the vector kernels it can run.
std::span<const LosslessKernel> VectorLosslessKernels();

}  // namespace aquifer
