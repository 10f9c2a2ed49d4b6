// Every message that decodes must be within bounds, and encode to the very bytes that it came from.
// The first byte of the input chooses the message; the rest is its body.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "net/protocol/local_protocol.h"

namespace aquifer {
namespace {

void CheckBounds(const ChainCall& chain) {
  AQ_CHECK(chain.total <= kMaxItems && chain.items.keys.size() <= chain.total);
}
template <class Message>
void CheckBounds(const Message& message) {
  if constexpr (requires { message.chain; }) CheckBounds(message.chain);
}

template <class Message>
void Try(std::span<const std::byte> frame) {
  FrameReader reader(frame);
  Message message;
  if constexpr (std::is_void_v<decltype(Decode(&reader, &message))>) {
    Decode(&reader, &message);
    if (!reader.End().ok()) return;
  } else {
    if (!Decode(&reader, &message).ok()) return;
  }
  CheckBounds(message);
  FrameWriter writer;
  writer.Begin(reader.header().kind, reader.header().number);
  Encode(message, &writer);
  const std::span<const std::byte> again = writer.Finish();
  AQ_CHECK(again.size() == frame.size());
  AQ_CHECK(std::memcmp(again.data(), frame.data(), frame.size()) == 0);
}

// Gives the list a Decode() and an Encode() like those of a message.
struct Releases : std::vector<ReleaseOp> {};
void Encode(const Releases& ops, FrameWriter* to) {
  aquifer::Encode(std::span<const ReleaseOp>(ops), to);
}
Status Decode(FrameReader* from, Releases* ops) {
  return aquifer::Decode(from, static_cast<std::vector<ReleaseOp>*>(ops));
}

template <uint16_t version>
struct HintOf : HintCall {};
template <uint16_t version>
void Encode(const HintOf<version>& call, FrameWriter* to) {
  aquifer::Encode(call, version, to);
}
template <uint16_t version>
Status Decode(FrameReader* from, HintOf<version>* call) {
  return aquifer::Decode(from, version, static_cast<HintCall*>(call));
}

using Trial = void (*)(std::span<const std::byte>);
constexpr Trial kTrials[] = {
    Try<Hello>,         Try<Welcome>,      Try<Refused>,     Try<ExtentOffer>,  Try<Layout>,
    Try<MatchCall>,     Try<FetchCall>,    Try<ReserveCall>, Try<CommitCall>,   Try<FlushCall>,
    Try<PinCall>,       Try<PrestageCall>, Try<EvictCall>,   Try<DrainCall>,    Try<HintOf<1>>,
    Try<PrefillReport>, Try<KeyItems>,     Try<AnswerHead>,  Try<FetchAnswer>,  Try<ReserveAnswer>,
    Try<CommitAnswer>,  Try<MatchAnswer>,  Try<MatchRun>,    Try<CountsAnswer>, Try<CacheStats>,
    Try<Releases>,      Try<HintOf<2>>};

}  // namespace
}  // namespace aquifer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t body = size - 1;
  const size_t bytes = (aquifer::kFrameHeaderBytes + body + 7) / 8 * 8;
  if (!aquifer::IsFrameLength(bytes)) return 0;
  std::vector<std::byte> frame(bytes);
  aquifer::PutU32(frame.data(), static_cast<uint32_t>(bytes));
  if (body > 0) std::memcpy(frame.data() + aquifer::kFrameHeaderBytes, data + 1, body);
  aquifer::kTrials[data[0] % std::size(aquifer::kTrials)](frame);
  return 0;
}
