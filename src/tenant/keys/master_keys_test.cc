#include "tenant/keys/master_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The same 32 bytes: 0, 1, 2, ...
const std::string kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
const std::string kBase64 = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const std::string kOther = std::string(64, 'e');

SecretKey Counting() {
  SecretKey key;
  for (size_t i = 0; i < SecretKey::kBytes; ++i) key.writable()[i] = static_cast<std::byte>(i);
  return key;
}

std::vector<SecretKey> Parsed(const std::string& text) {
  auto keys = ParseMasterKeys(text, "m");
  EXPECT_TRUE(keys.ok()) << keys.status().ToString();
  return keys.ok() ? *keys : std::vector<SecretKey>{};
}

std::string Refusal(const std::string& text) {
  const auto keys = ParseMasterKeys(text, "m");
  EXPECT_EQ(keys.status().code(), Code::kInvalid) << text;
  return keys.status().message();
}

TEST(MasterKeysTest, HexadecimalAndBase64AreRead) {
  for (const std::string& text : {kHex, kBase64, kBase64.substr(0, 43), kHex + "\n", "\t" + kHex}) {
    const auto keys = Parsed(text);
    ASSERT_EQ(keys.size(), 1u) << text;
    EXPECT_EQ(keys[0], Counting());
  }
}

TEST(MasterKeysTest, SeveralKeysKeepTheirOrder) {
  for (const std::string& text : {"# new\n" + kOther + "\n\n# old\n" + kHex + "\r\n",
                                  kOther + "," + kHex, kOther + " " + kHex}) {
    const auto keys = Parsed(text);
    ASSERT_EQ(keys.size(), 2u) << text;
    EXPECT_EQ(keys[1], Counting());
  }
}

TEST(MasterKeysTest, ErrorMessagesContainNoByteOfAKey) {
  for (const std::string& text : {kHex.substr(1), kHex + "0", "xx" + kHex.substr(2),
                                  "*" + kBase64.substr(1), kBase64 + "=", kHex + kHex}) {
    EXPECT_THAT(Refusal("# one\n" + text),
                AllOf(HasSubstr("m:2: "), HasSubstr("openssl rand -hex 32"),
                      Not(HasSubstr(text.substr(2, 8)))));
  }
  EXPECT_THAT(Refusal(std::string(64, '0')), HasSubstr("all zeros"));
  EXPECT_THAT(Refusal("# nothing\n"), HasSubstr("there is no master key here"));
  EXPECT_THAT(Refusal(""), HasSubstr("there is no master key here"));
  std::string many;
  for (int i = 0; i < 17; ++i) many += kHex + "\n";
  EXPECT_THAT(Refusal(many), HasSubstr("m:17: at most 16"));
}

TEST(MasterKeysTest, AFileOfKeysIsClosedToOthers) {
  const ScratchDirectory scratch;
  const std::string path = scratch.Sub("master");
  std::ofstream(path) << kHex << "\n";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  const auto keys = ReadMasterKeyFile(path, ::geteuid());
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  EXPECT_EQ((*keys)[0], Counting());
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(ReadMasterKeyFile(path, ::geteuid()).status().message(), HasSubstr("chmod 600"));
}

TEST(MasterKeysTest, ATakenVariableIsGoneFromTheEnvironment) {
  EXPECT_EQ(TakeFromEnvironment("AQUIFER_NO_SUCH_VARIABLE"), "");
  std::string entry = "AQUIFER_TEST_SECRET=very secret";
  ASSERT_EQ(::putenv(entry.data()), 0);  // The environment is this very memory.
  EXPECT_EQ(TakeFromEnvironment("AQUIFER_TEST_SECRET"), "very secret");
  EXPECT_EQ(std::getenv("AQUIFER_TEST_SECRET"), nullptr);
  EXPECT_EQ(entry, "AQUIFER_TEST_SECRET=" + std::string(11, '\0'));
}

}  // namespace
}  // namespace aquifer
