// Tests the parsing of servers' answers and of people's settings, without a server: answers,
// credentials, endpoints, options.
#include "store/s3/s3_answer.h"

#include <gtest/gtest.h>

#include <map>

#include "store/s3/s3_credentials.h"
#include "store/s3/s3_endpoints.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(S3AnswerTest, AnErrorIsReadWithItsRegion) {
  const S3Error error = ParseS3Error(
      R"(<?xml version="1.0" encoding="UTF-8"?>
<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Code>AuthorizationHeaderMalformed</Code>
<Message>expecting &apos;eu-west-1&apos; &#60;&amp;&#x3e;</Message><Region>eu-west-1</Region></Error>)");
  EXPECT_EQ(error.code, "AuthorizationHeaderMalformed");
  EXPECT_EQ(error.message, "expecting 'eu-west-1' <&>");
  EXPECT_EQ(error.region, "eu-west-1");
}

TEST(S3AnswerTest, ATextThatIsNoErrorIsEmptyAndControlCharactersAreDropped) {
  for (const char* text : {"", "no xml", "<html><body>502</body></html>", "<Error><Code>A</Code>",
                           "<Error><Code>&nothing;</Code></Error>", "<!DOCTYPE x><Error></Error>",
                           "<Error><Code>A</Wrong></Error>", "<>", "</Error>"}) {
    EXPECT_EQ(ParseS3Error(text).code, "") << text;
  }
  EXPECT_EQ(ParseS3Error("<Error><Message>a\x1b[31m\nb</Message></Error>").message, "a?[31m?b");
  EXPECT_EQ(ParseS3Error("<ErrorResponse><Error><Code>Sts</Code></Error></ErrorResponse>").code,
            "Sts");
}

TEST(S3AnswerTest, AListingHasItsKeysAndSizes) {
  const auto listing = ParseS3Listing(
      "<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated>"
      "<Contents><Key>a/b</Key><ETag>&quot;x&quot;</ETag><Size>4096</Size></Contents>"
      "<Contents><Key>c&amp;d</Key><Size>0</Size><Owner><ID>o</ID></Owner></Contents>"
      "<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes></ListBucketResult>");
  ASSERT_TRUE(listing.ok()) << listing.status().ToString();
  EXPECT_TRUE(listing->truncated);
  ASSERT_EQ(listing->objects.size(), 2u);
  EXPECT_EQ(listing->objects[0].key, "a/b");
  EXPECT_EQ(listing->objects[0].bytes, 4096u);
  EXPECT_EQ(listing->objects[1].key, "c&d");
  for (const char* text :
       {"", "<Other/>", "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>1x</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key>"}) {
    EXPECT_EQ(ParseS3Listing(text).status().code(), Code::kCorrupt) << text;
  }
}

TEST(S3AnswerTest, AnStsAnswerNeedsKeyAndExpiry) {
  const std::string good =
      "<R><A><Credentials><AccessKeyId>AK</AccessKeyId><SecretAccessKey>SK</SecretAccessKey>"
      "<SessionToken>T</SessionToken><Expiration>2026-11-16T03:01:04.123Z</Expiration>"
      "</Credentials></A></R>";
  const auto answer = ParseStsAnswer(good);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->credentials.access_key, "AK");
  EXPECT_EQ(answer->credentials.secret_key, "SK");
  EXPECT_EQ(answer->credentials.session_token, "T");
  EXPECT_EQ(answer->expiry_unix_seconds, 1794798064);
  EXPECT_FALSE(ParseStsAnswer("<R/>").ok());
  EXPECT_FALSE(ParseStsAnswer(std::string(good).replace(good.find("2026"), 4, "soon")).ok());
}

TEST(S3AnswerTest, DatesAndVersioningAreRead) {
  EXPECT_EQ(ParseHttpDate("Mon, 16 Nov 2026 03:01:04 GMT"), 1794798064);
  EXPECT_EQ(ParseHttpDate("yesterday"), std::nullopt);
  EXPECT_EQ(ParseHttpDate("Mon, 16 Nov 2026 03:01:04 GMT and more"), std::nullopt);
  EXPECT_FALSE(SaysVersioned("<VersioningConfiguration/>"));
  EXPECT_TRUE(SaysVersioned(
      "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"));
}

TEST(S3AnswerTest, EveryFailureNamesTheNextStep) {
  struct Case {
    int http_status;
    S3Error error;
    Code code;
    const char* words;
  };
  const Case cases[] = {
      {404, {.code = "NoSuchKey"}, Code::kNotFound, ""},
      {404, {}, Code::kUnavailable, "no S3 server"},
      {404, {.code = "NoSuchBucket"}, Code::kUnavailable, "make it"},
      {403, {.code = "AccessDenied"}, Code::kUnavailable, "s3:GetObject"},
      {403, {.code = "InvalidAccessKeyId"}, Code::kUnavailable, "access key"},
      {403, {.code = "SignatureDoesNotMatch"}, Code::kUnavailable, "secret key"},
      {403, {.code = "RequestTimeTooSkewed"}, Code::kUnavailable, "clock"},
      {400,
       {.code = "AuthorizationHeaderMalformed", .region = "eu-west-1"},
       Code::kUnavailable,
       "region = \"eu-west-1\""},
      {301, {}, Code::kUnavailable, "correct the region"},
      {400, {.code = "ExpiredToken"}, Code::kUnavailable, "renew"},
      {507, {}, Code::kNoSpace, "no space"},
      {500, {.code = "XMinioStorageFull"}, Code::kNoSpace, "no space"},
      {503, {.code = "SlowDown"}, Code::kBusy, "slow down"},
      {416, {}, Code::kCorrupt, "shorter"},
      {500, {.code = "InternalError", .message = "oh"}, Code::kUnavailable, "(oh)"},
  };
  const S3Context context{
      .endpoint = "https://s", .bucket = "kv", .region = "us-east-1", .method = "PUT"};
  for (const Case& one : cases) {
    const Status status = ExplainS3Failure(one.http_status, one.error, context);
    EXPECT_EQ(status.code(), one.code) << one.http_status << one.error.code;
    EXPECT_NE(status.message().find(one.words), std::string::npos) << status.message();
    // A miss is no failure, and a damaged object is stored again without a person.
    const bool mendable = one.code != Code::kNotFound && one.code != Code::kCorrupt;
    EXPECT_EQ(status.message().find("; next step: ") != std::string::npos, mendable)
        << status.message();
  }
}

TEST(S3AnswerTest, WithoutABodyOnlyAWriteTellsAMissFromAServerThatIsNone) {
  for (const char* method : {"GET", "HEAD", "DELETE"}) {
    const S3Context context{
        .endpoint = "https://s", .bucket = "kv", .region = "us-east-1", .method = method};
    EXPECT_EQ(ExplainS3Failure(404, {}, context).code(), Code::kNotFound) << method;
  }
}

TEST(S3CredentialsTest, AFileIsReadByProfile) {
  const std::string text =
      "# ours\n[default]\naws_access_key_id = A\r\naws_secret_access_key=B=\n"
      "[other]\n ; none\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n";
  const auto first = ParseCredentialsFile(text, "default");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->access_key, "A");
  EXPECT_EQ(first->secret_key, "B=");
  EXPECT_EQ(first->session_token, "");
  const auto other = ParseCredentialsFile(text, "other");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->session_token, "E");
  const auto missing = ParseCredentialsFile(text, "nobody");
  EXPECT_EQ(missing.status().code(), Code::kInvalid);
  EXPECT_EQ(missing.status().message().find("B="), std::string::npos);
  EXPECT_TRUE(ParseCredentialsFile("aws_access_key_id=A\naws_secret_access_key=B", "x").ok());
}

TEST(S3CredentialsTest, TheEnvironmentMayGiveAKeyAFileOrAToken) {
  std::map<std::string, std::string> set;
  const auto get = [&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  };
  EXPECT_EQ(CheckS3Credentials(S3CredentialsFromEnvironment(get, "r")).code(), Code::kInvalid);
  set = {{"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"}, {"AWS_ROLE_ARN", "arn"}};
  auto settings = S3CredentialsFromEnvironment(get, "eu-west-1");
  EXPECT_TRUE(CheckS3Credentials(settings).ok());
  EXPECT_EQ(settings.sts_endpoint, "https://sts.eu-west-1.amazonaws.com");
  set = {{"AWS_SHARED_CREDENTIALS_FILE", "/f"}, {"AWS_PROFILE", "p"}};
  settings = S3CredentialsFromEnvironment(get, "eu-west-1");
  EXPECT_EQ(settings.profile, "p");
  EXPECT_TRUE(CheckS3Credentials(settings).ok());
  set = {{"AWS_ACCESS_KEY_ID", "a"}, {"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"}};
  settings = S3CredentialsFromEnvironment(get, "eu-west-1");
  EXPECT_EQ(settings.token_file, "");
  EXPECT_EQ(CheckS3Credentials(settings).code(), Code::kInvalid);  // Half of a key.
  set["AWS_SECRET_ACCESS_KEY"] = "b";
  EXPECT_TRUE(CheckS3Credentials(S3CredentialsFromEnvironment(get, "r")).ok());
}

TEST(S3EndpointsTest, AnEndpointIsASchemeAHostAndPerhapsAPort) {
  const auto plain = ParseS3Endpoint("http://127.0.0.1:9000/");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->Url(), "http://127.0.0.1:9000");
  EXPECT_TRUE(plain->loopback);
  EXPECT_FALSE(plain->tls);
  EXPECT_EQ(ParseS3Endpoint("https://s3.example.com:443")->host, "s3.example.com");
  EXPECT_EQ(ParseS3Endpoint("https://[::1]:9000")->host, "[::1]:9000");
  EXPECT_TRUE(ParseS3Endpoint("https://[::1]:9000")->loopback);
  EXPECT_TRUE(ParseS3Endpoint("http://localhost")->loopback);
  // Names that others may have given to a host of theirs.
  for (const char* text : {"http://127.evil.example", "http://127.0.0.1.evil.example:9000",
                           "http://localhost.example", "http://10.127.0.0", "http://[::1:2]"}) {
    const auto endpoint = ParseS3Endpoint(text);
    ASSERT_TRUE(endpoint.ok()) << text;
    EXPECT_FALSE(endpoint->loopback) << text;
  }
  for (const char* text :
       {"", "s3.example.com", "ftp://a", "https://", "https://a/b", "https://a:b",
        "https://a:", "https://user@host", "https://a b", "https://a?b", "https://a:0",
        "https://a:65536", "https://a]b", "https://[::1", "https://[]", "https://[host]"}) {
    EXPECT_EQ(ParseS3Endpoint(text).status().code(), Code::kInvalid) << text;
  }
}

TEST(S3EndpointsTest, AllTakeTurnsAndOneThatFailedIsLeftOutForAWhile) {
  S3Endpoints endpoints({{.host = "a"}, {.host = "b"}, {.host = "c"}});
  EXPECT_EQ(endpoints.Next(0), 0u);
  EXPECT_EQ(endpoints.Next(0), 1u);
  EXPECT_EQ(endpoints.Next(0), 2u);
  endpoints.Failed(0, 0);
  EXPECT_EQ(endpoints.Next(0), 1u);
  EXPECT_EQ(endpoints.Next(0), 2u);
  EXPECT_EQ(endpoints.Next(0), 1u);
  EXPECT_EQ(endpoints.Next(kSecond), 2u);
  EXPECT_EQ(endpoints.Next(kSecond), 0u);
  endpoints.Failed(0, kSecond);  // Twice as long.
  EXPECT_EQ(endpoints.Next(2 * kSecond), 1u);
  EXPECT_EQ(endpoints.Next(2 * kSecond), 2u);
  EXPECT_EQ(endpoints.Next(3 * kSecond), 0u);
  endpoints.Worked(0);
  // When all have failed, the endpoint whose time is over first is next.
  for (const size_t i : {1, 0, 2})
    endpoints.Failed(i, static_cast<int64_t>(i) * 1000 + 3 * kSecond);
  EXPECT_EQ(endpoints.Next(3 * kSecond + 5000), 0u);
}

TEST(BucketOptionsTest, AWrongOptionIsNamed) {
  BucketOptions good;
  good.endpoints = {"https://10.0.0.7:9000"};
  good.bucket = "kv-cache";
  good.credentials.given = {.access_key = "a", .secret_key = "very-secret", .session_token = {}};
  EXPECT_TRUE(CheckBucketOptions(good).ok());
  const auto problem = [&](const std::function<void(BucketOptions*)>& change) {
    BucketOptions changed = good;
    change(&changed);
    const Status status = CheckBucketOptions(changed);
    EXPECT_EQ(status.message().find("very-secret"), std::string::npos);
    return std::string(status.code() == Code::kInvalid ? status.message() : "");
  };
  EXPECT_NE(problem([](auto* o) { o->endpoints.clear(); }), "");
  EXPECT_NE(problem([](auto* o) { o->endpoints = {"http://10.0.0.7"}; }).find("allow_plain_http"),
            std::string::npos);
  EXPECT_EQ(problem([](auto* o) {
              o->endpoints = {"http://10.0.0.7"};
              o->allow_plain_http = true;
            }),
            "");
  EXPECT_EQ(problem([](auto* o) { o->endpoints = {"http://localhost:9000"}; }), "");
  EXPECT_NE(
      problem([](auto* o) { o->endpoints = {"http://127.evil.example"}; }).find("allow_plain_http"),
      std::string::npos);
  for (const char* bucket : {"A_B", "ab", "-abc", "abc.", "a..b"}) {
    EXPECT_NE(problem([bucket](auto* o) { o->bucket = bucket; }).find("3 to 63"), std::string::npos)
        << bucket;
  }
  EXPECT_NE(problem([](auto* o) { o->prefix = "/kv/"; }), "");
  EXPECT_NE(problem([](auto* o) { o->prefix = "kv"; }), "");
  EXPECT_EQ(problem([](auto* o) { o->prefix = "kv/one/"; }), "");
  EXPECT_NE(problem([](auto* o) { o->region.clear(); }), "");
  EXPECT_NE(problem([](auto* o) { o->credentials.given.access_key.clear(); }), "");
  EXPECT_NE(problem([](auto* o) {
              o->credentials.token_file = "/t";
              o->credentials.sts_endpoint = "http://sts.example.com";
            }),
            "");
}

// Servers written in Go answer so on a port for TLS, where S3 has a code.
TEST(S3AnswerTest, APlainRequestThatIsAnsweredByNoS3ServerMayHaveMetTls) {
  const auto words = [](std::string_view endpoint, const std::string& code) {
    return ExplainS3Failure(400, {.code = code, .message = {}, .region = {}},
                            {.endpoint = endpoint, .bucket = "b", .region = "r", .method = "HEAD"})
        .message();
  };
  const std::string hint = "if that port is for TLS, write https://";
  EXPECT_NE(words("http://h:9000", "").find(hint), std::string::npos);
  EXPECT_EQ(words("https://h:9000", "").find(hint), std::string::npos);
  EXPECT_EQ(words("http://h:9000", "InvalidArgument").find(hint), std::string::npos);
}

}  // namespace
}  // namespace aquifer
