#include "base/text/hex_text.h"

#include <gtest/gtest.h>

#include <span>

namespace aquifer {
namespace {

// As `printf %s secret | sha256sum` prints it.
constexpr std::string_view kSecret =
    "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

TEST(HexTextTest, ReadsWhatSha256sumPrints) {
  const Sha256Digest secret = Sha256Of(std::as_bytes(std::span(std::string_view("secret"))));
  EXPECT_EQ(*ParseSha256(kSecret), secret);
  EXPECT_EQ(Sha256Text(secret), kSecret);
  std::string upper(kSecret);
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(*ParseSha256(upper), secret);
}

TEST(HexTextTest, RefusesOtherTextsWithoutRepeatingThem) {
  std::string with_letter(kSecret);
  with_letter[63] = 'g';
  for (const std::string& text :
       {std::string("my-real-token"), std::string(kSecret.substr(1)), with_letter, std::string()}) {
    const Result<Sha256Digest> digest = ParseSha256(text);
    ASSERT_FALSE(digest.ok());
    EXPECT_EQ(digest.status().message().find("my-real-token"), std::string::npos);
    EXPECT_NE(digest.status().message().find("sha256sum"), std::string::npos);
  }
}

}  // namespace
}  // namespace aquifer
