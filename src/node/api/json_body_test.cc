#include "node/api/json_body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace aquifer {
namespace {

using testing::HasSubstr;

TEST(JsonBodyTest, FieldsAreReadByName) {
  JsonBody body(R"({"name":"x","count":7,"all":true,"list":["a","b"]})");
  EXPECT_EQ(body.Text("name", 10), "x");
  EXPECT_EQ(body.Whole("count", 0, 10), 7);
  EXPECT_TRUE(body.Flag("all"));
  EXPECT_THAT(body.Texts("list"), testing::ElementsAre("a", "b"));
  EXPECT_EQ(body.Text("absent", 10), std::nullopt);
  EXPECT_TRUE(body.Finish().ok());
}

TEST(JsonBodyTest, NothingAtAllIsAnEmptyObject) { EXPECT_TRUE(JsonBody("").Finish().ok()); }

TEST(JsonBodyTest, WhatIsNoObjectIsRefused) {
  for (const char* text : {"[]", "7", "{", "{\"a\":}", "nonsense", "{} {}", "{\"a\":1,}"}) {
    EXPECT_EQ(JsonBody(text).Finish().code(), Code::kInvalid) << text;
  }
  EXPECT_EQ(JsonBody("{\"a\":" + std::string(100'000, '[')).Finish().code(), Code::kInvalid);
}

TEST(JsonBodyTest, WrongValuesAreRefusedByName) {
  const auto message = [](const char* text) {
    JsonBody body(text);
    body.Text("name", 3);
    body.Whole("count", 1, 10);
    body.Flag("all");
    body.Texts("list");
    return body.Finish().message();
  };
  EXPECT_THAT(message(R"({"name":7})"), HasSubstr("'name'"));
  EXPECT_THAT(message(R"({"name":"long"})"), HasSubstr("'name'"));
  EXPECT_THAT(message(R"({"name":""})"), HasSubstr("'name'"));
  for (const char* count : {"0", "11", "-1", "1.5", "\"1\"", "18446744073709551615", "1e300"}) {
    EXPECT_THAT(message((std::string("{\"count\":") + count + "}").c_str()), HasSubstr("'count'"));
  }
  EXPECT_THAT(message(R"({"all":1})"), HasSubstr("'all'"));
  EXPECT_THAT(message(R"({"list":[]})"), HasSubstr("'list'"));
  EXPECT_THAT(message(R"({"list":[1]})"), HasSubstr("'list'"));
  EXPECT_THAT(message(R"({"counts":1})"), HasSubstr("did you mean 'count'?"));
  EXPECT_THAT(message(R"({"zebra":1})"), HasSubstr("name, count, all, list"));
}

}  // namespace
}  // namespace aquifer
