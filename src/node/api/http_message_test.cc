#include "node/api/http_message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace aquifer {
namespace {

TEST(HttpMessageTest, ATargetIsAPathAndParameters) {
  HttpRequest request;
  ASSERT_TRUE(ParseTarget("/v1/sessions?tenant=a%20b&after=x%2By+z&&limit=", &request).ok());
  EXPECT_EQ(request.path, "/v1/sessions");
  const std::map<std::string, std::string> expected = {
      {"tenant", "a b"}, {"after", "x+y z"}, {"limit", ""}};
  EXPECT_EQ(request.query, expected);
  ASSERT_TRUE(ParseTarget("/", &request).ok());
  EXPECT_TRUE(request.query.empty());
}

TEST(HttpMessageTest, WhatIsNoTargetIsRefused) {
  HttpRequest request;
  for (const char* target : {"", "v1/status", "http://localhost/v1/status", "*", "/%", "/%4",
                             "/%zz", "/a?b=%", "/%00", "/a?x=1&x=2"}) {
    EXPECT_EQ(ParseTarget(target, &request).code(), Code::kInvalid) << target;
  }
}

TEST(HttpMessageTest, AnErrorIsJsonWhateverIsInIt) {
  const HttpResponse response = HttpError(400, "invalid", "a \"quote\", a \xFF byte");
  const auto parsed = nlohmann::json::parse(response.body);
  EXPECT_EQ(response.status, 400u);
  EXPECT_EQ(parsed.at("error").at("code"), "invalid");
  EXPECT_EQ(parsed.at("error").at("message"), "a \"quote\", a \xEF\xBF\xBD byte");
}

}  // namespace
}  // namespace aquifer
