#include "block/codec/lossless_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "block/codec/lossless_kernel.h"
#include "block/codec/lossless_tables.h"

namespace aquifer {
namespace {

constexpr uint32_t kMagic = 0x314c5141;  // "AQL1".
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kChunkHeaderBytes = 16;
constexpr size_t kStateBytes = kLosslessStreams * 2 * kLosslessLanes;

// Long enough that a table is nothing beside it, short enough for the second-level cache, and about
// a layer's K or V of a block: each has frequencies of its own.
constexpr size_t kChunkValues = 65536;
constexpr size_t kRowValues = kLosslessLanes * kLosslessStreams;
constexpr size_t kSampledRows = 8;  // Of so many rows one is counted.

enum class Element : uint8_t { kBytes = 0, kBFloat16 = 1, kFloat16 = 2 };
enum class ChunkMode : uint8_t { kStored = 0, kCoded = 1 };

Element ElementOf(DType dtype) {
  if (dtype == DType::kBFloat16) return Element::kBFloat16;
  if (dtype == DType::kFloat16) return Element::kFloat16;
  return Element::kBytes;
}

size_t MiddleBytes(Element element, size_t values) {
  return element == Element::kFloat16 ? values / kLosslessLanes * kMiddleGroupBytes : 0;
}

// Rows are coded, what is behind the last one is stored.
size_t CodedValues(size_t raw_bytes) { return raw_bytes / 2 / kRowValues * kRowValues; }

struct ChunkHeader {
  ChunkMode mode = ChunkMode::kStored;
  uint8_t codes = 0;
  std::array<uint32_t, kLosslessStreams> stream_bytes{};
  uint32_t escape_bytes = 0;

  uint64_t BodyBytes(Element element, size_t values) const {
    if (mode == ChunkMode::kStored) return values * 2;
    return uint64_t{values} + MiddleBytes(element, values) + size_t{codes} * 2 + stream_bytes[0] +
           stream_bytes[1] + escape_bytes;
  }
};

void PutChunkHeader(const ChunkHeader& header, std::byte* to) {
  *to++ = std::byte(header.mode);
  *to++ = std::byte(header.codes);
  to = PutU16(to, 0);
  to = PutU32(to, header.stream_bytes[0]);
  to = PutU32(to, header.stream_bytes[1]);
  PutU32(to, header.escape_bytes);
}

// False for what no encoder writes.
bool GetChunkHeader(const std::byte* from, size_t values, ChunkHeader* header) {
  header->mode = static_cast<ChunkMode>(from[0]);
  header->codes = static_cast<uint8_t>(from[1]);
  header->stream_bytes = {GetU32(from + 4), GetU32(from + 8)};
  header->escape_bytes = GetU32(from + 12);
  if (GetU16(from + 2) != 0) return false;
  if (header->mode == ChunkMode::kStored) {
    return header->codes == 0 && header->stream_bytes[0] == 0 && header->stream_bytes[1] == 0 &&
           header->escape_bytes == 0;
  }
  return header->mode == ChunkMode::kCoded && header->codes >= 1 && header->codes <= kEscapeCode &&
         header->stream_bytes[0] <= values / 2 && header->stream_bytes[1] <= values / 2 &&
         header->escape_bytes <= values;
}

uint8_t* Unsigned(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
const uint8_t* Unsigned(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

// Four tables, because counting in one waits for the last write to the same entry.
std::array<uint32_t, 256> CountSample(std::span<const uint8_t> values) {
  std::array<std::array<uint32_t, 256>, 4> counts{};
  for (size_t row = 0; row < values.size(); row += kRowValues * kSampledRows) {
    for (size_t i = row; i < row + kRowValues; i += 4) {
      for (size_t j = 0; j < 4; ++j) ++counts[j][values[i + j]];
    }
  }
  for (size_t v = 0; v < 256; ++v) counts[0][v] += counts[1][v] + counts[2][v] + counts[3][v];
  return counts[0];
}

Status Damaged() { return Status(Code::kCorrupt); }

using AllStates = std::array<LaneStates, kLosslessStreams>;

std::byte* PutStates(const AllStates& all, std::byte* to) {
  for (const LaneStates& states : all) {
    to = PutBytes(to, states.low.data(), kLosslessLanes);
    to = PutBytes(to, states.high.data(), kLosslessLanes);
  }
  return to;
}

AllStates GetStates(const std::byte* from) {
  AllStates all;
  for (LaneStates& states : all) {
    std::memcpy(states.low.data(), from, kLosslessLanes);
    std::memcpy(states.high.data(), from + kLosslessLanes, kLosslessLanes);
    from += kLosslessLanes * 2;
  }
  return all;
}

AllStates FirstStates() {
  AllStates all;
  for (LaneStates& states : all) {
    states.low.fill(kFirstLow);
    states.high.fill(kFirstHigh);
  }
  return all;
}

bool AreFirst(const AllStates& all) {
  return std::all_of(all.begin(), all.end(), [](const LaneStates& states) {
    return std::all_of(states.low.begin(), states.low.end(),
                       [](uint8_t low) { return low == kFirstLow; }) &&
           std::all_of(states.high.begin(), states.high.end(),
                       [](uint8_t high) { return high == kFirstHigh; });
  });
}

// Values `raw`, a whole number of rows, out of a chunk, whose bounds were checked. Takes the states
// that the encoder left behind and leaves those that it began with.
Status DecodeChunk(Element element, const std::byte* chunk, std::span<std::byte> raw,
                   AllStates* states) {
  const size_t values = raw.size() / 2;
  ChunkHeader header;
  if (!GetChunkHeader(chunk, values, &header)) return Damaged();
  const uint8_t* at = Unsigned(chunk + kChunkHeaderBytes);
  if (header.mode == ChunkMode::kStored) {
    std::memcpy(raw.data(), at, raw.size());
    return Status();
  }
  const size_t middle_bytes = MiddleBytes(element, values);
  const ConstRestPlanes rest = {.low = at, .middle = middle_bytes == 0 ? nullptr : at + values};
  at += values + middle_bytes;

  CodeList codes{.count = header.codes, .values = {}, .frequencies = {}};
  std::memcpy(codes.values.data(), at, codes.count);
  std::memcpy(codes.frequencies.data(), at + codes.count, codes.count);
  at += codes.count * 2;
  LosslessTables tables;
  if (!MakeDecodeTables(codes, &tables)) return Damaged();

  DecodedStreams streams;
  streams.states = *states;
  for (size_t s = 0; s < kLosslessStreams; ++s) {
    streams.begin[s] = at;
    at += header.stream_bytes[s];
    streams.end[s] = at;
  }
  streams.escapes_begin = at;
  streams.escapes_end = at + header.escape_bytes;
  const bool sound =
      CurrentLosslessKernel().decode(tables, values / kLosslessLanes, rest, &streams, raw.data());
  *states = streams.states;
  return sound ? Status() : Damaged();
}

// Where the chunks of a payload begin.
struct ChunkList {
  std::array<const std::byte*, kMaxBlockBytes / (kChunkValues * 2)> chunks;
  size_t count = 0;
};

// Walks the headers of `stored`, which begins with the first chunk and ends with the states. The
// bytes behind the last chunk must be those that no row was made of; they become `left`.
Status FindChunks(Element element, std::span<const std::byte> stored, size_t coded_bytes,
                  ChunkList* list, std::span<const std::byte>* left) {
  for (size_t at = 0; at < coded_bytes; at += kChunkValues * 2) {
    const size_t values = std::min(kChunkValues * 2, coded_bytes - at) / 2;
    ChunkHeader header;
    if (stored.size() < kChunkHeaderBytes) return Damaged();
    if (!GetChunkHeader(stored.data(), values, &header)) return Damaged();
    const uint64_t bytes = kChunkHeaderBytes + header.BodyBytes(element, values);
    if (stored.size() < bytes || list->count == list->chunks.size()) return Damaged();
    list->chunks[list->count++] = stored.data();
    stored = stored.subspan(bytes);
  }
  *left = stored;
  return Status();
}

}  // namespace

size_t MaxLosslessBytes(size_t raw_bytes) {
  const size_t chunks = (CodedValues(raw_bytes) + kChunkValues - 1) / kChunkValues;
  return kHeaderBytes + chunks * kChunkHeaderBytes + raw_bytes + kStateBytes;
}

struct LosslessEncoder::Scratch {
  // Returns how long the chunk became, its header included.
  size_t EncodeChunk(Element element, std::span<const std::byte> raw, std::byte* to);
  // Codes the first `values` exponents into `streams` and `escapes`.
  ChunkHeader CodeExponents(size_t values);
  // All that follows the planes in a coded chunk.
  std::byte* PutCodes(const ChunkHeader& header, std::byte* to) const;

  alignas(64) std::array<uint8_t, kChunkValues> exponents;
  CodeList codes;
  LosslessTables tables;
  EncodedStreams encoded;  // Its states go on from chunk to chunk.
  // From their ends to their beginnings.
  std::array<std::array<uint8_t, kChunkValues / 2 + kStreamSlackBytes>, kLosslessStreams> streams;
  std::array<uint8_t, kChunkValues + kStreamSlackBytes> escapes;
};

ChunkHeader LosslessEncoder::Scratch::CodeExponents(size_t values) {
  codes = ChooseCodes(CountSample(std::span(exponents).first(values)));
  MakeEncodeTables(codes, &tables);
  for (size_t s = 0; s < kLosslessStreams; ++s) encoded.end[s] = streams[s].data();
  encoded.escapes_end = escapes.data();
  CurrentLosslessKernel().encode(tables, exponents.data(), values / kLosslessLanes, &encoded);

  ChunkHeader header{.mode = ChunkMode::kCoded, .codes = static_cast<uint8_t>(codes.count)};
  for (size_t s = 0; s < kLosslessStreams; ++s) {
    header.stream_bytes[s] = static_cast<uint32_t>(encoded.end[s] - streams[s].data());
  }
  header.escape_bytes = static_cast<uint32_t>(encoded.escapes_end - escapes.data());
  return header;
}

std::byte* LosslessEncoder::Scratch::PutCodes(const ChunkHeader& header, std::byte* to) const {
  const LosslessKernel& kernel = CurrentLosslessKernel();
  to = PutBytes(to, codes.values.data(), codes.count);
  to = PutBytes(to, codes.frequencies.data(), codes.count);
  for (size_t s = 0; s < kLosslessStreams; ++s) {
    kernel.reverse(streams[s].data(), header.stream_bytes[s], Unsigned(to));
    to += header.stream_bytes[s];
  }
  kernel.reverse(escapes.data(), header.escape_bytes, Unsigned(to));
  return to + header.escape_bytes;
}

size_t LosslessEncoder::Scratch::EncodeChunk(Element element, std::span<const std::byte> raw,
                                             std::byte* to) {
  const size_t values = raw.size() / 2;
  const size_t middle_bytes = MiddleBytes(element, values);
  // The planes already lie where they belong: in a coded chunk they come first.
  uint8_t* const body = Unsigned(to + kChunkHeaderBytes);
  CurrentLosslessKernel().split(
      raw.data(), values / kLosslessLanes, exponents.data(),
      {.low = body, .middle = middle_bytes == 0 ? nullptr : body + values});

  const AllStates before = encoded.states;
  const ChunkHeader header = CodeExponents(values);
  if (header.BodyBytes(element, values) >= raw.size()) {
    encoded.states = before;
    PutChunkHeader(ChunkHeader{}, to);
    std::memcpy(body, raw.data(), raw.size());
    return kChunkHeaderBytes + raw.size();
  }
  PutChunkHeader(header, to);
  return static_cast<size_t>(PutCodes(header, to + kChunkHeaderBytes + values + middle_bytes) - to);
}

LosslessEncoder::LosslessEncoder() : scratch_(std::make_unique<Scratch>()) {}
LosslessEncoder::~LosslessEncoder() = default;

size_t LosslessEncoder::Encode(DType dtype, std::span<const std::byte> raw,
                               std::span<std::byte> stored) {
  AQ_CHECK(raw.size() <= kMaxBlockBytes && stored.size() >= MaxLosslessBytes(raw.size()));
  const Element element = ElementOf(dtype);
  std::byte* to = PutU32(stored.data(), kMagic);
  to = PutU16(to, kVersion);
  *to++ = std::byte(element);
  *to++ = std::byte{0};
  to = PutU64(to, raw.size());
  if (element == Element::kBytes) {
    to = PutBytes(to, raw.data(), raw.size());
    return static_cast<size_t>(to - stored.data());
  }
  scratch_->encoded.states = FirstStates();
  const size_t coded_bytes = CodedValues(raw.size()) * 2;
  for (size_t at = 0; at < coded_bytes; at += kChunkValues * 2) {
    const size_t bytes = std::min(kChunkValues * 2, coded_bytes - at);
    to += scratch_->EncodeChunk(element, raw.subspan(at, bytes), to);
  }
  to = PutBytes(to, raw.data() + coded_bytes, raw.size() - coded_bytes);
  to = PutStates(scratch_->encoded.states, to);
  return static_cast<size_t>(to - stored.data());
}

Status DecodeLossless(std::span<const std::byte> stored, std::span<std::byte> raw) {
  if (stored.size() < kHeaderBytes || GetU32(stored.data()) != kMagic) return Damaged();
  if (GetU16(stored.data() + 4) != kVersion || stored[7] != std::byte{0}) return Damaged();
  if (GetU64(stored.data() + 8) != raw.size()) return Damaged();
  const auto element = static_cast<Element>(stored[6]);
  std::span<const std::byte> rest = stored.subspan(kHeaderBytes);
  if (element == Element::kBytes) {
    if (rest.size() != raw.size()) return Damaged();
    if (!raw.empty()) std::memcpy(raw.data(), rest.data(), raw.size());
    return Status();
  }
  if (element != Element::kBFloat16 && element != Element::kFloat16) return Damaged();
  // The states are at the very end, so that every stream has its slack behind itself.
  static_assert(kStateBytes >= kStreamSlackBytes);
  if (rest.size() < kStateBytes) return Damaged();
  AllStates states = GetStates(rest.data() + rest.size() - kStateBytes);
  rest = rest.first(rest.size() - kStateBytes);

  const size_t coded_bytes = CodedValues(raw.size()) * 2;
  ChunkList list;
  AQ_RETURN_IF_ERROR(FindChunks(element, rest, coded_bytes, &list, &rest));
  if (rest.size() != raw.size() - coded_bytes) return Damaged();
  // The last one first: what an rANS coder has written last, it reads first.
  for (size_t i = list.count; i-- > 0;) {
    const size_t at = i * kChunkValues * 2;
    const size_t bytes = std::min(kChunkValues * 2, coded_bytes - at);
    AQ_RETURN_IF_ERROR(DecodeChunk(element, list.chunks[i], raw.subspan(at, bytes), &states));
  }
  if (!AreFirst(states)) return Damaged();
  if (!rest.empty()) std::memcpy(raw.data() + coded_bytes, rest.data(), rest.size());
  return Status();
}

}  // namespace aquifer
