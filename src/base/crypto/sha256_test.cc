#include "base/crypto/sha256.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace aquifer {
namespace {

std::string Hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<int>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(byte) & 15];
  }
  return text;
}

Sha256Digest Of(std::string_view text) { return Sha256Of(std::as_bytes(std::span(text))); }

// From FIPS 180-4's examples.
TEST(Sha256Test, ItIsTheStandardsFunction) {
  EXPECT_EQ(Hex(Of("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Of(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesGiveTheSameAsTheWhole) {
  const std::string text(300, 'x');
  Sha256 hash;
  for (size_t cut = 0; cut <= text.size(); cut += 7) {
    hash.Update(std::string_view(text).substr(0, cut));
    hash.Update(std::string_view(text).substr(cut));
    EXPECT_EQ(hash.Finish(), Of(text)) << cut;
  }
}

TEST(Sha256Test, APaddedMessageGivesTheSameAtEveryLength) {
  const std::string text(400, 'y');
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    std::vector<std::byte> buffer(bytes + kSha256PaddingBytes, std::byte{0xAA});
    std::memcpy(buffer.data(), text.data(), bytes);
    EXPECT_EQ(Sha256OfPadded(PadForSha256(buffer, bytes)), Of(text.substr(0, bytes))) << bytes;
  }
}

TEST(Sha256Test, AnObjectStartsAfreshAfterEachDigest) {
  Sha256 hash;
  EXPECT_EQ(hash.Finish(), Of(""));
  hash.Update("abc");
  EXPECT_EQ(hash.Finish(), Of("abc"));
  hash.Update("abc");
  EXPECT_EQ(hash.Finish(), Of("abc"));
}

TEST(Sha256Test, ThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      const std::string text(static_cast<size_t>(100 + i), static_cast<char>('a' + i));
      const Sha256Digest expected = Of(text);
      for (int round = 0; round < 1000; ++round) ASSERT_EQ(Of(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace aquifer
