#include "cache/residency/lost_links.h"

#include <gtest/gtest.h>

#include <vector>

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
  links.OnDropped(Named(3), Below(2, 2), false, false);
  links.OnDropped(Named(2), Below(1, 1), false, false);
  ASSERT_NE(links.Find(Named(3)), nullptr);
  EXPECT_EQ(links.Find(Named(3))->parent, Named(2).key);
  ASSERT_NE(links.Find(Named(2)), nullptr);
  EXPECT_EQ(links.Find(Named(2))->parent, Named(1).key);
}

TEST(LostLinksTest, KeepsOnlyWhatMayBeAskedFor) {
  LostLinks links(8);
  links.OnDropped(Named(3), Below(2, 2), false, false);
  EXPECT_EQ(links.Find(Named(3)), nullptr);
  links.OnDropped(Named(2), Below(1, 1), true, false);
  EXPECT_NE(links.Find(Named(2)), nullptr);
}

TEST(LostLinksTest, LinksThatWouldMakeACircleAreNotFollowed) {
  LostLinks links(8);
  links.OnDropped(Named(1), Below(2, 5), true, false);
  links.OnDropped(Named(2), Below(1, 6), true, false);
  EXPECT_EQ(links.Find(Named(1)), nullptr);
}

TEST(LostLinksTest, TheOldestAreForgottenFirst) {
  LostLinks links(2);
  for (uint8_t number = 1; number <= 3; ++number) {
    links.OnDropped(Named(number), Below(0, 0), true, false);
  }
  EXPECT_EQ(links.Find(Named(1)), nullptr);
  EXPECT_NE(links.Find(Named(2)), nullptr);
  EXPECT_NE(links.Find(Named(3)), nullptr);
}

TEST(LostLinksTest, WhatADurableTierHasIsKnownByWhatItHangsBelow) {
  LostLinks links(3);
  links.Want(Named(3));
  links.Want(Named(2));
  EXPECT_TRUE(links.DurableBelow(Named(1), 9).empty());
  links.OnDropped(Named(3), Below(1, 1), false, true);
  links.OnDropped(Named(2), Below(1, 1), false, true);
  EXPECT_EQ(links.DurableBelow(Named(1), 9), (std::vector<Key>{Named(2).key, Named(3).key}));
  EXPECT_EQ(links.DurableBelow(Named(1), 1).size(), 1u);
  EXPECT_TRUE(links.DurableBelow(Named(2), 9).empty());
  links.OnDropped(Named(3), Below(1, 1), false, false);  // It was here again, and then deleted.
  EXPECT_EQ(links.DurableBelow(Named(1), 9), (std::vector<Key>{Named(2).key}));
  links.OnDeleted(Named(2));
  EXPECT_TRUE(links.DurableBelow(Named(1), 9).empty());
  links.OnDropped(Named(2), Below(1, 1), false, true);
  links.Want(Named(4));  // The oldest link is forgotten, and the next one with that.
  links.Want(Named(5));
  EXPECT_TRUE(links.DurableBelow(Named(1), 9).empty());
}

TEST(LostLinksTest, WhatADurableTierHasIsForgottenByTenant) {
  LostLinks links(8);
  for (uint16_t tenant : {1, 2}) {
    for (uint8_t number = 2; number <= 4; ++number) {
      BlockName name = Named(number);
      name.tenant = tenant;
      links.OnDropped(name, Below(1, 1), true, true);
    }
  }
  EXPECT_TRUE(links.ForgetDurable(1, 2));
  EXPECT_FALSE(links.ForgetDurable(1, 2));
  BlockName parent = Named(1);
  parent.tenant = 1;
  EXPECT_TRUE(links.DurableBelow(parent, 9).empty());
  parent.tenant = 2;
  EXPECT_EQ(links.DurableBelow(parent, 9).size(), 3u);
}

}  // namespace
}  // namespace aquifer
