#include "base/text/toml_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <fstream>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// The value of the only key of the text.
TomlValue Only(const std::string& text) {
  const Result<TomlValue> parsed = ParseToml(text, "a.toml");
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  return parsed->table().front().second;
}

template <class T>
std::string MessageOf(const Result<T>& result) {
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInvalid);
  return result.status().message();
}

TEST(TomlValueTest, ValuesComeInTheirTypes) {
  EXPECT_EQ(*Only("x = true").Flag(), true);
  EXPECT_EQ(*Only("x = \"a\"").Text(), "a");
  EXPECT_EQ(*Only("x = 7").Integer(0, 7), 7);
  EXPECT_EQ(*Only("x = \"2MiB\"").Bytes(), 2u << 20);
  EXPECT_EQ(*Only("x = 4096").Bytes(), 4096u);
  EXPECT_EQ(*Only("x = \"2h\"").Seconds(0), 7200);
  EXPECT_EQ(*Only("x = 60").Seconds(60), 60);
  EXPECT_EQ(Only("x = [1, 2]").Elements()->size(), 2u);
  constexpr std::array<std::string_view, 2> kNames = {"auto", "off"};
  EXPECT_EQ(*Only("x = \"off\"").OneOf(kNames), 1u);
}

TEST(TomlValueTest, AWrongTypeIsSaidWithPlaceAndExpectation) {
  EXPECT_THAT(MessageOf(Only("\n\nx = \"true\"").Flag()),
              AllOf(StartsWith("a.toml:3: x: "), HasSubstr("true or false")));
  EXPECT_THAT(MessageOf(Only("x = 1").Text()), HasSubstr("this is an integer"));
  EXPECT_THAT(MessageOf(Only("x = 1.5").Integer(0, 9)), HasSubstr("from 0 to 9"));
  EXPECT_THAT(MessageOf(Only("x = 10").Integer(0, 9)), HasSubstr("10 is not from 0 to 9"));
  EXPECT_THAT(MessageOf(Only("x = true").Bytes()), HasSubstr("512MiB"));
  EXPECT_THAT(MessageOf(Only("x = -1").Bytes()), HasSubstr("negative"));
  EXPECT_THAT(MessageOf(Only("x = \"lots\"").Bytes()), HasSubstr("'lots' is not a size"));
  EXPECT_THAT(MessageOf(Only("x = 2024-01-01").Seconds(0)), HasSubstr("a date or time"));
  EXPECT_THAT(MessageOf(Only("x = -5").Seconds(0)), HasSubstr("is not a time"));
  EXPECT_THAT(MessageOf(Only("x = 5").Seconds(60)), HasSubstr("at least 1m"));
  EXPECT_THAT(MessageOf(Only("x = \"a\"").Elements()), HasSubstr("write a list"));
  constexpr std::array<std::string_view, 2> kNames = {"auto", "off"};
  EXPECT_THAT(MessageOf(Only("x = \"on\"").OneOf(kNames)), HasSubstr("\"auto\", \"off\""));
}

TEST(TomlValueTest, WrongSyntaxIsSaidWithItsLine) {
  EXPECT_THAT(MessageOf(ParseToml("a = 1\nb = \n", "a.toml")), StartsWith("a.toml:2: "));
  EXPECT_THAT(MessageOf(ParseToml("a = 1\na = 2\n", "a.toml")), StartsWith("a.toml:2: "));
  EXPECT_THAT(MessageOf(ParseToml("a = \"\xff\"", "a.toml")), StartsWith("a.toml:1: "));
  // Text that toml++ itself takes for impossible.
  EXPECT_THAT(MessageOf(ParseToml("[[[", "a.toml")), StartsWith("a.toml: "));
  EXPECT_FALSE(ParseToml("a = " + std::string(100'000, '['), "a.toml").ok());
}

TEST(TomlValueTest, TablesAreReadByTheListOfTheirKeys) {
  int64_t size = 0;
  const std::vector<TomlKey> keys = {{"size",
                                      [&size](const TomlValue& value) {
                                        AQ_ASSIGN_OR_RETURN(size, value.Integer(0, 100));
                                        return Status();
                                      }},
                                     {"engine", [](const TomlValue&) { return Status(); }}};
  const auto read = [&keys](const std::string& text) { return ReadTable(Only(text), keys); };
  EXPECT_TRUE(read("[t]\nsize = 5\n").ok());
  EXPECT_EQ(size, 5);
  EXPECT_EQ(read("[t]\nsize = 500\n").message(), "a.toml:2: t.size: 500 is not from 0 to 100");
  EXPECT_EQ(read("[t]\n\nsizes = 5\n").message(),
            "a.toml:3: t.sizes: there is no such key; did you mean 'size'?");
  EXPECT_THAT(read("[t]\nfrobnicate = 5\n").message(), HasSubstr("there are: size, engine"));
  EXPECT_THAT(read("t = 5\n").message(), HasSubstr("must be a table"));
}

TEST(TomlValueTest, OfSeveralMistakesTheFirstInTheFileIsSaid) {
  const std::vector<TomlKey> keys = {};
  EXPECT_THAT(ReadTable(*ParseToml("zebra = 1\nant = 2\n", "a.toml"), keys).message(),
              HasSubstr("zebra"));
}

TEST(TomlValueTest, FilesThatCannotBeReadAreNamed) {
  const ScratchDirectory scratch;
  EXPECT_THAT(MessageOf(ReadSettingsFile(scratch.Sub("absent"))),
              AllOf(HasSubstr("absent"), HasSubstr("No such file")));
  EXPECT_FALSE(ReadSettingsFile(scratch.path()).ok());  // A directory.
  ASSERT_EQ(::mkfifo(scratch.Sub("pipe").c_str(), 0600), 0);
  EXPECT_THAT(MessageOf(ReadSettingsFile(scratch.Sub("pipe"))), HasSubstr("no regular file"))
      << "and nobody waits for a writer";
  std::ofstream(scratch.Sub("there")) << "a = 1\n";
  EXPECT_EQ(*ReadSettingsFile(scratch.Sub("there")), "a = 1\n");
}

}  // namespace
}  // namespace aquifer
