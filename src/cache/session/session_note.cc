#include "cache/session/session_note.h"

#include <cstring>

#include "base/bytes.h"

namespace aquifer {
namespace {

constexpr uint32_t kMagic = 0x4E53'5141;  // "AQSN".
constexpr uint16_t kVersion = 2;
constexpr size_t kHeadBytes = 64;
constexpr uint32_t kEndMagic = 0x4553'5141;  // "AQSE".
constexpr uint16_t kEndVersion = 2;
constexpr size_t kEndHeadBytes = 8;
constexpr size_t kNameLengthBytes = 2;
constexpr size_t kKeyBytes = sizeof(Key::bytes);

std::byte* PutKeys(std::byte* to, std::span<const Key> keys) {
  for (const Key& key : keys) to = PutBytes(to, key.bytes.data(), kKeyBytes);
  return to;
}

std::vector<Key> GetKeys(const std::byte* from, size_t count) {
  std::vector<Key> keys(count);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(keys[i].bytes.data(), from + i * kKeyBytes, kKeyBytes);
  }
  return keys;
}

}  // namespace

std::string SessionNoteName(const std::string& session) { return "session/" + session; }
std::string SessionEndName(uint16_t group, uint16_t part, const Key& last) {
  return "end/" + last.ToHex() + "-" + std::to_string(group) + "-" + std::to_string(part);
}
std::string SessionPieceName(const Key& last) { return "keys/" + last.ToHex(); }

void CutSession(std::span<const Key> chain, SessionNote* note) {
  note->pieces.clear();
  // The last keys stay in the note: a session that there is has some.
  while (chain.size() > kKeysPerSessionPiece) {
    note->pieces.push_back(chain[kKeysPerSessionPiece - 1]);
    chain = chain.subspan(kKeysPerSessionPiece);
  }
  note->keys.assign(chain.begin(), chain.end());
}

std::vector<std::byte> EncodeSessionNote(const SessionNote& note) {
  std::vector<std::byte> bytes(kHeadBytes + (note.pieces.size() + note.keys.size()) * kKeyBytes);
  std::byte* to = bytes.data();
  to = PutU32(to, kMagic);
  to = PutU16(to, kVersion);
  to = PutU16(to, note.group);
  to = PutU16(to, note.part);
  to = PutU16(to, static_cast<uint16_t>(note.pieces.size()));
  to = PutU32(to, static_cast<uint32_t>(note.keys.size()));
  to = PutU64(to, note.block_bytes);
  to = PutBytes(to, note.layout_fingerprint.data(), note.layout_fingerprint.size());
  to = PutU64(to, note.written_unix_micros);
  to = PutKeys(to, note.pieces);
  PutKeys(to, note.keys);
  return bytes;
}

Result<SessionNote> DecodeSessionNote(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeadBytes) return Status(Code::kCorrupt, "a session's note is too short");
  const std::byte* const from = bytes.data();
  if (GetU32(from) != kMagic || GetU16(from + 4) != kVersion) {
    return Status(Code::kCorrupt, "a session's note is of another kind or version");
  }
  SessionNote note;
  note.group = GetU16(from + 6);
  note.part = GetU16(from + 8);
  const size_t pieces = GetU16(from + 10);
  const size_t keys = GetU32(from + 12);
  note.block_bytes = GetU64(from + 16);
  if (pieces > kMaxSessionPieces || keys > kKeysPerSessionPiece ||
      bytes.size() != kHeadBytes + (pieces + keys) * kKeyBytes) {
    return Status(Code::kCorrupt, "a session's note is not as long as it says");
  }
  std::memcpy(note.layout_fingerprint.data(), from + 24, note.layout_fingerprint.size());
  note.written_unix_micros = GetU64(from + 56);
  note.pieces = GetKeys(from + kHeadBytes, pieces);
  note.keys = GetKeys(from + kHeadBytes + pieces * kKeyBytes, keys);
  return note;
}

void AddToSessionEnd(const std::string& session, SessionEnd* end) {
  std::erase(end->sessions, session);
  end->sessions.push_back(session);
  if (end->sessions.size() <= kMaxSessionsOfEnd) return;
  end->sessions.erase(end->sessions.begin());
  end->more = true;
}

std::vector<std::byte> EncodeSessionEnd(const SessionEnd& end) {
  size_t size = kEndHeadBytes;
  for (const std::string& session : end.sessions) size += kNameLengthBytes + session.size();
  std::vector<std::byte> bytes(size);
  std::byte* to = bytes.data();
  to = PutU32(to, kEndMagic);
  to = PutU16(to, kEndVersion);
  *to++ = static_cast<std::byte>(end.sessions.size());
  *to++ = static_cast<std::byte>(end.more ? 1 : 0);
  for (const std::string& session : end.sessions) {
    to = PutU16(to, static_cast<uint16_t>(session.size()));
    to = PutBytes(to, session.data(), session.size());
  }
  return bytes;
}

Result<SessionEnd> DecodeSessionEnd(std::span<const std::byte> bytes) {
  const Status corrupt(Code::kCorrupt,
                       "the note of a session's end is of another kind, version or length");
  if (bytes.size() < kEndHeadBytes || GetU32(bytes.data()) != kEndMagic ||
      GetU16(bytes.data() + 4) != kEndVersion) {
    return corrupt;
  }
  const auto count = std::to_integer<size_t>(bytes[6]);
  const auto more = std::to_integer<uint8_t>(bytes[7]);
  if (count == 0 || count > kMaxSessionsOfEnd || more > 1) return corrupt;
  SessionEnd end{.sessions = {}, .more = more == 1};
  bytes = bytes.subspan(kEndHeadBytes);
  for (size_t i = 0; i < count; ++i) {
    if (bytes.size() < kNameLengthBytes) return corrupt;
    const size_t length = GetU16(bytes.data());
    bytes = bytes.subspan(kNameLengthBytes);
    if (length == 0 || bytes.size() < length) return corrupt;
    end.sessions.emplace_back(reinterpret_cast<const char*>(bytes.data()), length);
    bytes = bytes.subspan(length);
  }
  if (!bytes.empty()) return corrupt;
  return end;
}

std::vector<std::byte> EncodeSessionPiece(std::span<const Key> keys) {
  std::vector<std::byte> bytes(keys.size() * kKeyBytes);
  PutKeys(bytes.data(), keys);
  return bytes;
}

Result<std::vector<Key>> DecodeSessionPiece(std::span<const std::byte> bytes, const Key& last) {
  if (bytes.size() != kKeysPerSessionPiece * kKeyBytes) {
    return Status(Code::kCorrupt, "a piece of a session's keys is not as long as it should be");
  }
  std::vector<Key> keys = GetKeys(bytes.data(), kKeysPerSessionPiece);
  if (keys.back() != last) {
    return Status(Code::kCorrupt, "a piece of a session's keys is another one's");
  }
  return keys;
}

}  // namespace aquifer
