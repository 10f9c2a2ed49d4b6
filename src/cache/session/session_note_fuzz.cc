// Notes as they come from a store that others write to. Whatever is accepted must be within bounds
// and encode to the very bytes it came from. The first byte says which kind of note it is.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "cache/session/session_note.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aquifer;  // NOLINT(google-build-using-namespace)
  if (size < 1) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0: {
      const Result<SessionNote> note = DecodeSessionNote(bytes);
      if (!note.ok()) break;
      AQ_CHECK(note->pieces.size() <= kMaxSessionPieces);
      AQ_CHECK(note->keys.size() <= kKeysPerSessionPiece);
      AQ_CHECK(std::ranges::equal(EncodeSessionNote(*note), bytes));
      break;
    }
    case 1: {
      const Result<SessionEnd> end = DecodeSessionEnd(bytes);
      if (!end.ok()) break;
      AQ_CHECK(end->sessions.size() <= kMaxSessionsOfEnd);
      AQ_CHECK(std::ranges::equal(EncodeSessionEnd(*end), bytes));
      break;
    }
    default: {
      Key last;
      if (bytes.size() < sizeof(last.bytes)) break;
      std::memcpy(last.bytes.data(), bytes.last(sizeof(last.bytes)).data(), sizeof(last.bytes));
      const Result<std::vector<Key>> keys = DecodeSessionPiece(bytes, last);
      AQ_CHECK(keys.ok() == (bytes.size() == kKeysPerSessionPiece * sizeof(last.bytes)));
      if (keys.ok()) AQ_CHECK(std::ranges::equal(EncodeSessionPiece(*keys), bytes));
    }
  }
  return 0;
}
