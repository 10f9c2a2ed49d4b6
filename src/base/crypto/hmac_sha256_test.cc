#include "base/crypto/hmac_sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/crypto/secret_key.h"

namespace aquifer {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[static_cast<int>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<int>(byte) & 15];
  }
  return text;
}

std::vector<std::byte> Repeated(size_t count, int byte) {
  return std::vector<std::byte>(count, static_cast<std::byte>(byte));
}

// RFC 4231, cases 1, 2, 3 and 6 (a key longer than a block).
TEST(HmacSha256Test, ReproducesTheVectorsOfRfc4231) {
  EXPECT_EQ(Hex(HmacSha256(Repeated(20, 0x0b), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256(std::as_bytes(std::span(std::string_view("Jefe"))),
                           "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(Repeated(20, 0xaa), Repeated(50, 0xdd))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(Hex(HmacSha256(Repeated(131, 0xaa),
                           "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(SecretKeyTest, IsWipedWhenItGoes) {
  alignas(SecretKey) std::byte place[sizeof(SecretKey)];
  const auto seven = Repeated(SecretKey::kBytes, 7);
  auto* const key =
      new (place) SecretKey(std::span(seven).first<SecretKey::kBytes>());  // In place.
  EXPECT_TRUE(*key == SecretKey(std::span(seven).first<SecretKey::kBytes>()));
  EXPECT_FALSE(*key == SecretKey());
  const volatile std::byte* const bytes = place;
  key->~SecretKey();
  for (size_t i = 0; i < SecretKey::kBytes; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), 0);
}

}  // namespace
}  // namespace aquifer
