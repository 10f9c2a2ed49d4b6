#include "tenant/keys/key_bucket.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tenant/keys/data_keys.h"
#include "testing/fault_proxy.h"
#include "testing/seeded_random.h"
#include "testing/servers/s3_server.h"
#include "testing/servers/scripted_http.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Value(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<KeyStore> Store(BucketOptions options) {
  options.prefix = "shared/";
  return *OpenKeyBucket(options, SystemClock(), SystemRandom());
}

class KeyBucketTest : public testing::Test {
 protected:
  void SetUp() override {
    if (S3Server::ProgramPath(S3Program::kVersity).empty()) {
      GTEST_SKIP() << "versitygw is not installed; next step: tools/install-peers";
    }
    server_ = std::make_unique<S3Server>();
    store_ = Store(server_->Options());
  }

  std::unique_ptr<S3Server> server_;
  std::unique_ptr<KeyStore> store_;
};

TEST_F(KeyBucketTest, ValuesAreMadeOnceReplacedIfAsExpectedAndDeleted) {
  EXPECT_EQ(store_->Read("a1").status().code(), Code::kNotFound);
  EXPECT_TRUE(*store_->Create("a1", Value("one")));
  EXPECT_FALSE(*store_->Create("a1", Value("two")));
  EXPECT_EQ(*store_->Read("a1"), Value("one"));
  EXPECT_FALSE(*store_->Replace("a1", Value("other"), Value("two")));
  EXPECT_FALSE(*store_->Replace("b2", Value("one"), Value("two")));
  EXPECT_TRUE(*store_->Replace("a1", Value("one"), Value("two")));
  EXPECT_TRUE(*store_->Create("b2", Value("three")));
  EXPECT_EQ(*Store(server_->Options())->List(), (std::vector<std::string>{"a1", "b2"}));
  EXPECT_TRUE(store_->Delete("a1").ok());
  EXPECT_TRUE(store_->Delete("a1").ok());
  EXPECT_EQ(store_->Read("a1").status().code(), Code::kNotFound);
  EXPECT_EQ(*store_->List(), std::vector<std::string>{"b2"});
  EXPECT_EQ(store_->Create("A", Value("x")).status().code(), Code::kInvalid);
}

TEST_F(KeyBucketTest, OfManyThatMakeOrReplaceAValueOneDoes) {
  if (!S3Server::HasAttributes()) GTEST_SKIP() << "files here have no attributes";
  const S3Server server({.in_attributes = true});
  constexpr size_t kThreads = 6;
  std::vector<std::unique_ptr<KeyStore>> stores;
  for (size_t i = 0; i < kThreads; ++i) stores.push_back(Store(server.Options()));
  std::atomic<int> made = 0;
  std::atomic<int> replaced = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Bytes mine = Value("value-" + std::to_string(i));
      Result<Bytes> seen = Status(Code::kNotFound);
      // The server may refuse all writers that come at once; each one tries again then.
      for (int attempt = 0; attempt < 100 && !seen.ok(); ++attempt) {
        const Result<bool> created = stores[i]->Create("contested", mine);
        made += created.ok() && *created ? 1 : 0;
        seen = stores[i]->Read("contested");
      }
      ASSERT_TRUE(seen.ok()) << seen.status().ToString();
      if (*seen == Value("last")) return;
      const Result<bool> changed = stores[i]->Replace("contested", *seen, Value("last"));
      replaced += changed.ok() && *changed ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_GE(replaced, 1);  // Several writers may have asked for the very same change.
  const Result<Bytes> last = stores[0]->Read("contested");
  ASSERT_TRUE(last.ok()) << last.status().ToString();
  EXPECT_EQ(*last, Value("last"));
}

TEST_F(KeyBucketTest, AServerThatIsGoneOrHasLostItsBucketIsNoReasonToForget) {
  ASSERT_TRUE(*store_->Create("a1", Value("one")));
  server_->DestroyBucket();
  EXPECT_EQ(store_->Read("a1").status().code(), Code::kUnavailable);
  EXPECT_EQ(store_->List().status().code(), Code::kUnavailable);
  server_->Kill();
  EXPECT_EQ(store_->Read("a1").status().code(), Code::kUnavailable);
  EXPECT_EQ(store_->List().status().code(), Code::kUnavailable);
  EXPECT_EQ(store_->Create("b2", Value("one")).status().code(), Code::kUnavailable);
}

TEST_F(KeyBucketTest, AnAnswerThatIsLostDoesNotMakeAKeySomebodyElses) {
  ASSERT_TRUE(*store_->Create("first", Value("one")));
  FaultProxy proxy(server_->port());
  const auto store = Store(server_->Options(proxy.port()));
  ASSERT_TRUE(*store->Create("second", Value("two")));
  proxy.Set({.cut_answers_after = 0, .times = 1});
  EXPECT_TRUE(*store->Create("third", Value("three")));
  EXPECT_EQ(proxy.faults_happened(), 1u);
}

TEST_F(KeyBucketTest, TenantsKeysLiveInIt) {
  std::vector<SecretKey> masters(1);
  SeededRandom(1).Fill(masters[0].writable());
  const auto wrapper = *NewMasterKeyWrapper(masters, SystemRandom());
  DataKeys ours(store_.get(), wrapper.get(), SystemRandom());
  const auto other_store = Store(server_->Options());
  DataKeys theirs(other_store.get(), wrapper.get(), SystemRandom());
  const auto made = ours.GetOrMake(TenantIdOf("acme"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto found = theirs.GetOrMake(TenantIdOf("acme"));
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ((*made)->id, (*found)->id);
}

TEST(KeyBucketRefusalTest, ABucketWithVersionsIsRefused) {
  const ScriptedHttp server([](const HttpQuestion&) -> HttpReply {
    return {.body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"};
  });
  const Status status = Store(S3Server::OptionsFor(server.url()))->Create("a", Value("b")).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("versions"), std::string::npos) << status.ToString();
}

TEST(KeyBucketRefusalTest, AServerThatIgnoresConditionsIsRefused) {
  const ScriptedHttp server([](const HttpQuestion& question) -> HttpReply {
    return {.body = question.method == "GET" ? "<VersioningConfiguration/>" : ""};
  });
  const Status status = Store(S3Server::OptionsFor(server.url()))->Create("a", Value("b")).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("conditional"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace aquifer
