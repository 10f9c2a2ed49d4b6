#include "store/redis/redis_slots.h"

#include <gtest/gtest.h>

#include <string>

#include "store/redis/redis_manifest.h"

namespace aquifer {
namespace {

TEST(RedisSlotsTest, SlotsAreThoseOfTheClusterSpecification) {
  EXPECT_EQ(RedisSlotOf("123456789"), 0x31c3 % kRedisSlots);
  EXPECT_EQ(RedisSlotOf("foo"), 12182);
  EXPECT_EQ(RedisSlotOf("x{foo}y{bar}"), 12182);
  EXPECT_EQ(RedisSlotOf(ManifestKey("p:", "a/b")), RedisSlotOf("a/b"));
  const RedisManifest manifest{.blob_bytes = 100'000, .inline_bytes = 4096, .piece_bytes = 4096};
  EXPECT_EQ(RedisSlotOf(PieceKey(ManifestKey("p:", "a/b"), manifest, 7)), RedisSlotOf("a/b"));
}

TEST(RedisSlotsTest, AddressesAndRedirectionsAreRead) {
  EXPECT_EQ(ParseRedisAddress("host:77")->ToString(), "host:77");
  EXPECT_EQ(ParseRedisAddress("host")->port, 6379);
  EXPECT_EQ(ParseRedisAddress("[::1]:77")->host, "::1");
  for (const std::string wrong :
       {"", ":1", "a:", "a:0", "a:99999", "[::1", "a:1x", "u@a:1", "a/b:1", "[]:1", "[a b]:1"}) {
    EXPECT_FALSE(ParseRedisAddress(wrong).ok()) << wrong;
  }
  const RedisAddress from{"here", 1};
  const auto moved = ParseRedirect("MOVED 3999 127.0.0.1:6381", from);
  ASSERT_TRUE(moved.has_value());
  EXPECT_FALSE(moved->once);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->to.ToString(), "127.0.0.1:6381");
  EXPECT_EQ(ParseRedirect("ASK 1 :6381", from)->to.ToString(), "here:6381");
  EXPECT_EQ(ParseRedirect("ASK 1 ::1:6381", from)->to.ToString(), "[::1]:6381");
  for (const std::string wrong : {"MOVED", "MOVED 99999 a:1", "ASK 1 a", "ASK x a:1", "ERR"}) {
    EXPECT_FALSE(ParseRedirect(wrong, from).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace aquifer
