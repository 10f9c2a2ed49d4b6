#include "cache/request/client_table.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

struct CountingSink final : ClientSink {
  void OnProgress(Request*, size_t completed, bool done) override {
    last = completed;
    if (done) ++answers;
  }
  void OnOverdue() override { ++overdue; }

  size_t last = 0;
  int answers = 0;
  int overdue = 0;
};

ClientOptions Named(const std::string& tenant, const std::string& engine) {
  ClientOptions options;
  options.tenant = tenant;
  options.engine = engine;
  return options;
}

class ClientTableTest : public ::testing::Test {
 protected:
  CountingSink sink_;
  ClientTable clients_;
};

TEST_F(ClientTableTest, ClientsOfOneNameAreRanksOfOneEngine) {
  const ClientNumber first = clients_.Add(Named("a", "engine"), 0, &sink_, false);
  const ClientNumber second = clients_.Add(Named("a", "engine"), 0, &sink_, false);
  const ClientNumber other = clients_.Add(Named("b", "engine"), 1, &sink_, false);
  EXPECT_EQ(clients_.at(first).engine, clients_.at(second).engine);
  EXPECT_NE(clients_.at(first).engine, clients_.at(other).engine) << "another tenant's";
  EXPECT_EQ(clients_.RanksOf(first), 2u);
  EXPECT_EQ(clients_.engines(), 2u);
  EXPECT_FALSE(clients_.Leave(first).has_value());
  EXPECT_EQ(clients_.Leave(second), clients_.at(second).engine) << "the last of its engine";
  EXPECT_EQ(clients_.engines(), 1u);
}

TEST_F(ClientTableTest, ClientsWithoutANameAreEnginesOfTheirOwn) {
  const ClientNumber first = clients_.Add(Named("a", ""), 0, &sink_, false);
  const ClientNumber second = clients_.Add(Named("a", ""), 0, &sink_, false);
  EXPECT_NE(clients_.at(first).engine, clients_.at(second).engine);
}

TEST_F(ClientTableTest, ANumberIsUsedAgainWhenNothingOfItsClientIsLeft) {
  const ClientNumber first = clients_.Add(Named("a", "x"), 0, &sink_, false);
  clients_.Leave(first);
  EXPECT_NE(clients_.Add(Named("a", "y"), 0, &sink_, false), first);
  clients_.Free(first);
  EXPECT_EQ(clients_.Add(Named("a", "z"), 0, &sink_, false), first);
  EXPECT_TRUE(clients_.at(first).layouts.empty());
}

TEST_F(ClientTableTest, HandlesAreEachClientsOwn) {
  const ClientNumber first = clients_.Add(Named("a", "x"), 0, &sink_, false);
  const ClientNumber second = clients_.Add(Named("a", "y"), 0, &sink_, false);
  bool had = true;
  EXPECT_EQ(clients_.HandleOf(first, 7, &had), 1u);
  EXPECT_FALSE(had);
  EXPECT_EQ(clients_.HandleOf(first, 9, &had), 2u);
  EXPECT_EQ(clients_.HandleOf(first, 7, &had), 1u);
  EXPECT_TRUE(had);
  EXPECT_EQ(clients_.HandleOf(second, 9, &had), 1u);
  EXPECT_EQ(clients_.LayoutOf(second, 1), 9u);
  EXPECT_FALSE(clients_.HasLayout(second, 2));
  EXPECT_FALSE(clients_.HasLayout(second, 0));
}

TEST_F(ClientTableTest, NobodyIsToldOfAClientThatIsGoneOrCutOff) {
  const ClientNumber cut_off = clients_.Add(Named("a", "x"), 0, &sink_, false);
  const ClientNumber gone = clients_.Add(Named("a", "y"), 0, &sink_, false);
  FlushRequest request;
  clients_.at(cut_off).requests = clients_.at(gone).requests = 2;
  clients_.Progress(cut_off, &request, 5, true);
  EXPECT_EQ(sink_.last, 5u);
  EXPECT_EQ(sink_.answers, 1);
  EXPECT_EQ(clients_.at(cut_off).requests, 1u);
  clients_.Silence(cut_off);
  clients_.Leave(gone);
  clients_.Progress(cut_off, &request, 1, true);
  clients_.Progress(gone, &request, 1, true);
  clients_.TellOverdue(cut_off);
  clients_.TellOverdue(gone);
  EXPECT_EQ(sink_.answers, 1);
  EXPECT_EQ(sink_.overdue, 0);
  EXPECT_EQ(clients_.at(cut_off).requests, 0u);
}

TEST_F(ClientTableTest, AdministratorsDoNotCountAsClients) {
  clients_.Add(Named("a", "x"), 0, &sink_, false);
  const ClientNumber admin = clients_.Add(Named("a", "y"), 0, &sink_, true);
  clients_.at(admin).administrator = true;
  EXPECT_EQ(clients_.attached(), 1u);
}

}  // namespace
}  // namespace aquifer
