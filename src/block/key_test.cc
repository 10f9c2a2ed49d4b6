#include "aquifer/key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "block/block_id.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using testing::HasSubstr;

Digest DigestOf(uint8_t fill) {
  Digest digest;
  digest.fill(static_cast<std::byte>(fill));
  return digest;
}

ChainRoot SomeRoot() {
  return {.tenant = "acme",
          .layout_fingerprint = DigestOf(1),
          .adapter_digest = {},
          .cache_salt = "salt"};
}

std::vector<uint32_t> SomeTokens(size_t count, uint64_t seed = 1) {
  SeededRandom random(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random.Below(128'256));
  return tokens;
}

std::vector<Key> Chain(const std::vector<uint32_t>& tokens, uint32_t tokens_per_block,
                       const std::vector<Extra>& extras = {}, const Key& parent = Key()) {
  std::vector<Key> keys(tokens.size() / tokens_per_block);
  const Result<size_t> count = DeriveChain(parent, tokens, tokens_per_block, extras, keys);
  EXPECT_TRUE(count.ok()) << count.status().ToString();
  EXPECT_EQ(*count, keys.size());
  return keys;
}

TEST(DeriveRootTest, EveryFieldChangesTheRoot) {
  std::vector<ChainRoot> roots(6, SomeRoot());
  roots[1].tenant = "acmf";
  roots[2].layout_fingerprint = DigestOf(2);
  roots[3].adapter_digest = DigestOf(3);
  roots[4].cache_salt = "Salt";
  roots[5].cache_salt = {};
  std::set<Key> keys;
  for (const ChainRoot& root : roots) keys.insert(*DeriveRoot(root));
  EXPECT_EQ(keys.size(), roots.size());
}

TEST(DeriveRootTest, BytesCannotMoveFromOneFieldToTheNext) {
  ChainRoot one = SomeRoot();
  ChainRoot other = SomeRoot();
  one.tenant = "ab";
  one.cache_salt = "c";
  other.tenant = "a";
  other.cache_salt = "bc";
  EXPECT_NE(*DeriveRoot(one), *DeriveRoot(other));
}

TEST(DeriveRootTest, LongestFieldsAreTakenAndLongerOnesRefusedByName) {
  const std::string tenant(64, 't');
  const std::string salt(256, 's');
  ChainRoot root = SomeRoot();
  root.tenant = tenant;
  root.cache_salt = salt;
  EXPECT_TRUE(DeriveRoot(root).ok());

  const std::string long_tenant(65, 't');
  root.tenant = long_tenant;
  EXPECT_EQ(DeriveRoot(root).status().ToString(),
            "invalid: tenant has 65 bytes; 1 to 64 are allowed");
  root.tenant = "";
  EXPECT_EQ(DeriveRoot(root).status().ToString(),
            "invalid: tenant has 0 bytes; 1 to 64 are allowed");
  root.tenant = "t";
  const std::string long_salt(257, 's');
  root.cache_salt = long_salt;
  EXPECT_EQ(DeriveRoot(root).status().ToString(),
            "invalid: cache_salt has 257 bytes; at most 256 are allowed");
}

TEST(DeriveChainTest, PromptsShareKeysExactlyAsFarAsTheyShareTokens) {
  const std::vector<uint32_t> tokens = SomeTokens(160);
  const std::vector<Key> keys = Chain(tokens, 16);
  for (size_t changed = 0; changed < tokens.size(); changed += 7) {
    std::vector<uint32_t> other = tokens;
    other[changed] ^= 1;
    const std::vector<Key> other_keys = Chain(other, 16);
    for (size_t block = 0; block < keys.size(); ++block) {
      EXPECT_EQ(keys[block] == other_keys[block], block < changed / 16) << changed;
    }
  }
}

TEST(DeriveChainTest, ALastPartialBlockGetsNoKeyAndChangesNone) {
  const std::vector<uint32_t> tokens = SomeTokens(47);
  const std::vector<uint32_t> whole(tokens.begin(), tokens.begin() + 32);
  EXPECT_EQ(Chain(tokens, 16), Chain(whole, 16));
}

TEST(DeriveChainTest, FewerTokensThanABlockGiveNoKeys) {
  EXPECT_TRUE(Chain(SomeTokens(15), 16).empty());
  EXPECT_TRUE(Chain({}, 16).empty());
}

TEST(DeriveChainTest, AChainGoesOnFromItsLastKey) {
  const std::vector<uint32_t> tokens = SomeTokens(96);
  const std::vector<Key> keys = Chain(tokens, 16);
  const std::vector<uint32_t> rest(tokens.begin() + 48, tokens.end());
  const std::vector<Key> rest_keys = Chain(rest, 16, {}, keys[2]);
  EXPECT_TRUE(std::equal(rest_keys.begin(), rest_keys.end(), keys.begin() + 3));
}

TEST(DeriveChainTest, TheSameTokensInOtherBlocksOrUnderAnotherParentHaveOtherKeys) {
  const std::vector<uint32_t> tokens = SomeTokens(64);
  std::set<Key> seen;
  size_t made = 0;
  for (const uint32_t tokens_per_block : {1u, 4u, 16u, 64u}) {
    for (const uint8_t parent : {0, 1}) {
      for (const Key& key : Chain(tokens, tokens_per_block, {}, Key{DigestOf(parent)})) {
        seen.insert(key);
        ++made;
      }
    }
  }
  EXPECT_EQ(seen.size(), made);
}

TEST(DeriveChainTest, TokenZeroCounts) {
  EXPECT_NE(Chain({0}, 1).back(), Chain({0, 0}, 1).back());
  EXPECT_NE(Chain({0}, 1).back(), Chain({0, 0}, 2).back());
}

TEST(DeriveChainTest, AnExtraChangesItsBlockAndAllThatFollow) {
  const std::vector<uint32_t> tokens = SomeTokens(64);
  const std::vector<Key> plain = Chain(tokens, 16);
  const std::vector<Key> pictured = Chain(tokens, 16, {{.block = 2, .tag = 1, .value = "cat"}});
  EXPECT_EQ(plain[0], pictured[0]);
  EXPECT_EQ(plain[1], pictured[1]);
  EXPECT_NE(plain[2], pictured[2]);
  EXPECT_NE(plain[3], pictured[3]);
}

TEST(DeriveChainTest, TagValueOrderAndNumberOfExtrasAllCount) {
  const std::vector<uint32_t> tokens = SomeTokens(16);
  const std::vector<std::vector<Extra>> variants = {
      {},
      {{.block = 0, .tag = 1, .value = ""}},
      {{.block = 0, .tag = 1, .value = "ab"}},
      {{.block = 0, .tag = 2, .value = "ab"}},
      {{.block = 0, .tag = 1, .value = "a"}, {.block = 0, .tag = 1, .value = "b"}},
      {{.block = 0, .tag = 1, .value = "b"}, {.block = 0, .tag = 1, .value = "a"}},
  };
  std::set<Key> seen;
  for (const auto& extras : variants) seen.insert(Chain(tokens, 16, extras).back());
  EXPECT_EQ(seen.size(), variants.size());
}

TEST(DeriveChainTest, LargeBlocksAndExtrasAreHashedWhole) {
  // More than the buffer in which small messages are gathered.
  std::vector<uint32_t> tokens = SomeTokens(4096);
  const std::string value(4096, 'v');
  std::string other_value = value;
  other_value.back() = 'w';
  const std::vector<Extra> extras = {{.block = 0, .tag = 1, .value = value},
                                     {.block = 0, .tag = 1, .value = "x"}};
  const Key key = Chain(tokens, 4096, extras).back();
  EXPECT_EQ(Chain(tokens, 4096, extras).back(), key);
  EXPECT_NE(Chain(tokens, 4096, {{.block = 0, .tag = 1, .value = other_value}, extras[1]}).back(),
            key);
  tokens.back() ^= 1;
  EXPECT_NE(Chain(tokens, 4096, extras).back(), key);
}

TEST(DeriveChainTest, ExtrasOfTheLastPartialBlockAreTakenAndIgnored) {
  const std::vector<uint32_t> tokens = SomeTokens(20);
  EXPECT_EQ(Chain(tokens, 16, {{.block = 1, .tag = 1, .value = "cat"}}), Chain(tokens, 16));
}

TEST(DeriveChainTest, MistakesAreNamed) {
  const std::vector<uint32_t> tokens = SomeTokens(64);
  std::vector<Key> keys(4);
  const auto message = [&](uint32_t tokens_per_block, const std::vector<Extra>& extras) {
    const Status status = DeriveChain(Key(), tokens, tokens_per_block, extras, keys).status();
    EXPECT_EQ(status.code(), Code::kInvalid);
    return status.message();
  };
  EXPECT_EQ(message(0, {}), "tokens_per_block is zero");
  EXPECT_EQ(message(8, {}), "keys has room for 4 of 8 blocks");
  EXPECT_EQ(message(16, {{.block = 2, .tag = 1}, {.block = 1, .tag = 1}}),
            "extra 1 (block 1) comes after block 2");
  EXPECT_EQ(message(16, {{.block = 4, .tag = 1}}),
            "extra 0 is for block 4, but there are 4 blocks");
  EXPECT_EQ(message(16, {{.block = 0, .tag = 0}}), "extra 0 has tag 0");
  const std::string value(4097, 'v');
  EXPECT_EQ(message(16, {{.block = 0, .tag = 1, .value = value}}),
            "extra 0 has 4097 bytes; at most 4096 are allowed");
}

TEST(DeriveChainTest, ARefusedRequestWritesNoKeys) {
  std::vector<Key> keys(4);
  EXPECT_FALSE(
      DeriveChain(Key(), SomeTokens(64), 16, std::vector<Extra>{{.block = 9, .tag = 1}}, keys)
          .ok());
  for (const Key& key : keys) EXPECT_EQ(key, Key());
}

TEST(DeriveChainTest, KeysBeyondTheLastBlockAreLeftAlone) {
  const Key mark = {DigestOf(9)};
  std::vector<Key> keys(5, mark);
  EXPECT_EQ(*DeriveChain(Key(), SomeTokens(64), 16, {}, keys), 4u);
  EXPECT_NE(keys[3], mark);
  EXPECT_EQ(keys[4], mark);
}

TEST(DeriveChainTest, ManyThreadsDeriveAtOnce) {
  const std::vector<Key> expected = Chain(SomeTokens(1600), 16);
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) EXPECT_EQ(Chain(SomeTokens(1600), 16), expected);
    });
  }
}

TEST(KeyTest, HexGoesThereAndBack) {
  SeededRandom random(5);
  for (int i = 0; i < 100; ++i) {
    Key key;
    random.Fill(key.bytes);
    std::string hex = key.ToHex();
    ASSERT_EQ(hex.size(), 64u);
    EXPECT_EQ(*KeyFromHex(hex), key);
    for (char& c : hex) c = static_cast<char>(std::toupper(c));
    EXPECT_EQ(*KeyFromHex(hex), key);
  }
}

TEST(KeyTest, TheFirstByteComesFirst) {
  Key key;
  key.bytes[0] = std::byte{0xab};
  key.bytes[31] = std::byte{0x0f};
  EXPECT_EQ(key.ToHex(), "ab" + std::string(60, '0') + "0f");
  EXPECT_EQ(key.Prefix64(), 0xabu);
}

TEST(KeyTest, TextThatIsNoKeyIsRefused) {
  const std::string good(64, 'a');
  EXPECT_THAT(KeyFromHex("").status().message(), HasSubstr("here are 0 characters"));
  EXPECT_THAT(KeyFromHex(good + "a").status().message(), HasSubstr("here are 65 characters"));
  EXPECT_THAT(KeyFromHex(good.substr(1)).status().message(), HasSubstr("here are 63 characters"));
  for (const char bad : {'g', 'G', '/', ':', '@', '`', ' ', '\0', '\xff', '-'}) {
    std::string text = good;
    text[17] = bad;
    EXPECT_EQ(KeyFromHex(text).status().code(), Code::kInvalid) << static_cast<int>(bad);
    EXPECT_THAT(KeyFromHex(text).status().message(), HasSubstr("character 17"));
  }
}

TEST(TenantIdTest, EveryNameHasItsOwnId) {
  EXPECT_EQ(TenantIdOf("acme"), TenantIdOf("acme"));
  EXPECT_NE(TenantIdOf("acme"), TenantIdOf("Acme"));
  EXPECT_NE(TenantIdOf("acme"), TenantIdOf("acme "));
}

TEST(BlockIdTest, EveryPartOfAnIdentityCounts) {
  const BlockId id = {.tenant = TenantIdOf("a"), .key = {DigestOf(1)}, .group = 1, .part = 2};
  std::vector<BlockId> others(4, id);
  others[0].tenant = TenantIdOf("b");
  others[1].key = {DigestOf(2)};
  others[2].group = 2;
  others[3].part = 1;
  for (const BlockId& other : others) {
    EXPECT_NE(id, other);
    EXPECT_NE(BlockHash(1)(id), BlockHash(1)(other));
  }
}

// A client can send them: they must not fall together, nor where it could have worked that out.
TEST(BlockIdTest, KeysThatBeginAlikeDoNotHashAlike) {
  std::set<uint64_t> hashes;
  std::set<uint64_t> places;  // In a table of 64 Ki.
  for (size_t i = 0; i < 4096; ++i) {
    BlockId id{.tenant = TenantIdOf("a"), .key = {}, .group = 0, .part = 0};
    id.key.bytes[8 + i % 24] = static_cast<std::byte>(1 + i / 24);
    hashes.insert(BlockHash(1)(id));
    places.insert(BlockHash(1)(id) % 65'536);
    EXPECT_NE(BlockHash(1)(id), BlockHash(2)(id));
  }
  EXPECT_EQ(hashes.size(), 4096u);
  EXPECT_GT(places.size(), 3'800u);  // 3 970 when they fall at random.
}

}  // namespace
}  // namespace aquifer
