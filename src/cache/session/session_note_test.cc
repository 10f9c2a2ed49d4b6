#include "cache/session/session_note.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "testing/chain.h"

namespace aquifer {
namespace {

std::vector<Key> KeysOf(size_t count) {
  const Chain chain(LayoutOfBytes(4096), {.seed = 3, .blocks = count});
  return {chain.keys().begin(), chain.keys().end()};
}

SessionNote NoteOf(const std::vector<Key>& chain) {
  SessionNote note;
  note.group = 2;
  note.part = 1;
  note.block_bytes = 4096;
  note.written_unix_micros = 1'800'000'000'000'001;
  note.layout_fingerprint[5] = std::byte{9};
  CutSession(chain, &note);
  return note;
}

TEST(SessionNoteTest, ComesBackAsItWas) {
  for (const size_t count : {1, 1024, 1025, 3000}) {
    const std::vector<Key> chain = KeysOf(count);
    const SessionNote note = NoteOf(chain);
    EXPECT_EQ(note.pieces.size(), (count - 1) / kKeysPerSessionPiece);
    const std::vector<std::byte> bytes = EncodeSessionNote(note);
    EXPECT_LE(bytes.size(), size_t{64} << 10);
    const auto again = DecodeSessionNote(bytes);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->group, 2);
    EXPECT_EQ(again->part, 1);
    EXPECT_EQ(again->block_bytes, 4096u);
    EXPECT_EQ(again->written_unix_micros, note.written_unix_micros);
    EXPECT_EQ(again->layout_fingerprint, note.layout_fingerprint);
    std::vector<Key> keys;
    for (size_t i = 0; i < again->pieces.size(); ++i) {
      const auto piece = DecodeSessionPiece(EncodeSessionPiece(std::span(chain).subspan(
                                                i * kKeysPerSessionPiece, kKeysPerSessionPiece)),
                                            again->pieces[i]);
      ASSERT_TRUE(piece.ok());
      keys.insert(keys.end(), piece->begin(), piece->end());
    }
    keys.insert(keys.end(), again->keys.begin(), again->keys.end());
    EXPECT_EQ(keys, chain);
  }
}

TEST(SessionNoteTest, AnEndSaysWhoseItIsAndNothingElseIsTakenForOne) {
  const std::vector<std::byte> bytes = EncodeSessionEnd({.sessions = {"chat 7", "b"}, .more = {}});
  EXPECT_EQ(bytes.size(), 8u + 2u + 6u + 2u + 1u);
  const auto end = DecodeSessionEnd(bytes);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->sessions, (std::vector<std::string>{"chat 7", "b"}));
  EXPECT_FALSE(end->more);
  for (size_t bit = 0; bit < 10 * 8; ++bit) {
    if (bit == 7 * 8) continue;  // There are more.
    std::vector<std::byte> changed = bytes;
    changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_EQ(DecodeSessionEnd(changed).status().code(), Code::kCorrupt) << bit;
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeSessionEnd(std::span(bytes).first(length)).ok()) << length;
  }
  EXPECT_FALSE(DecodeSessionEnd(EncodeSessionNote(NoteOf(KeysOf(1)))).ok());
  EXPECT_NE(SessionEndName(0, 1, KeysOf(1)[0]), SessionEndName(1, 0, KeysOf(1)[0]));
}

TEST(SessionNoteTest, AnEndHasRoomForSomeNamesAndKnowsThatThereWereMore) {
  SessionEnd end;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(end.more, i > 16);
    AddToSessionEnd(std::string(256, 'a') + std::to_string(i), &end);
  }
  AddToSessionEnd(std::string(end.sessions.front()), &end);
  ASSERT_EQ(end.sessions.size(), kMaxSessionsOfEnd);
  EXPECT_EQ(end.sessions.front(), std::string(256, 'a') + "5");
  EXPECT_EQ(end.sessions.back(), std::string(256, 'a') + "4");
  const auto again = DecodeSessionEnd(EncodeSessionEnd(end));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->sessions, end.sessions);
  EXPECT_TRUE(again->more);
}

TEST(SessionNoteTest, TheLongestFitsIntoANote) {
  SessionNote note;
  note.pieces.resize(kMaxSessionPieces);
  note.keys.resize(kKeysPerSessionPiece);
  const std::vector<std::byte> bytes = EncodeSessionNote(note);
  EXPECT_LE(bytes.size(), size_t{64} << 10);
  EXPECT_TRUE(DecodeSessionNote(bytes).ok());
}

TEST(SessionNoteTest, WhatIsNotANoteIsRefused) {
  const std::vector<std::byte> right = EncodeSessionNote(NoteOf(KeysOf(1030)));
  for (size_t length = 0; length < right.size(); ++length) {
    const auto cut = DecodeSessionNote(std::span(right).first(length));
    ASSERT_EQ(cut.status().code(), Code::kCorrupt) << length;
  }
  for (const size_t at : {0, 4, 10, 12, 15}) {
    std::vector<std::byte> wrong = right;
    wrong[at] ^= std::byte{0x41};
    EXPECT_EQ(DecodeSessionNote(wrong).status().code(), Code::kCorrupt) << at;
  }
}

TEST(SessionNoteTest, APieceOfAnotherChainIsRefused) {
  const std::vector<Key> chain = KeysOf(2048);
  const auto first = EncodeSessionPiece(std::span(chain).first(1024));
  EXPECT_TRUE(DecodeSessionPiece(first, chain[1023]).ok());
  EXPECT_EQ(DecodeSessionPiece(first, chain[2047]).status().code(), Code::kCorrupt);
  EXPECT_EQ(DecodeSessionPiece(std::span(first).first(100), chain[1023]).status().code(),
            Code::kCorrupt);
}

}  // namespace
}  // namespace aquifer
