#include "cache/lost_links.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

BlockName Named(uint8_t number) {
  BlockName name;
  name.key.bytes[0] = std::byte{number};
  return name;
}

LostLink Below(uint8_t parent, uint32_t position) {
  return {.parent = Named(parent).key, .position = position};
}

TEST(LostLinksTest, FollowsAChainUpFromWhereASessionEnds) {
  LostLinks links(8);
  links.Want(Named(3));
  EXPECT_EQ(links.Find(Named(3)), nullptr);  // Not gone.
  links.OnDropped(Named(3), Below(2, 2), false);
  links.OnDropped(Named(2), Below(1, 1), false);
  ASSERT_NE(links.Find(Named(3)), nullptr);
  EXPECT_EQ(links.Find(Named(3))->parent, Named(2).key);
  ASSERT_NE(links.Find(Named(2)), nullptr);
  EXPECT_EQ(links.Find(Named(2))->parent, Named(1).key);
}

TEST(LostLinksTest, KeepsOnlyWhatMayBeAskedFor) {
  LostLinks links(8);
  links.OnDropped(Named(3), Below(2, 2), false);
  EXPECT_EQ(links.Find(Named(3)), nullptr);
  links.OnDropped(Named(2), Below(1, 1), true);
  EXPECT_NE(links.Find(Named(2)), nullptr);
}

TEST(LostLinksTest, LinksThatWouldMakeACircleAreNotFollowed) {
  LostLinks links(8);
  links.OnDropped(Named(1), Below(2, 5), true);
  links.OnDropped(Named(2), Below(1, 6), true);
  EXPECT_EQ(links.Find(Named(1)), nullptr);
}

TEST(LostLinksTest, TheOldestAreForgottenFirst) {
  LostLinks links(2);
  for (uint8_t number = 1; number <= 3; ++number) {
    links.OnDropped(Named(number), Below(0, 0), true);
  }
  EXPECT_EQ(links.Find(Named(1)), nullptr);
  EXPECT_NE(links.Find(Named(2)), nullptr);
  EXPECT_NE(links.Find(Named(3)), nullptr);
}

}  // namespace
}  // namespace aquifer
