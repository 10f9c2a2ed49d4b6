// Tests rare behaviour of real servers with a scripted one: a server that asks us to slow down,
// redirects us, or ends our session; token exchanges; and requests as they look on the wire.
#include "store/s3/bucket.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "testing/scratch_directory.h"
#include "testing/servers/s3_server.h"
#include "testing/servers/scripted_http.h"

namespace {

constexpr const char* kHangingName = "hangs.invalid";
std::atomic<int> hanging = 0;
std::atomic<bool> let_go = false;

}  // namespace

// Replaces the C library's function in this program, libcurl included: a name server that hangs.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || std::strcmp(name, kHangingName) != 0) {
    return real(name, service, hints, found);
  }
  ++hanging;
  for (int i = 0; i < 3000 && !let_go; ++i) {  // Not for ever, so that the test ends.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  --hanging;
  return EAI_AGAIN;
}

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string ErrorText(std::string_view code) {
  return fmt::format("<Error><Code>{}</Code></Error>", code);
}

std::unique_ptr<Bucket> BucketAt(const std::string& url,
                                 const std::function<void(BucketOptions*)>& change = {}) {
  BucketOptions options = S3Server::OptionsFor(url);
  if (change) change(&options);
  auto bucket = NewBucket(options, SystemClock(), SystemRandom());
  AQ_CHECK(bucket.ok());
  return *std::move(bucket);
}

Status Get(Bucket* bucket, int64_t timeout_nanos = 30 * kSecond) {
  S3Request get{
      .method = "GET", .key = "name", .deadline_nanos = SystemClock()->NowNanos() + timeout_nanos};
  return DoS3(bucket, &get);
}

void WriteFile(const std::string& path, std::string_view text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

// The bucket's thread does not wait for the name server, neither when a request ends nor when the
// bucket does.
TEST(BucketTest, ANameServerThatHangsHoldsNobodyUp) {
  const ScriptedHttp server([](const HttpQuestion&) -> HttpReply { return {.body = "fine"}; });
  const int64_t begun = SystemClock()->NowNanos();
  {
    const auto bucket =
        BucketAt(fmt::format("https://{}", kHangingName), [&](BucketOptions* options) {
          options->connect_nanos = kSecond / 5;
          options->endpoints.push_back(S3Server::OptionsFor(server.url()).endpoints[0]);
        });
    for (int i = 0; i < 4; ++i) {
      const Status status = Get(bucket.get(), 10 * kSecond);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    EXPECT_GT(hanging, 0) << "nobody asked for the name";
    const auto alone = BucketAt(fmt::format("https://{}", kHangingName));
    EXPECT_EQ(Get(alone.get(), kSecond / 2).code(), Code::kLate);
  }
  EXPECT_LT(SystemClock()->NowNanos() - begun, 8 * kSecond);
  let_go = true;
  while (hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(BucketTest, PassingTroubleIsTriedAgainAndLastingTroubleIsTold) {
  std::atomic<int> asked = 0;
  std::atomic<int> troubles = 2;
  const ScriptedHttp server([&](const HttpQuestion&) -> HttpReply {
    ++asked;
    return troubles-- > 0 ? HttpReply{.status = 500, .body = ErrorText("InternalError")}
                          : HttpReply{.body = "fine"};
  });
  const auto bucket = BucketAt(server.url());
  EXPECT_TRUE(Get(bucket.get()).ok());
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(bucket->counters().retries, 2u);
  troubles = 1'000;
  asked = 0;
  EXPECT_EQ(Get(bucket.get()).code(), Code::kUnavailable);
  EXPECT_EQ(asked, 5);
}

// libcurl leaves a handle whose name has no address in a special state.
TEST(BucketTest, ANameWithoutAnAddressIsToldAndNamesThatHaveOneGoOn) {
  const auto nowhere = BucketAt("https://no-such-host.invalid");
  for (int i = 0; i < 3; ++i) {
    const Status status = Get(nowhere.get(), kSecond);
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find("has no address"), std::string::npos) << status.ToString();
  }
  const ScriptedHttp server([](const HttpQuestion&) -> HttpReply { return {.body = "fine"}; });
  const auto one_of_two = BucketAt("https://no-such-host.invalid", [&](BucketOptions* options) {
    options->endpoints.push_back(S3Server::OptionsFor(server.url()).endpoints[0]);
  });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Get(one_of_two.get()).ok());
}

TEST(BucketTest, ARetryThatWouldBeLateIsNotMade) {
  std::atomic<int> asked = 0;
  const ScriptedHttp server([&](const HttpQuestion&) -> HttpReply {
    ++asked;
    return {.status = 503, .headers = "retry-after: 5\r\n", .body = ErrorText("SlowDown")};
  });
  const auto bucket = BucketAt(server.url());
  const Status status = Get(bucket.get(), kSecond / 2);
  EXPECT_TRUE(status.code() == Code::kBusy || status.code() == Code::kLate) << status.ToString();
  EXPECT_EQ(asked, 1);
}

TEST(BucketTest, SlowDownIsObeyedByAllAndOverSoon) {
  std::atomic<int> refusals = 8;
  std::atomic<int> served = 0;
  const ScriptedHttp server([&](const HttpQuestion&) -> HttpReply {
    if (refusals-- > 0) return {.status = 503, .body = ErrorText("SlowDown")};
    ++served;
    return {.body = "fine"};
  });
  const auto bucket = BucketAt(server.url(), [](BucketOptions* options) {
    options->max_connections = 8;
    options->most_attempts = 20;
  });
  constexpr int kRequests = 40;
  std::vector<S3Request> requests(kRequests);
  std::atomic<int> fine = 0;
  std::atomic<int> done = 0;
  std::promise<void> all;
  for (S3Request& request : requests) {
    request.method = "GET";
    request.key = "name";
    request.on_done = [&](S3Request& answered) {
      if (answered.status.ok()) ++fine;
      if (++done == kRequests) all.set_value();
    };
    bucket->Submit(&request);
  }
  all.get_future().wait();
  EXPECT_EQ(fine, kRequests);
  EXPECT_EQ(served, kRequests);
  EXPECT_EQ(bucket->counters().slow_downs, 8u);
}

TEST(BucketTest, BackgroundRequestsLeaveConnectionsToTheRest) {
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  std::mutex mutex;
  std::vector<std::string> order;
  const ScriptedHttp server([&](const HttpQuestion& question) -> HttpReply {
    open.wait();
    const std::lock_guard lock(mutex);
    order.push_back(question.target);
    return {};
  });
  const auto bucket =
      BucketAt(server.url(), [](BucketOptions* options) { options->max_connections = 4; });
  std::vector<S3Request> requests(9);
  std::atomic<int> done = 0;
  std::promise<void> all;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].method = "GET";
    requests[i].key = i < 8 ? "background" : "first";
    requests[i].background = i < 8;
    requests[i].on_done = [&](S3Request&) {
      if (++done == 9) all.set_value();
    };
    bucket->Submit(&requests[i]);
  }
  gate.set_value();
  all.get_future().wait();
  const auto first = std::find(order.begin(), order.end(), "/kv-cache/first");
  EXPECT_LE(first - order.begin(), 4);
}

TEST(BucketTest, TheRegionThatAServerNamesIsInTheAdvice) {
  const ScriptedHttp server([](const HttpQuestion&) -> HttpReply {
    return {.status = 301,
            .headers = "x-amz-bucket-region: ap-south-1\r\n",
            .body = ErrorText("PermanentRedirect")};
  });
  const Status status = Get(BucketAt(server.url()).get());
  EXPECT_NE(status.message().find("region = \"ap-south-1\""), std::string::npos)
      << status.ToString();
}

TEST(BucketTest, PathsAndVirtualHostsArePutTogetherAndPayloadsSignedWithoutTls) {
  std::mutex mutex;
  HttpQuestion last;
  const ScriptedHttp server([&](const HttpQuestion& question) -> HttpReply {
    const std::lock_guard lock(mutex);
    last = question;
    return {};
  });
  const auto put = [&](Bucket* bucket) {
    const std::string_view text = "hello";
    S3Request request{.method = "PUT",
                      .key = "kv/a b",
                      .query = {{"x", "1/2"}},
                      .send = {std::as_bytes(std::span(text)).first(2),
                               std::as_bytes(std::span(text)).subspan(2)}};
    EXPECT_TRUE(DoS3(bucket, &request).ok());
    const std::lock_guard lock(mutex);
    return last;
  };
  HttpQuestion asked = put(BucketAt(server.url()).get());
  EXPECT_EQ(asked.target, "/kv-cache/kv/a%20b?x=1%2F2");
  EXPECT_EQ(asked.body, "hello");
  EXPECT_EQ(asked.headers["x-amz-content-sha256"],
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
  const std::string local = "http://localhost" + server.url().substr(server.url().rfind(':'));
  asked = put(BucketAt(local, [](BucketOptions* options) { options->virtual_host = true; }).get());
  EXPECT_EQ(asked.target, "/kv/a%20b?x=1%2F2");
  EXPECT_EQ(asked.headers["host"], "kv-cache." + local.substr(7));
}

// Exchanges the token for new credentials each time, and accepts the newest ones.
class TokenServer {
 public:
  HttpReply Answer(const HttpQuestion& question) {
    if (question.method == "POST") return Exchange(question);
    const bool good =
        question.headers.at("x-amz-security-token") == fmt::format("session-{}", exchanges_) &&
        question.headers.at("authorization").find(fmt::format("key-{}", exchanges_)) !=
            std::string::npos;
    return good && !expired_ ? HttpReply{.body = "fine"}
                             : HttpReply{.status = 400,
                                         .body =
                                             "<Error><Code>ExpiredToken</Code><Message>of "
                                             "session-1</Message></Error>"};
  }
  int exchanges() const { return exchanges_; }
  void Expire() { expired_ = true; }
  std::atomic<bool> refuses = false;

 private:
  HttpReply Exchange(const HttpQuestion& question) {
    const bool good =
        question.body.find("Action=AssumeRoleWithWebIdentity") != std::string::npos &&
        question.body.find("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fkv") != std::string::npos &&
        question.body.ends_with("WebIdentityToken=the.token");
    if (!good || refuses) {
      return {.status = 400,
              .body =
                  "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error>"
                  "</ErrorResponse>"};
    }
    expired_ = false;
    ++exchanges_;
    return {.body = fmt::format(
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                "<AccessKeyId>key-{0}</AccessKeyId><SecretAccessKey>secret-{0}</SecretAccessKey>"
                "<SessionToken>session-{0}</SessionToken>"
                "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
                exchanges_)};
  }

  std::atomic<int> exchanges_ = 0;
  std::atomic<bool> expired_ = false;
};

TEST(BucketCredentialsTest, AWebIdentityIsExchangedAndExchangedAgainWhenItsSessionEnds) {
  const ScratchDirectory directory;
  WriteFile(directory.Sub("token"), "the.token\n");
  TokenServer tokens;
  const ScriptedHttp server([&](const HttpQuestion& question) { return tokens.Answer(question); });
  const auto bucket = BucketAt(server.url(), [&](BucketOptions* options) {
    options->credentials = {.token_file = directory.Sub("token"),
                            .role_arn = "arn:aws:iam::1:role/kv",
                            .sts_endpoint = server.url(),
                            .file = {},
                            .given = {}};
  });
  EXPECT_TRUE(Get(bucket.get()).ok());
  EXPECT_TRUE(Get(bucket.get()).ok());
  EXPECT_EQ(tokens.exchanges(), 1);
  // One exchange a second at most: earlier requests are refused, with that reason.
  tokens.Expire();
  Status status;
  for (int i = 0; i < 200 && tokens.exchanges() == 1; ++i) {
    status = Get(bucket.get());
    if (!status.ok()) {
      EXPECT_EQ(status.message().find("session-1"), std::string::npos);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(tokens.exchanges(), 2);
  EXPECT_TRUE(Get(bucket.get()).ok());
}

TEST(BucketCredentialsTest, ATokenThatIsRefusedOrNotThereIsSaid) {
  const ScratchDirectory directory;
  TokenServer tokens;
  tokens.refuses = true;
  const ScriptedHttp server([&](const HttpQuestion& question) { return tokens.Answer(question); });
  const auto status_of = [&](const std::string& file) {
    const auto bucket = BucketAt(server.url(), [&](BucketOptions* options) {
      options->credentials = {.token_file = directory.Sub(file),
                              .role_arn = "arn:aws:iam::1:role/kv",
                              .sts_endpoint = server.url(),
                              .file = {},
                              .given = {}};
    });
    return Get(bucket.get());
  };
  EXPECT_NE(status_of("none").message().find("cannot be read"), std::string::npos);
  WriteFile(directory.Sub("token"), "the.token");
  const Status refused = status_of("token");
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find("InvalidIdentityToken"), std::string::npos)
      << refused.ToString();
  EXPECT_EQ(refused.message().find("the.token"), std::string::npos);
}

TEST(BucketCredentialsTest, AnExchangeThatRepeatsTheTokenGetsItIntoNoMessage) {
  const ScratchDirectory directory;
  WriteFile(directory.Sub("token"), "the.token");
  for (const char* error : {"<Code>ExpiredToken</Code><Message>the.token is too old</Message>",
                            "<Code>the.token</Code>", "<Message>the.token</Message>"}) {
    const ScriptedHttp server([&](const HttpQuestion&) -> HttpReply {
      return {.status = 400,
              .body = fmt::format("<ErrorResponse><Error>{}</Error></ErrorResponse>", error)};
    });
    const auto bucket = BucketAt(server.url(), [&](BucketOptions* options) {
      options->credentials = {.token_file = directory.Sub("token"),
                              .role_arn = {},
                              .sts_endpoint = server.url(),
                              .file = {},
                              .given = {}};
    });
    const Status status = Get(bucket.get());
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_NE(status.message().find("does not exchange our web identity token"), std::string::npos)
        << status.ToString();
    EXPECT_EQ(status.message().find("the.token"), std::string::npos) << status.ToString();
  }
}

TEST(BucketCredentialsTest, AFileThatOthersMayReadIsRefusedUntilItIsClosed) {
  const ScratchDirectory directory;
  const ScriptedHttp server([](const HttpQuestion&) -> HttpReply { return {.body = "fine"}; });
  const auto bucket = BucketAt(server.url(), [&](BucketOptions* options) {
    options->credentials = {.token_file = {},
                            .role_arn = {},
                            .sts_endpoint = {},
                            .file = directory.Sub("credentials"),
                            .given = {}};
  });
  const std::string_view text = "aws_access_key_id = a\naws_secret_access_key = s3cret\n";
  WriteFile(directory.Sub("credentials"), text, 0644);
  const Status open = Get(bucket.get());
  EXPECT_EQ(open.code(), Code::kUnavailable);
  EXPECT_NE(open.message().find("chmod 600"), std::string::npos) << open.ToString();
  WriteFile(directory.Sub("credentials"), text, 0600);
  EXPECT_TRUE(Get(bucket.get()).ok());
}

TEST(BucketCredentialsTest, AFileIsReadAgainWhenTheServerRefusesItsCredentials) {
  const ScratchDirectory directory;
  const ScriptedHttp server([&](const HttpQuestion& question) -> HttpReply {
    const bool good =
        question.headers.at("authorization").find("Credential=new/") != std::string::npos;
    return good ? HttpReply{.body = "fine"}
                : HttpReply{.status = 403, .body = ErrorText("InvalidAccessKeyId")};
  });
  const auto bucket = BucketAt(server.url(), [&](BucketOptions* options) {
    options->credentials = {.token_file = {},
                            .role_arn = {},
                            .sts_endpoint = {},
                            .file = directory.Sub("credentials"),
                            .given = {}};
  });
  EXPECT_NE(Get(bucket.get()).message().find("cannot be read"), std::string::npos);
  WriteFile(directory.Sub("credentials"),
            "[default]\naws_access_key_id = old\naws_secret_access_key = s3cret\n");
  const Status old = Get(bucket.get());
  EXPECT_EQ(old.code(), Code::kUnavailable);
  EXPECT_EQ(old.message().find("s3cret"), std::string::npos);
  WriteFile(directory.Sub("credentials"),
            "[default]\naws_access_key_id = new\naws_secret_access_key = s3cret\n");
  EXPECT_TRUE(Get(bucket.get()).ok());
}

}  // namespace
}  // namespace aquifer
