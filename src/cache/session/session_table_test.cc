#include "cache/session/session_table.h"

#include <string>

#include "testing/cache/residency_fixture.h"

namespace aquifer {
namespace {

class SessionTableTest : public ResidencyFixture {
 protected:
  BlockName EndOf(uint16_t tenant, uint32_t position) const {
    BlockName name = NameOf(position);
    name.tenant = tenant;
    return name;
  }

  SessionTable sessions_{4, residency_.get()};
};

TEST_F(SessionTableTest, ASessionEndsWithTheBlockThatWasNamedLast) {
  sessions_.Remember("a", NameOf(1));
  sessions_.Remember("a", NameOf(2));
  ASSERT_NE(sessions_.Find(tenant_, "a"), nullptr);
  EXPECT_EQ(sessions_.Find(tenant_, "a")->head, NameOf(2));
  EXPECT_EQ(sessions_.size(), 1u);
  EXPECT_TRUE(sessions_.IsHead(NameOf(2)));
  EXPECT_FALSE(sessions_.IsHead(NameOf(1)));
  EXPECT_EQ(sessions_.Find(tenant_ + 1, "a"), nullptr) << "another tenant's";
}

TEST_F(SessionTableTest, TwoSessionsMayEndWithOneBlock) {
  sessions_.Remember("a", NameOf(1));
  sessions_.Remember("b", NameOf(1));
  sessions_.ForgetHead(tenant_, "a");
  EXPECT_TRUE(sessions_.IsHead(NameOf(1)));
  sessions_.ForgetHead(tenant_, "b");
  sessions_.ForgetHead(tenant_, "b");
  EXPECT_FALSE(sessions_.IsHead(NameOf(1)));
  EXPECT_NE(sessions_.Find(tenant_, "a"), nullptr) << "not all of it may be gone yet";
}

TEST_F(SessionTableTest, TheOldestOfTheTenantWithMostGoesFirst) {
  sessions_.Remember("only", EndOf(7, 1));
  for (const char* const name : {"a", "b", "c", "d"}) sessions_.Remember(name, EndOf(8, 2));
  EXPECT_EQ(sessions_.size(), 4u);
  EXPECT_NE(sessions_.Find(7, "only"), nullptr);
  EXPECT_EQ(sessions_.Find(8, "a"), nullptr);
  EXPECT_NE(sessions_.Find(8, "b"), nullptr);
  sessions_.Remember("b", EndOf(8, 3));
  sessions_.Remember("e", EndOf(8, 3));
  EXPECT_NE(sessions_.Find(8, "b"), nullptr) << "it was named again";
  EXPECT_EQ(sessions_.Find(8, "c"), nullptr);
}

TEST_F(SessionTableTest, NamesThatAreNoTextAreNotRemembered) {
  for (const std::string& name : {std::string(), std::string(257, 'x'), std::string("a\nb")}) {
    EXPECT_FALSE(IsSessionName(name));
    sessions_.Remember(name, NameOf(1));
  }
  EXPECT_EQ(sessions_.size(), 0u);
  EXPECT_FALSE(sessions_.IsHead(NameOf(1)));
}

TEST_F(SessionTableTest, ATenantsSessionsAreForgottenASliceAtATime) {
  for (const char* const name : {"a", "b", "c"}) sessions_.Remember(name, EndOf(8, 2));
  sessions_.Remember("d", EndOf(7, 2));
  EXPECT_TRUE(sessions_.ForgetSome(8, 2));
  EXPECT_EQ(sessions_.size(), 2u);
  EXPECT_FALSE(sessions_.ForgetSome(8, 2));
  EXPECT_FALSE(sessions_.ForgetSome(8, 2));
  EXPECT_EQ(sessions_.SessionsOf(8), nullptr);
  EXPECT_EQ(sessions_.size(), 1u);
  EXPECT_FALSE(sessions_.IsHead(EndOf(8, 2)));
}

}  // namespace
}  // namespace aquifer
