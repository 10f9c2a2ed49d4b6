// Tests credentials by web identity from a real STS: MinIO's, which trusts the tokens of the test's
// own provider.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/check.h"
#include "store/s3/object_store.h"
#include "testing/blob_caller.h"
#include "testing/scratch_directory.h"
#include "testing/servers/identity_provider.h"
#include "testing/servers/s3_server.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

class WebIdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!IsFullRun()) GTEST_SKIP() << "with --full";
    if (S3Server::ProgramPath(S3Program::kMinio).empty()) {
      GTEST_SKIP() << "minio is not installed; next step: tools/install-peers --full";
    }
    provider_ = std::make_unique<IdentityProvider>();
    server_ = std::make_unique<S3Server>(S3ServerOptions{
        .program = S3Program::kMinio,
        .environment = {"MINIO_IDENTITY_OPENID_CONFIG_URL=" + provider_->configuration_url(),
                        "MINIO_IDENTITY_OPENID_CLIENT_ID=aquifer",
                        "MINIO_IDENTITY_OPENID_CLAIM_NAME=policy"}});
  }

  static IdentityProvider::Claims ClaimsOf(const std::string& policy) {
    return {.audience = "aquifer",
            .policy = policy,
            .expiry_unix_seconds = SystemClock()->UnixSeconds() + 3600};
  }
  void GiveToken(const std::string& token) const { std::ofstream(token_file_) << token << "\n"; }
  // Opens a store that knows only where its token is.
  std::unique_ptr<BlobStore> Open() const {
    BucketOptions options = server_->Options();
    options.credentials = {.token_file = token_file_,
                           .role_arn = {},
                           .sts_endpoint = server_->url(),
                           .file = {},
                           .given = {}};
    auto store = NewObjectStore(options, SystemClock(), SystemRandom());
    AQ_CHECK(store.ok());
    return *std::move(store);
  }

  const ScratchDirectory scratch_;
  const std::string token_file_ = scratch_.Sub("token");
  std::unique_ptr<IdentityProvider> provider_;
  std::unique_ptr<S3Server> server_;
};

TEST_F(WebIdentityTest, AnAllowedActionSucceeds) {
  GiveToken(provider_->Token(ClaimsOf("readwrite")));
  const auto store = Open();
  BlobCaller caller(store.get());
  EXPECT_TRUE(caller.Write("a", 100'000, 1).ok());
  EXPECT_TRUE(caller.Read("a", 100'000, 1).ok());
  EXPECT_TRUE(caller.Remove("a").ok());
  EXPECT_EQ(caller.Read("a", 100'000, 1).code(), Code::kNotFound);
}

TEST_F(WebIdentityTest, AnActionThatTheTokenDoesNotAllowFails) {
  GiveToken(provider_->Token(ClaimsOf("readonly")));
  const auto store = Open();
  BlobCaller caller(store.get());
  const Status written = caller.Write("a", 100'000, 1);
  EXPECT_EQ(written.code(), Code::kUnavailable);
  EXPECT_THAT(written.message(), HasSubstr("next step: "));
}

TEST_F(WebIdentityTest, ATokenThatIsNotBelievedIsSaidToBeAndAnotherIsTakenWithoutARestart) {
  IdentityProvider::Claims expired = ClaimsOf("readwrite");
  expired.expiry_unix_seconds = SystemClock()->UnixSeconds() - 3600;
  IdentityProvider::Claims elsewhere = ClaimsOf("readwrite");
  elsewhere.audience = "another";
  for (const std::string& token :
       {provider_->ForgedToken(ClaimsOf("readwrite")), provider_->Token(expired),
        provider_->Token(elsewhere), std::string("nonsense")}) {
    GiveToken(token);
    const auto store = Open();
    BlobCaller caller(store.get());
    const Status written = caller.Write("a", 100'000, 1);
    EXPECT_EQ(written.code(), Code::kUnavailable);
    EXPECT_THAT(written.message(),
                AllOf(HasSubstr("does not exchange our web identity token"),
                      HasSubstr("next step: see that the role trusts its issuer, and that the "
                                "token has not expired"),
                      Not(HasSubstr(token))));
    GiveToken(provider_->Token(ClaimsOf("readwrite")));
    // One exchange a second at most.
    EXPECT_TRUE(Eventually([&] { return caller.Write("b", 100'000, 1).ok(); })) << token;
    EXPECT_TRUE(caller.Remove("b").ok());
  }
}

}  // namespace
}  // namespace aquifer
