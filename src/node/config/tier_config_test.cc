#include "node/config/tier_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/config/node_config.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kPosix =
    "[[tier]]\nname = \"d\"\nkind = \"posix\"\ndirectory = \"/mnt/d\"\nsize = \"1TiB\"\n";
const std::string kRedis =
    "[[tier]]\nname = \"r\"\nkind = \"redis\"\nendpoints = [\"10.0.0.7:6379\"]\n";
const std::string kObject = "[[tier]]\nname = \"o\"\nkind = \"object\"\nbucket = \"kv-cache\"\n";

std::vector<TierConfig> Parsed(const std::string& text) {
  const Result<NodeConfig> config = ParseNodeConfig(text, "n.toml");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? config->tiers : std::vector<TierConfig>(1);
}

std::string Refusal(const std::string& text) {
  const Result<NodeConfig> config = ParseNodeConfig(text, "n.toml");
  EXPECT_EQ(config.status().code(), Code::kInvalid) << text;
  return config.status().message();
}

TEST(TierConfigTest, EveryKeyIsRead) {
  const auto tiers = Parsed(
      kPosix + "sync = true\nwrites = \"all\"\nwrite_budget = \"200MB\"\nlossless = \"on\"\n" +
      kRedis +
      "prefix = \"p\"\nuser = \"u\"\npassword_file = \"/etc/p\"\ntls = false\nca_file = "
      "\"/etc/ca\"\n" +
      "writes = \"nothing\"\n" + kObject +
      "endpoints = [\"https://s3.example.com:9000/\", \"http://[::1]\"]\nprefix = \"a/b\"\n"
      "region = \"eu-central-1\"\naddressing = \"virtual-host\"\ncredentials = \"/etc/c\"\n"
      "ca_file = \"/etc/ca\"\nallow_plain_http = true\nlossless = \"off\"\n");
  ASSERT_EQ(tiers.size(), 3u);
  TierConfig posix;
  posix.name = "d";
  posix.directory = "/mnt/d";
  posix.size_bytes = uint64_t{1} << 40;
  posix.sync = true;
  posix.writes = TierWrites::kAll;
  posix.write_bytes_per_second = 200'000'000;
  posix.lossless = LosslessChoice::kOn;
  EXPECT_EQ(tiers[0], posix);
  TierConfig redis;
  redis.name = "r";
  redis.kind = StoreKind::kRedis;
  redis.writes = TierWrites::kNothing;
  redis.endpoints = {"10.0.0.7:6379"};
  redis.prefix = "p";
  redis.user = "u";
  redis.password_file = "/etc/p";
  redis.tls = false;
  redis.ca_file = "/etc/ca";
  EXPECT_EQ(tiers[1], redis);
  TierConfig object;
  object.name = "o";
  object.kind = StoreKind::kObject;
  object.lossless = LosslessChoice::kOff;
  object.endpoints = {"https://s3.example.com:9000", "http://[::1]"};
  object.ca_file = "/etc/ca";
  object.bucket = "kv-cache";
  object.prefix = "a/b";
  object.region = "eu-central-1";
  object.virtual_host = true;
  object.credentials = "/etc/c";
  object.allow_plain_http = true;
  EXPECT_EQ(tiers[2], object);
}

TEST(TierConfigTest, ARedisTierIsASharedCacheUnlessItSaysOtherwise) {
  EXPECT_EQ(Parsed(kRedis)[0].writes, TierWrites::kAll);
  EXPECT_EQ(Parsed(kRedis + "writes = \"durable\"\n")[0].writes, TierWrites::kDurable);
  EXPECT_EQ(Parsed(kPosix)[0].writes, TierWrites::kDurable);
}

TEST(TierConfigTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(Refusal("[[tier]]\nname = \"x\"\n"),
              AllOf(StartsWith("n.toml:1: "), HasSubstr("\"posix\" or \"redis\" or \"object\"")));
  EXPECT_THAT(Refusal("[[tier]]\nkind = \"posix\"\n"), HasSubstr("needs 'name'"));
  EXPECT_THAT(Refusal("[[tier]]\nname = \"x\"\nkind = \"posix\"\n"),
              HasSubstr("needs 'directory'"));
  EXPECT_THAT(Refusal("[[tier]]\nname = \"x\"\nkind = \"posix\"\ndirectory = \"/x\"\n"),
              HasSubstr("needs 'size'"));
  EXPECT_THAT(Refusal("[[tier]]\nname = \"x\"\nkind = \"redis\"\n"),
              HasSubstr("needs 'endpoints'"));
  EXPECT_THAT(Refusal("[[tier]]\nname = \"x\"\nkind = \"redis\"\nendpoints = []\n"),
              HasSubstr("at least one server"));
  EXPECT_THAT(Refusal("[[tier]]\nname = \"x\"\nkind = \"object\"\n"), HasSubstr("needs 'bucket'"));
  EXPECT_THAT(Refusal(kRedis + "user = \"u\"\n"), HasSubstr("no password_file"));
}

TEST(TierConfigTest, UnknownKeysAndThoseOfOtherKindsAreRefused) {
  EXPECT_THAT(Refusal(kPosix + "snyc = true\n"),
              AllOf(StartsWith("n.toml:6: "), HasSubstr("did you mean 'sync'?")));
  EXPECT_THAT(Refusal(kPosix + "bucket = \"b\"\n"),
              HasSubstr("'bucket' is for tiers of kind object, and this one is posix"));
  EXPECT_THAT(Refusal(kPosix + "ca_file = \"/b\"\n"), HasSubstr("redis and object"));
  EXPECT_THAT(Refusal("[[tier]]\nkind = \"s3\"\n"), HasSubstr("\"posix\", \"redis\", \"object\""));
  EXPECT_THAT(Refusal("[tier]\nname = \"x\"\n"), HasSubstr("two pairs of brackets"));
  EXPECT_THAT(Refusal("tier = [1]\n"), HasSubstr("two pairs of brackets"));
}

TEST(TierConfigTest, ImpossibleValuesAreRefusedWithTheReason) {
  for (const char* name : {"", "A", "a b", "dram", "auto", "x/y"}) {
    EXPECT_THAT(Refusal("[[tier]]\nname = \"" + std::string(name) + "\"\nkind = \"redis\"\n"),
                HasSubstr("tier[0].name"));
  }
  const std::string posix = "[[tier]]\nname = \"x\"\nkind = \"posix\"\n";
  EXPECT_THAT(Refusal(posix + "directory = \"mnt\"\n"), HasSubstr("absolute path"));
  EXPECT_THAT(Refusal(posix + "size = \"5MiB\"\n"), HasSubstr("at least 1GiB"));
  EXPECT_THAT(Refusal(posix + "write_budget = 5\n"), HasSubstr("unlimited"));
  EXPECT_THAT(Refusal(posix + "writes = \"some\"\n"), HasSubstr("\"durable\", \"all\""));
  EXPECT_THAT(Refusal(posix + "lossless = true\n"), HasSubstr("a text in quotes"));
  const std::string redis = "[[tier]]\nname = \"x\"\nkind = \"redis\"\n";
  for (const char* server :
       {"", "host", "host:", "host:0", "host:65536", "::1:5", "u@h:1", "h/x:1"}) {
    EXPECT_THAT(Refusal(redis + "endpoints = [\"" + std::string(server) + "\"]\n"),
                HasSubstr("10.0.0.7:6379"));
  }
  const std::string object = "[[tier]]\nname = \"x\"\nkind = \"object\"\n";
  for (const char* server : {"host:1", "ftp://h", "https://", "https://h/path", "https://u:p@h"}) {
    EXPECT_THAT(Refusal(object + "endpoints = [\"" + std::string(server) + "\"]\n"),
                HasSubstr("https://s3.example.com:9000"));
  }
  for (const char* server : {"http://10.0.0.7:9000", "http://127.evil.example"}) {
    EXPECT_THAT(Refusal(kObject + "endpoints = [\"" + std::string(server) + "\"]\n"),
                HasSubstr("allow_plain_http = true"));
  }
  EXPECT_EQ(Parsed(kObject + "endpoints = [\"http://127.0.0.1:9000\"]\n").size(), 1u);
  EXPECT_THAT(Refusal(object + "bucket = \"A\"\n"), HasSubstr("3 to 63"));
  EXPECT_THAT(Refusal(object + "prefix = \"/a\"\n"), HasSubstr("a prefix has"));
  EXPECT_THAT(Refusal(object + "region = \"\"\n"), HasSubstr("eu-central-1"));
  EXPECT_THAT(Refusal(object + "credentials = \"AKIASECRET\"\n"),
              AllOf(HasSubstr("secrets do not belong here"), Not(HasSubstr("AKIA"))));
}

// Whoever pasted one where it does not belong should not find it in a log.
TEST(TierConfigTest, WhatMayBeASecretIsNotRepeated) {
  const std::string redis = "[[tier]]\nname = \"r\"\nkind = \"redis\"\n";
  const std::string object = "[[tier]]\nname = \"o\"\nkind = \"object\"\nbucket = \"abc\"\n";
  for (const char* const server : {"redis://me:SECRET@10.0.0.7:6379", "me:SECRET@10.0.0.7:6379"}) {
    EXPECT_THAT(Refusal(fmt::format("{}endpoints = [\"{}\"]\n", redis, server)),
                AllOf(HasSubstr("password_file"), Not(HasSubstr("SECRET"))));
  }
  EXPECT_THAT(Refusal(redis + "endpoints = [\"10.0.0.7:6379\"]\npassword_file = \"SECRET\"\n"),
              AllOf(HasSubstr("neither an absolute path"), Not(HasSubstr("SECRET"))));
  EXPECT_THAT(Refusal(object + "endpoints = [\"https://AKIA:SECRET@s3.local\"]\n"),
              AllOf(HasSubstr("credentials"), Not(HasSubstr("SECRET"))));
}

TEST(TierConfigTest, TwoTiersShareNeitherNameNorPlace) {
  EXPECT_THAT(Refusal(kPosix + "[[tier]]\nname = \"d\"\nkind = \"object\"\nbucket = \"abc\"\n"),
              AllOf(StartsWith("n.toml:6: "), HasSubstr("there already, at n.toml:1")));
  EXPECT_THAT(
      Refusal(kPosix + "[[tier]]\nname = \"e\"\nkind = \"posix\"\ndirectory = \"/mnt/x/../d\"\n"
                       "size = \"1TiB\"\n"),
      HasSubstr("the same place"));
  std::string many;
  for (int i = 0; i < 6; ++i) {
    many += "[[tier]]\nname = \"t" + std::to_string(i) +
            "\"\nkind = \"object\"\nbucket = \"bucket" + std::to_string(i) + "\"\n";
  }
  EXPECT_THAT(Refusal(many), HasSubstr("at most 5"));
}

}  // namespace
}  // namespace aquifer
