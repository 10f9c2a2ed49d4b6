// Where a session ends and which blocks it has, as notes in a durable tier, so that a node that has
// never heard of it recalls it by its name alone. docs/formats/session-note.md has each byte.
//
// A tier's notes are short, so the keys of a long chain lie in pieces of their own, each named by
// its last key. A key names all that comes before it: a piece never changes, and sessions that
// begin alike share theirs. The note of the session itself has the last keys, and names the pieces.
//
// Pure: bytes in, bytes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/status.h"

namespace aquifer {

inline constexpr size_t kKeysPerSessionPiece = 1024;  // 32 KiB.
inline constexpr size_t kMaxSessionPieces = 512;
// A million tokens in blocks of 16 are an eighth of it.
inline constexpr size_t kMaxSessionKeys = kKeysPerSessionPiece * kMaxSessionPieces;

struct SessionNote {
  uint16_t group = 0;
  uint16_t part = 0;
  uint64_t block_bytes = 0;
  uint64_t written_unix_micros = 0;  // Of two notes of a session, the newer one counts.
  Digest layout_fingerprint{};
  std::vector<Key> pieces{};  // The last key of each piece, in the order of the chain.
  std::vector<Key> keys{};    // Those behind the pieces. None: there is no such session any more.
};

std::string SessionNoteName(const std::string& session);
std::string SessionEndName(uint16_t group, uint16_t part, const Key& last);
std::string SessionPieceName(const Key& last);

// Cuts a chain: `pieces` and `keys` of the note.
void CutSession(std::span<const Key> chain, SessionNote* note);

std::vector<std::byte> EncodeSessionNote(const SessionNote& note);
// kCorrupt: not one of ours, or of a version that this node does not know.
Result<SessionNote> DecodeSessionNote(std::span<const std::byte> bytes);

// Which sessions end with a block, or did: a note of its own, so that they are found by the block.
inline constexpr size_t kMaxSessionsOfEnd = 16;
struct SessionEnd {
  std::vector<std::string> sessions{};  // The latest last.
  bool more = false;                    // There were others, for whose names there is no room.
};
// Makes `session` the latest.
void AddToSessionEnd(const std::string& session, SessionEnd* end);

std::vector<std::byte> EncodeSessionEnd(const SessionEnd& end);
Result<SessionEnd> DecodeSessionEnd(std::span<const std::byte> bytes);  // kCorrupt, too.

// So many keys, whole.
std::vector<std::byte> EncodeSessionPiece(std::span<const Key> keys);
// kCorrupt also where it does not end with `last`.
Result<std::vector<Key>> DecodeSessionPiece(std::span<const std::byte> bytes, const Key& last);

}  // namespace aquifer
