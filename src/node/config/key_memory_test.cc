// Data keys stay where they are: by default whatever tiers come and go, where another place is
// named until it has them all, and where nothing is mounted nobody makes others.
#include "node/config/key_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/crypto/random.h"
#include "base/crypto/secret_key.h"
#include "node/config/encryption.h"
#include "tenant/keys/data_keys.h"
#include "tenant/keys/key_wrapper.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class KeyMemoryTest : public testing::Test {
 protected:
  KeyMemoryTest() { host_.state_directory = scratch_.Sub("state"); }

  TierConfig Directory(const std::string& name) const {
    TierConfig tier;
    tier.name = name;
    tier.directory = scratch_.Sub(name);
    tier.size_bytes = uint64_t{1} << 30;
    return tier;
  }
  static TierConfig Bucket(const std::string& name, const std::string& endpoint) {
    TierConfig tier;
    tier.name = name;
    tier.kind = StoreKind::kObject;
    tier.bucket = "kv-cache";
    tier.endpoints = {endpoint};
    return tier;
  }
  // As the stores of posix tiers do when their directories are there.
  void OpenStores() const {
    for (const TierConfig& tier : config_.tiers) {
      if (tier.kind != StoreKind::kPosix) continue;
      fs::create_directories(tier.directory);
      std::ofstream(tier.directory + "/aquifer-store") << "a marker";
    }
  }

  Result<std::unique_ptr<KeyStore>> Open(const std::string& socket = "/run/a.sock") {
    said_.clear();
    AQ_ASSIGN_OR_RETURN(const KeyPlace place, PlaceOfKeys(config_, host_));
    return OpenKeys(config_, place, MemoryOfKeys(host_, socket), {},
                    [this](const std::string& line) { said_.push_back(line); });
  }
  // A node's life in which a tenant stores something: which key it has, or what went wrong.
  std::string Live(const std::string& socket = "/run/a.sock") {
    const auto store = Open(socket);
    if (!store.ok()) return store.status().message();
    OpenStores();
    SecretKey master;
    master.writable()[0] = std::byte{7};
    const auto wrapper = *NewMasterKeyWrapper(std::span(&master, 1), SystemRandom());
    const auto key =
        DataKeys(store->get(), wrapper.get(), SystemRandom()).GetOrMake(TenantIdOf("red"));
    if (!key.ok()) return key.status().message();
    const auto* const id = reinterpret_cast<const char*>((*key)->id.data());
    return "key " + std::string(id, (*key)->id.size());
  }
  std::string Text(const std::string& path) const {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  const ScratchDirectory scratch_;
  NodeHost host_;
  NodeConfig config_;
  std::vector<std::string> said_;
};

TEST_F(KeyMemoryTest, ATierThatIsAddedTakesNoKeysAlong) {
  const std::string key = Live();
  ASSERT_THAT(key, HasSubstr("key "));
  EXPECT_EQ(Live(), key);
  config_.tiers = {Directory("shared")};
  EXPECT_THAT(Live(), AllOf(HasSubstr("data keys are in " + scratch_.Sub("state/keys") + ","),
                            HasSubstr("would be made in " + scratch_.Sub("shared/keys") + ","),
                            HasSubstr("key_store = \"" + scratch_.Sub("state/keys") + "\""),
                            HasSubstr("key_store = \"shared\"")));
  EXPECT_FALSE(fs::exists(scratch_.Sub("shared"))) << "nothing is made there";
  config_.key_store = scratch_.Sub("state/keys");
  EXPECT_EQ(Live(), key);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(KeyMemoryTest, NorDoesOneThatIsPutFirstOrIsGone) {
  config_.tiers = {Directory("shared")};
  const std::string key = Live();
  ASSERT_THAT(key, HasSubstr("key "));
  config_.tiers = {Directory("first"), Directory("shared")};
  EXPECT_THAT(Live(),
              AllOf(HasSubstr("key_store = \"shared\""), HasSubstr("key_store = \"first\"")));
  config_.key_store = "shared";
  EXPECT_EQ(Live(), key);
  // Another name is no other place.
  config_.key_store = "";
  config_.tiers = {Directory("shared")};
  config_.tiers[0].name = "renamed";
  EXPECT_EQ(Live(), key);
  config_.tiers.clear();
  EXPECT_THAT(Live(), AllOf(HasSubstr("key_store = \"" + scratch_.Sub("shared/keys") + "\""),
                            HasSubstr("key_store = \"" + scratch_.Sub("state/keys") + "\"")));
  config_.key_store = scratch_.Sub("shared/keys");
  EXPECT_EQ(Live(), key);
}

TEST_F(KeyMemoryTest, NodesOfOneHostHaveEachTheirOwn) {
  const std::string key = Live();
  config_.tiers = {Directory("shared")};
  const std::string other = Live("/run/b.sock");
  EXPECT_THAT(other, HasSubstr("key "));
  EXPECT_NE(other, key);
  EXPECT_THAT(Live(), HasSubstr("key_store = "));
}

TEST_F(KeyMemoryTest, APlaceThatIsNamedMustHaveAllOfTheOldOnes) {
  const std::string key = Live();
  config_.tiers = {Directory("shared")};
  config_.key_store = "shared";
  EXPECT_THAT(Live(), AllOf(HasSubstr("are in " + scratch_.Sub("state/keys") + ","),
                            HasSubstr("of 1 tenants are not in " + scratch_.Sub("shared/keys")),
                            HasSubstr("key_store = \"" + scratch_.Sub("state/keys") + "\""),
                            HasSubstr("copy all that is there"),
                            HasSubstr("remove " + MemoryOfKeys(host_, "/run/a.sock").file())));
  // Another key of the same tenant is not it.
  {
    const std::string other = Live("/run/b.sock");
    ASSERT_THAT(other, HasSubstr("key "));
    EXPECT_THAT(Live(), HasSubstr("of 1 tenants"));
    fs::remove_all(scratch_.Sub("shared"));
  }
  fs::create_directories(scratch_.Sub("shared"));
  fs::copy(scratch_.Sub("state/keys"), scratch_.Sub("shared/keys"));
  EXPECT_EQ(Live(), key);
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("were in " + scratch_.Sub("state/keys")),
                                       HasSubstr("are in " + scratch_.Sub("shared/keys") + " now"),
                                       HasSubstr("destroy the old ones"))));
  // From now on they are there, and it is not said again.
  EXPECT_EQ(Live(), key);
  EXPECT_THAT(said_, IsEmpty());
  config_.key_store = "";
  EXPECT_EQ(Live(), key) << "and it is the default";
}

// It may be a mount point, which a file of ours would make look like a key store.
TEST_F(KeyMemoryTest, ANamedPlaceThatIsEmptyStaysEmptyWhereItIsRefused) {
  ASSERT_THAT(Live(), HasSubstr("key "));
  config_.key_store = scratch_.Sub("mount");
  fs::create_directory(scratch_.Sub("mount"));
  EXPECT_THAT(Live(), HasSubstr("of 1 tenants are not in " + scratch_.Sub("mount")));
  EXPECT_TRUE(fs::is_empty(scratch_.Sub("mount")));
}

TEST_F(KeyMemoryTest, WhereTheOldOnesCannotBeSeenNothingIsChanged) {
  config_.key_store = scratch_.Sub("mount");
  ASSERT_THAT(Live(), HasSubstr("key "));
  fs::rename(scratch_.Sub("mount"), scratch_.Sub("elsewhere"));
  fs::create_directory(scratch_.Sub("mount"));  // Where it would be mounted.
  config_.key_store = scratch_.Sub("others");
  EXPECT_THAT(Live(), AllOf(HasSubstr("cannot be told"), HasSubstr("is its file system mounted?")));
  // Whoever means to begin anew says so.
  fs::remove(MemoryOfKeys(host_, "/run/a.sock").file());
  EXPECT_THAT(Live(), HasSubstr("key "));
}

TEST_F(KeyMemoryTest, ABucketIsTheSameByAnotherNameAndThroughAnotherServer) {
  const KeyMemory memory = MemoryOfKeys(host_, "/run/a.sock");
  const auto place = [this] { return PlaceOfKeys(config_, host_)->Address(); };
  config_.tiers = {Bucket("far", "https://one")};
  ASSERT_TRUE(memory.Remember(place()).ok());
  config_.tiers[0].name = "renamed";
  config_.tiers[0].endpoints = {"https://two", "https://one"};
  EXPECT_TRUE((*memory.Recall())->IsSame(place()));
  config_.tiers[0].endpoints = {"https://two"};
  EXPECT_THAT(Live(), AllOf(HasSubstr("in bucket kv-cache of https://one"),
                            HasSubstr("in bucket kv-cache of https://two"),
                            HasSubstr("the name of a [[tier]] with that bucket")));
  config_.key_store = "renamed";
  EXPECT_THAT(Live(), HasSubstr("cannot be told (no [[tier]] here has that bucket)"));
  config_.tiers[0] = Bucket("far", "https://one");
  config_.tiers[0].prefix = "below";
  EXPECT_FALSE((*memory.Recall())->IsSame(place()));
  config_.tiers = {Directory("shared")};
  config_.key_store = "";
  EXPECT_THAT(Live(), HasSubstr("in bucket kv-cache of https://one"));
}

TEST_F(KeyMemoryTest, AKeyStoreOnATierThatIsNotThereIsWaitedFor) {
  config_.tiers = {Directory("absent")};
  const auto keys = Open();
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  EXPECT_EQ((*keys)->List().status().code(), Code::kUnavailable);
  const std::byte value[] = {std::byte{1}};
  EXPECT_EQ((*keys)->Create("a", value).status().code(), Code::kUnavailable);
  EXPECT_FALSE(fs::exists(MemoryOfKeys(host_, "/run/a.sock").file()))
      << "there are no keys yet that could be left behind";
  OpenStores();
  EXPECT_TRUE(*(*keys)->Create("a", value));
  EXPECT_TRUE(fs::exists(MemoryOfKeys(host_, "/run/a.sock").file()));
}

// As when the host starts and the file system is not mounted. A posix tier then makes itself at
// home in the directory where it would be.
TEST_F(KeyMemoryTest, NobodyMakesKeysWhereThereWereSomeAndIsNothingNow) {
  for (const std::string where : {"tier", "directory", "state"}) {
    SCOPED_TRACE(where);
    const ScratchDirectory scratch;
    host_.state_directory = scratch.Sub("state");
    std::string mount = scratch.Sub("mount");
    config_ = {};
    if (where == "directory") config_.key_store = mount;
    if (where == "state") mount = scratch.Sub("state/keys");
    if (where == "tier") {
      config_.tiers = {Directory("shared")};
      config_.tiers[0].directory = mount;
    }
    const std::string key = Live();
    ASSERT_THAT(key, HasSubstr("key "));
    fs::rename(mount, scratch.Sub("elsewhere"));
    fs::create_directory(mount);
    EXPECT_THAT(Live(), HasSubstr("is its file system mounted?"));
    EXPECT_FALSE(fs::exists(mount + "/keys"));
    fs::remove_all(mount);
    fs::rename(scratch.Sub("elsewhere"), mount);
    EXPECT_EQ(Live(), key);
  }
}

TEST_F(KeyMemoryTest, WhatItWritesIsAsDescribed) {
  const KeyMemory memory = MemoryOfKeys(host_, "/run/aquifer/aquifer.sock");
  // The first 8 bytes of `printf /run/aquifer/aquifer.sock | sha256sum`.
  EXPECT_EQ(memory.file(), scratch_.Sub("state/key-store-05757dd0d82e025f"));
  ASSERT_TRUE(memory.Remember({.directory = "/mnt/shared/keys"}).ok());
  EXPECT_EQ(Text(memory.file()),
            "aquifer key store 1\nsocket /run/aquifer/aquifer.sock\ndirectory /mnt/shared/keys\n");
  ASSERT_TRUE(
      memory.Remember({.bucket = "kv", .prefix = "", .endpoints = {"https://a", "https://b"}})
          .ok());
  EXPECT_EQ(Text(memory.file()),
            "aquifer key store 1\nsocket /run/aquifer/aquifer.sock\nbucket kv\nprefix \n"
            "endpoint https://a\nendpoint https://b\n");
  EXPECT_THAT((*memory.Recall())->endpoints, ElementsAre("https://a", "https://b"));
}

TEST_F(KeyMemoryTest, OneThatCannotBeReadStopsTheNode) {
  const std::string file = MemoryOfKeys(host_, "/run/a.sock").file();
  for (const std::string text :
       {"", "aquifer key store 2\n", "aquifer key store 1\n", "aquifer key store 1\nnonsense\n",
        "aquifer key store 1\nbucket a\nprefix \n",
        "aquifer key store 1\ndirectory /a\nendpoint https://b\n"}) {
    std::ofstream(file) << text;
    EXPECT_THAT(Live(), AllOf(HasSubstr(file), HasSubstr("remove the file"))) << text;
  }
}

TEST_F(KeyMemoryTest, WhereNothingCanBeRememberedThatIsSaid) {
  host_.state_directory = "/proc/none";
  config_.tiers = {Directory("shared")};
  EXPECT_THAT(Live(), HasSubstr("key "));
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("cannot be remembered"), HasSubstr("key_store"))));
  config_.key_store = "shared";
  EXPECT_THAT(Live(), HasSubstr("key "));
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace aquifer
