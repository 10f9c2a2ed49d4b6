// The cases of AWS's public test suite for Signature Version 4 (its facts, in our words), and the
// examples of the S3 reference ("Signature Calculations for the Authorization Header").
#include "store/s3/sigv4.h"

#include <gtest/gtest.h>

#include <string>

namespace aquifer {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr int64_t kSuiteTime = 1'440'938'160;      // 2015-08-30T12:36:00Z
constexpr int64_t kS3ExampleTime = 1'369'353'600;  // 2013-05-24T00:00:00Z

struct SuiteCase {
  const char* name;
  const char* method;
  const char* path;
  Pairs query;
  Pairs headers;
  bool normalise;
  const char* signature;
};

std::string ValueOf(const Pairs& headers, std::string_view name) {
  for (const auto& [found, value] : headers) {
    if (found == name) return value;
  }
  return "(none)";
}

std::string SignatureIn(const Pairs& headers) {
  const std::string text = ValueOf(headers, "authorization");
  const size_t at = text.find("Signature=");
  return at == std::string::npos ? text : text.substr(at + 10);
}

const AwsCredentials& SuiteCredentials() {
  static const AwsCredentials credentials{.access_key = "AKIDEXAMPLE",
                                          .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                                          .session_token = ""};
  return credentials;
}

SigningScope SuiteScope(bool normalise) {
  return {.region = "us-east-1",
          .service = "service",
          .normalise_path = normalise,
          .payload_header = false};
}

constexpr const char* kVanilla = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
constexpr const char* kPostVanilla =
    "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b";
constexpr const char* kUnreserved =
    "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

std::vector<SuiteCase> SuiteCases() {
  static const std::string unreserved_path = std::string("/") + kUnreserved;
  return {
      {"vanilla", "GET", "/", {}, {}, true, kVanilla},
      {"no path", "GET", "", {}, {}, true, kVanilla},
      {"post vanilla", "POST", "/", {}, {}, true, kPostVanilla},
      {"header key duplicate",
       "GET",
       "/",
       {},
       {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
       true,
       "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
      {"header value multiline",
       "GET",
       "/",
       {},
       {{"My-Header1", "value1\n  value2\n     value3"}},
       true,
       "cfd34249e4b1c8d6b91ef74165d41a32e5fab3306300901bb65a51a73575eefd"},
      {"header value order",
       "GET",
       "/",
       {},
       {{"My-Header1", "value4"},
        {"My-Header1", "value1"},
        {"My-Header1", "value3"},
        {"My-Header1", "value2"}},
       true,
       "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
      {"header value trim",
       "GET",
       "/",
       {},
       {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
       true,
       "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
      {"header key sort",
       "POST",
       "/",
       {},
       {{"My-Header1", "value1"}},
       true,
       "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
      {"header value case",
       "POST",
       "/",
       {},
       {{"My-Header1", "VALUE1"}},
       true,
       "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
      {"relative", "GET", "/example/..", {}, {}, true, kVanilla},
      {"relative, as it is",
       "GET",
       "/example/..",
       {},
       {},
       false,
       "eca7ead57bb5aa5c8e28007acd4ff04e1ff9a0ff3b237ec1554a184887ff9282"},
      {"relative relative", "GET", "/example1/example2/../..", {}, {}, true, kVanilla},
      {"relative relative, as it is",
       "GET",
       "/example1/example2/../..",
       {},
       {},
       false,
       "dc33e0856fd4baca4d7aa2146c38958283844764f38c74252a333df5e613003b"},
      {"slash dot slash", "GET", "/./", {}, {}, true, kVanilla},
      {"slash dot slash, as it is",
       "GET",
       "/./",
       {},
       {},
       false,
       "68714168e6557f8f2de0ef956fc24dc2593a4bd2961f8df51898d8a134695145"},
      {"slash", "GET", "//", {}, {}, true, kVanilla},
      {"slash, as it is",
       "GET",
       "//",
       {},
       {},
       false,
       "c88bcd3d312d75078c0cd961d6deae3f4c754924b01669efcfcb439fd5e5b76e"},
      {"pointless dot",
       "GET",
       "/./example",
       {},
       {},
       true,
       "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5"},
      {"pointless dot, as it is",
       "GET",
       "/./example",
       {},
       {},
       false,
       "beb03f223f7deae4146464f06e29eebbee9c8afbe15c290cf07aa8b119e14cff"},
      {"slashes",
       "GET",
       "//example//",
       {},
       {},
       true,
       "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84"},
      {"slashes, as they are",
       "GET",
       "//example//",
       {},
       {},
       false,
       "87cca117541a147f6df867677d98a7d80dff226d2bfca9e4ffa899665623c7e5"},
      {"space",
       "GET",
       "/example space/",
       {},
       {},
       true,
       "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
      {"space, as it is",
       "GET",
       "/example space/",
       {},
       {},
       false,
       "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
      {"unreserved",
       "GET",
       unreserved_path.c_str(),
       {},
       {},
       true,
       "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
      {"utf8",
       "GET",
       "/\xe1\x88\xb4",
       {},
       {},
       true,
       "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
      {"one parameter",
       "GET",
       "/",
       {{"Param1", "value1"}},
       {},
       true,
       "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
      {"query order, encoded",
       "GET",
       "/",
       {{"Param-3", "Value3"}, {"Param", "Value2"}, {"\xe1\x88\xb4", "Value1"}},
       {},
       true,
       "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
      {"query order, key case",
       "GET",
       "/",
       {{"Param2", "value2"}, {"Param1", "value1"}},
       {},
       true,
       "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
      {"query unreserved",
       "GET",
       "/",
       {{kUnreserved, kUnreserved}},
       {},
       true,
       "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
      {"utf8 query",
       "GET",
       "/",
       {{"\xe1\x88\xb4", "bar"}},
       {},
       true,
       "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
      {"post query",
       "POST",
       "/",
       {{"Param1", "value1"}},
       {},
       true,
       "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
  };
}

TEST(SigV4Test, ReproducesTheTestSuite) {
  for (const SuiteCase& one : SuiteCases()) {
    Pairs headers = {{"Host", "example.amazonaws.com"}};
    headers.insert(headers.end(), one.headers.begin(), one.headers.end());
    const SignedRequest request{.method = one.method,
                                .path = one.path,
                                .query = one.query,
                                .headers = headers,
                                .payload_sha256 = kEmptyPayload};
    const Pairs added =
        SignRequest(request, SuiteCredentials(), SuiteScope(one.normalise), kSuiteTime);
    EXPECT_EQ(SignatureIn(added), one.signature) << one.name;
    EXPECT_EQ(ValueOf(added, "x-amz-date"), "20150830T123600Z");
  }
}

TEST(SigV4Test, TheHeaderIsThatOfTheSuite) {
  const Pairs headers = {{"Host", "example.amazonaws.com"}};
  const SignedRequest request{.method = "GET",
                              .path = "/",
                              .query = {},
                              .headers = headers,
                              .payload_sha256 = kEmptyPayload};
  EXPECT_EQ(ValueOf(SignRequest(request, SuiteCredentials(), SuiteScope(true), kSuiteTime),
                    "authorization"),
            std::string(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                "SignedHeaders=host;x-amz-date, Signature=") +
                kVanilla);
}

TEST(SigV4Test, SignsSessionTokens) {
  const Pairs headers = {{"Host", "example.amazonaws.com"}};
  SignedRequest request{.method = "GET",
                        .path = "/",
                        .query = {},
                        .headers = headers,
                        .payload_sha256 = kEmptyPayload};
  AwsCredentials credentials = SuiteCredentials();
  credentials.session_token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
  const Pairs get = SignRequest(request, credentials, SuiteScope(true), kSuiteTime);
  EXPECT_EQ(SignatureIn(get), "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8");
  EXPECT_EQ(ValueOf(get, "x-amz-security-token"), credentials.session_token);

  request.method = "POST";
  credentials.session_token =
      "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpS"
      "PfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDY"
      "wT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqK"
      "mlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";
  EXPECT_EQ(SignatureIn(SignRequest(request, credentials, SuiteScope(true), kSuiteTime)),
            "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead");
}

TEST(SigV4Test, SignsPayloads) {
  const std::string body = "Param1=value1";
  const std::string digest = PayloadSha256(std::as_bytes(std::span(body)));
  SigningScope scope = SuiteScope(true);
  scope.payload_header = true;
  const auto signature = [&](const char* type) {
    const Pairs headers = {
        {"Content-Type", type}, {"Host", "example.amazonaws.com"}, {"Content-Length", "13"}};
    const SignedRequest request{
        .method = "POST", .path = "/", .query = {}, .headers = headers, .payload_sha256 = digest};
    return SignatureIn(SignRequest(request, SuiteCredentials(), scope, kSuiteTime));
  };
  EXPECT_EQ(signature("application/x-www-form-urlencoded"),
            "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b");
  EXPECT_EQ(signature("application/x-www-form-urlencoded; charset=utf-8"),
            "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422");
}

class S3ExampleTest : public testing::Test {
 protected:
  static Pairs Sign(const char* method, const char* path, Pairs query, Pairs headers,
                    std::string_view payload_sha256) {
    headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
    return SignRequest({.method = method,
                        .path = path,
                        .query = query,
                        .headers = headers,
                        .payload_sha256 = payload_sha256},
                       {.access_key = "AKIAIOSFODNN7EXAMPLE",
                        .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                        .session_token = ""},
                       {.region = "us-east-1"}, kS3ExampleTime);
  }
};

TEST_F(S3ExampleTest, GetObject) {
  const Pairs added = Sign("GET", "/test.txt", {}, {{"Range", "bytes=0-9"}}, kEmptyPayload);
  EXPECT_EQ(ValueOf(added, "authorization"),
            "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(ValueOf(added, "x-amz-content-sha256"), kEmptyPayload);
}

TEST_F(S3ExampleTest, PutObject) {
  const std::string body = "Welcome to Amazon S3.";
  EXPECT_EQ(SignatureIn(Sign("PUT", "/test$file.text", {},
                             {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                              {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                             PayloadSha256(std::as_bytes(std::span(body))))),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_F(S3ExampleTest, GetBucketLifecycleAndList) {
  EXPECT_EQ(SignatureIn(Sign("GET", "/", {{"lifecycle", ""}}, {}, kEmptyPayload)),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(SignatureIn(Sign("GET", "/", {{"max-keys", "2"}, {"prefix", "J"}}, {}, kEmptyPayload)),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_F(S3ExampleTest, AnUnsignedPayloadIsSaidToBeOne) {
  const Pairs added = Sign("PUT", "/x", {}, {}, kUnsignedPayload);
  EXPECT_EQ(ValueOf(added, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
  EXPECT_NE(SignatureIn(added), SignatureIn(Sign("PUT", "/x", {}, {}, kEmptyPayload)));
}

TEST(SigV4Test, TheSentPathIsTheSignedPath) {
  EXPECT_EQ(EscapePath(""), "/");
  EXPECT_EQ(EscapePath("/a b/+\xc3\xa9~"), "/a%20b/%2B%C3%A9~");
  const Pairs query = {{"prefix", "a/b c"}, {"list-type", "2"}, {"versions", ""}};
  EXPECT_EQ(EscapeQuery(query), "list-type=2&prefix=a%2Fb%20c&versions=");
}

}  // namespace
}  // namespace aquifer
