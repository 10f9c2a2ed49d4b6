// Which master keys a node uses, where its data keys lie, and which stores can be made at all.
#include "node/config/encryption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "node/config/node_stores.h"
#include "tenant/keys/master_keys.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

TierConfig Tier(StoreKind kind, const std::string& name) {
  TierConfig tier;
  tier.name = name;
  tier.kind = kind;
  tier.directory = "/mnt/" + name;
  tier.size_bytes = uint64_t{1} << 30;
  tier.endpoints = {kind == StoreKind::kRedis ? "127.0.0.1:1" : "https://127.0.0.1:1"};
  tier.bucket = "bucket";
  return tier;
}

class EncryptionTest : public testing::Test {
 protected:
  void WriteMaster(const std::string& text) {
    config_.master_key_file = scratch_.Sub("master");
    std::ofstream(config_.master_key_file) << text;
    ASSERT_EQ(::chmod(config_.master_key_file.c_str(), 0600), 0);
  }
  Result<std::vector<SecretKey>> Masters(const SecretEnvironment& environment = {}) {
    return MasterKeysFor(config_, environment, ::geteuid());
  }

  const ScratchDirectory scratch_;
  NodeConfig config_;
  KnownDirectories known_{scratch_.path()};
};

TEST_F(EncryptionTest, WithoutAMasterKeyOnlyThoseStartWhoMayDoWithout) {
  EXPECT_THAT(*Masters(), IsEmpty());
  config_.encryption = Encryption::kOn;
  EXPECT_THAT(Masters().status().message(),
              AllOf(HasSubstr("encryption = \"on\""), HasSubstr("openssl rand -hex 32")));
  config_.encryption = Encryption::kAuto;
  config_.tenants_file = "/etc/tenants.toml";
  EXPECT_THAT(Masters().status().message(),
              AllOf(HasSubstr("with tenants"), HasSubstr("encryption = \"off\"")));
  config_.encryption = Encryption::kOff;
  EXPECT_THAT(*Masters(), IsEmpty());
}

TEST_F(EncryptionTest, KeysComeFromTheFileElseFromTheEnvironmentWhichThenHasThemNoMore) {
  ASSERT_EQ(::setenv(kMasterKeyVariable, std::string(64, 'b').c_str(), 1), 0);
  const SecretEnvironment environment = SecretEnvironment::Take();
  EXPECT_EQ(std::getenv(kMasterKeyVariable), nullptr);
  EXPECT_THAT(*Masters(environment), SizeIs(1));
  EXPECT_THAT(*Masters(), IsEmpty());
  WriteMaster(std::string(64, 'c') + "\n" + std::string(64, 'd') + "\n");
  EXPECT_THAT(*Masters(environment), SizeIs(2));
  config_.encryption = Encryption::kOff;
  EXPECT_THAT(*Masters(environment), IsEmpty());
  config_.encryption = Encryption::kAuto;
  WriteMaster("nonsense");
  EXPECT_EQ(Masters(environment).status().code(), Code::kInvalid)
      << "a file that is wrong is not passed over";
}

TEST_F(EncryptionTest, WhatIsWrongIsSaidWithTheLineThatAsksForIt) {
  config_.places.by_key = {{"tenants", "n.toml:1"}, {"encryption", "n.toml:2"}};
  config_.tenants_file = "/etc/tenants.toml";
  EXPECT_THAT(Masters().status().message(), StartsWith("n.toml:1: tenants: with tenants, "));
  config_.encryption = Encryption::kOn;
  EXPECT_THAT(Masters().status().message(), StartsWith("n.toml:2: encryption: with encryption"));
  config_.places.by_key["master_key_file"] = "n.toml:3";
  config_.master_key_file = scratch_.Sub("absent");
  EXPECT_THAT(Masters().status().message(),
              StartsWith("n.toml:3: master_key_file: " + config_.master_key_file + " cannot be"));
}

TEST_F(EncryptionTest, DataKeysLieWhereAllNodesFindThem) {
  NodeHost host;
  host.state_directory = scratch_.Sub("state");
  EXPECT_EQ(PlaceOfKeys(config_, host)->Describe(), "in " + scratch_.Sub("state/keys"));
  config_.tiers = {Tier(StoreKind::kRedis, "near")};
  EXPECT_EQ(PlaceOfKeys(config_, host)->tier, nullptr) << "never in Redis";
  config_.tiers.push_back(Tier(StoreKind::kObject, "far"));
  config_.tiers.push_back(Tier(StoreKind::kPosix, "shared"));
  EXPECT_EQ(PlaceOfKeys(config_, host)->Describe(), "in tier far");
  config_.key_store = "shared";
  EXPECT_EQ(PlaceOfKeys(config_, host)->Describe(), "in tier shared");
  config_.key_store = "/srv/keys";
  EXPECT_EQ(PlaceOfKeys(config_, host)->Describe(), "in /srv/keys");
}

TEST_F(EncryptionTest, StoresThatCannotBeMadeAreNamed) {
  TierConfig redis = Tier(StoreKind::kRedis, "near");
  redis.tls = false;
  redis.password_file = scratch_.Sub("absent");
  EXPECT_THAT(NewStore(redis, {}, &known_).status().message(),
              AllOf(HasSubstr("tier near: "), HasSubstr("No such file")));
  TierConfig object = Tier(StoreKind::kObject, "far");
  object.credentials = scratch_.Sub("credentials");
  EXPECT_THAT(NewStore(object, {}, &known_).status().message(),
              AllOf(HasSubstr("tier far: "), HasSubstr("No such file")));
  std::ofstream(object.credentials) << "aws_access_key_id = a\naws_secret_access_key = b\n";
  ASSERT_EQ(::chmod(object.credentials.c_str(), 0640), 0);
  EXPECT_THAT(NewStore(object, {}, &known_).status().message(), HasSubstr("chmod 600"));
  object.credentials = kCredentialsFromWebIdentity;
  EXPECT_THAT(NewStore(object, {}, &known_).status().message(),
              HasSubstr("AWS_WEB_IDENTITY_TOKEN_FILE"));
}

TEST_F(EncryptionTest, AWebIdentityIsTakenWhateverElseIsSet) {
  TierConfig object = Tier(StoreKind::kObject, "far");
  object.credentials = kCredentialsFromWebIdentity;
  ASSERT_EQ(::setenv("AWS_ACCESS_KEY_ID", "a", 1), 0);
  ASSERT_EQ(::setenv("AWS_SECRET_ACCESS_KEY", "b", 1), 0);
  ASSERT_EQ(::setenv("AWS_SHARED_CREDENTIALS_FILE", "/f", 1), 0);
  const auto without = BucketOf(object, {});
  EXPECT_THAT(without.status().message(), HasSubstr("set it and AWS_ROLE_ARN"));
  ASSERT_EQ(::setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/t", 1), 0);
  const auto bucket = BucketOf(object, {});
  object.credentials = kCredentialsFromEnvironment;
  const auto other = BucketOf(object, {});
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                           "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"}) {
    ASSERT_EQ(::unsetenv(name), 0);
  }
  ASSERT_TRUE(bucket.ok()) << bucket.status().ToString();
  EXPECT_EQ(bucket->credentials.token_file, "/t");
  EXPECT_THAT(bucket->credentials.given.access_key, IsEmpty());
  EXPECT_THAT(bucket->credentials.given.secret_key, IsEmpty());
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_EQ(other->credentials.given.access_key, "a") << "as AWS's own tools choose";
  EXPECT_THAT(other->credentials.token_file, IsEmpty());
}

TEST_F(EncryptionTest, AStoreThatCannotBeReachedIsATierAllTheSame) {
  TierConfig redis = Tier(StoreKind::kRedis, "near");
  redis.tls = false;
  redis.writes = TierWrites::kAll;
  auto stores = NodeStores::New({redis}, {}, nullptr, "");
  ASSERT_TRUE(stores.ok()) << stores.status().ToString();
  EXPECT_NE((*stores)->Find("near"), nullptr);
  EXPECT_EQ((*stores)->Find("far"), nullptr);
  EXPECT_EQ((*stores)->packer(), nullptr) << "nothing is sealed";
  ASSERT_THAT((*stores)->Sources(), SizeIs(1));
  const DurableTierSource source = (*stores)->Sources()[0];
  EXPECT_EQ(source.name, "near");
  EXPECT_FALSE(source.lasting) << "Redis may drop what it has no room for";
  redis.writes = TierWrites::kDurable;  // Somebody says that it does not.
  stores = NodeStores::New({redis}, {}, nullptr, "");
  ASSERT_TRUE(stores.ok()) << stores.status().ToString();
  EXPECT_TRUE((*stores)->Sources()[0].lasting);
}

}  // namespace
}  // namespace aquifer
