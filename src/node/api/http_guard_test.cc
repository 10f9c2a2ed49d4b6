#include "node/api/http_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tenant/token.h"

namespace aquifer {
namespace {

using testing::HasSubstr;

HttpRequest Get() {
  HttpRequest request;
  request.method = "GET";
  request.path = "/v1/status";
  request.host = "localhost:9470";
  return request;
}

HttpRequest Post() {
  HttpRequest request = Get();
  request.method = "POST";
  request.content_type = "application/json";
  return request;
}

unsigned CrossSite(const HttpRequest& request, const HttpRules& rules = {},
                   HttpNeed need = HttpNeed::kReading) {
  const auto refused = RefuseCrossSite(request, need, rules);
  return refused ? refused->status : 200;
}

unsigned Access(const HttpRequest& request, HttpNeed need, const HttpRules& rules = {}) {
  const auto refused = RefuseAccess(request, need, rules);
  return refused ? refused->status : 200;
}

HttpRules WithToken(bool tenants = false) {
  HttpRules rules;
  rules.admin_token_sha256 = DigestOfToken("secret");
  rules.has_tenants_file = tenants;
  return rules;
}

HttpRequest Bearing(HttpRequest request, const std::string& authorization) {
  request.authorization = authorization;
  return request;
}

TEST(HttpGuardTest, NoPageOfAnotherSiteIsAnswered) {
  EXPECT_EQ(CrossSite(Get()), 200u);
  for (const char* origin : {"https://evil.example", "null", "", "http://localhost:9470"}) {
    HttpRequest request = Get();
    request.origin = origin;
    EXPECT_EQ(CrossSite(request), 403u) << origin;
    request.on_socket = true;
    EXPECT_EQ(CrossSite(request), 403u) << origin;
  }
  HttpRequest request = Get();
  for (const char* site : {"cross-site", "same-site", "anything"}) {
    request.fetch_site = site;
    EXPECT_EQ(CrossSite(request), 403u) << site;
  }
  for (const char* site : {"none", "same-origin"}) {
    request.fetch_site = site;
    EXPECT_EQ(CrossSite(request), 200u) << site;
  }
}

TEST(HttpGuardTest, OnlyOurOwnNamesAreAnswered) {
  HttpRequest request = Get();
  for (const char* host : {"localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:9470", "127.1.2.3:5",
                           "[::1]:9470", "[::1]"}) {
    request.host = host;
    EXPECT_EQ(CrossSite(request), 200u) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "10.0.0.1", "[fe80::1]", "[::1", "127.evil.example", "localhost.", ":80",
                           "[::1]evil.example", "localhost:evil", "127.0.0.1:1:2", "::1"}) {
    request.host = host;
    EXPECT_EQ(CrossSite(request), 403u) << host;
  }
  request.host = "";
  EXPECT_EQ(CrossSite(request, {}, HttpNeed::kNothing), 200u) << "a probe";
  EXPECT_EQ(CrossSite(request, {}, HttpNeed::kAdministration), 403u);
  request.host = "evil.example";
  EXPECT_EQ(CrossSite(request, {}, HttpNeed::kNothing), 403u);
  request.host = "anything";
  request.on_socket = true;  // No browser gets there.
  EXPECT_EQ(CrossSite(request), 200u);
}

TEST(HttpGuardTest, TheConfiguredAddressIsOurs) {
  HttpRequest request = Get();
  request.host = "10.0.0.1:9470";
  EXPECT_EQ(CrossSite(request, {.address = {.host = "10.0.0.1"}}), 200u);
  EXPECT_EQ(CrossSite(request, {.address = {.host = "10.0.0.2"}}), 403u);
  EXPECT_EQ(CrossSite(request, {.address = {.host = "0.0.0.0"}}), 200u);
  request.host = "node.example:9470";  // Whoever answers for that name decides where it leads.
  EXPECT_EQ(CrossSite(request, {.address = {.host = "0.0.0.0"}}), 403u);
}

TEST(HttpGuardTest, AHeaderThatIsThereTwiceIsRefused) {
  HttpRequest request = Get();
  request.repeated_header = true;
  EXPECT_EQ(CrossSite(request), 400u);
}

TEST(HttpGuardTest, WithoutATokenTheAdministratorComesByTheSocketAlone) {
  EXPECT_EQ(Access(Post(), HttpNeed::kAdministration), 403u);
  EXPECT_EQ(Access(Bearing(Post(), "Bearer secret"), HttpNeed::kAdministration), 403u);
  HttpRequest request = Post();
  request.on_socket = true;
  EXPECT_EQ(Access(request, HttpNeed::kAdministration), 200u);
  EXPECT_EQ(Access(Get(), HttpNeed::kReading), 200u);
  EXPECT_EQ(Access(Get(), HttpNeed::kNothing), 200u);
}

TEST(HttpGuardTest, TheTokenLetsTheAdministratorIn) {
  const HttpRules rules = WithToken();
  EXPECT_EQ(Access(Post(), HttpNeed::kAdministration, rules), 401u);
  EXPECT_EQ(Access(Bearing(Post(), "Bearer secret"), HttpNeed::kAdministration, rules), 200u);
  EXPECT_EQ(Access(Bearing(Post(), "bearer secret"), HttpNeed::kAdministration, rules), 200u);
  for (const char* wrong : {"Bearer secre", "Bearer secrets", "Bearer ", "Bearer", "", "secret",
                            "Basic secret", "Bearer  secret", "Bearer secret "}) {
    EXPECT_EQ(Access(Bearing(Post(), wrong), HttpNeed::kAdministration, rules), 401u) << wrong;
  }
  EXPECT_TRUE(RefuseAccess(Post(), HttpNeed::kAdministration, rules)->ask_for_token);
  EXPECT_EQ(Access(Get(), HttpNeed::kReading, rules), 200u);
}

TEST(HttpGuardTest, WithTenantsReadingNeedsTheTokenToo) {
  EXPECT_EQ(Access(Get(), HttpNeed::kReading, WithToken(true)), 401u);
  EXPECT_EQ(Access(Bearing(Get(), "Bearer secret"), HttpNeed::kReading, WithToken(true)), 200u);
  EXPECT_EQ(Access(Get(), HttpNeed::kNothing, WithToken(true)), 200u);
  HttpRules no_token;
  no_token.has_tenants_file = true;
  EXPECT_EQ(Access(Get(), HttpNeed::kReading, no_token), 403u);
  HttpRequest request = Get();
  request.on_socket = true;
  EXPECT_EQ(Access(request, HttpNeed::kReading, no_token), 200u);
}

TEST(HttpGuardTest, ABodyIsJson) {
  HttpRequest request = Post();
  request.on_socket = true;
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8"}) {
    request.content_type = type;
    EXPECT_EQ(Access(request, HttpNeed::kAdministration), 200u) << type;
  }
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "application/jsonx"}) {
    request.content_type = type;
    EXPECT_EQ(Access(request, HttpNeed::kAdministration), 415u) << type;
  }
  request.content_type.reset();
  EXPECT_EQ(Access(request, HttpNeed::kAdministration), 415u);
}

TEST(HttpGuardTest, ARefusalSaysWhatToDo) {
  EXPECT_THAT(RefuseAccess(Post(), HttpNeed::kAdministration, {})->body,
              HasSubstr("admin_token_sha256"));
  EXPECT_THAT(RefuseAccess(Post(), HttpNeed::kAdministration, WithToken())->body,
              HasSubstr("--token-file"));
}

}  // namespace
}  // namespace aquifer
