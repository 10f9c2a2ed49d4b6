#include "tenant/key_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TenantId kAcme = TenantIdOf("acme");
const TenantId kOther = TenantIdOf("other");

SecretKey Master(unsigned char fill) {
  SecretKey key;
  for (std::byte& byte : key.writable()) byte = static_cast<std::byte>(fill);
  return key;
}

// A directory that can be made to fail.
class FailingStore final : public KeyStore {
 public:
  FailingStore(std::unique_ptr<KeyStore> store, std::shared_ptr<std::atomic<bool>> fails)
      : store_(std::move(store)), fails_(std::move(fails)) {}

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override {
    return *fails_ ? Failed() : store_->Create(name, value);
  }
  Result<std::vector<std::byte>> Read(const std::string& name) override {
    return *fails_ ? Failed() : store_->Read(name);
  }
  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override {
    return *fails_ ? Failed() : store_->Replace(name, expected, value);
  }
  Status Delete(const std::string& name) override {
    return *fails_ ? Failed() : store_->Delete(name);
  }
  Result<std::vector<std::string>> List() override { return *fails_ ? Failed() : store_->List(); }

 private:
  static Status Failed() { return Status(Code::kUnavailable, "no such store today"); }

  const std::unique_ptr<KeyStore> store_;
  const std::shared_ptr<std::atomic<bool>> fails_;
};

class KeyServiceTest : public testing::Test {
 protected:
  std::unique_ptr<KeyService> Service(const std::vector<SecretKey>& masters = {Master(1)},
                                      KeyServiceOptions options = {}) {
    auto directory = OpenKeyDirectory(scratch_.Sub("keys"));
    EXPECT_TRUE(directory.ok()) << directory.status().ToString();
    auto service = KeyService::Start(std::make_unique<FailingStore>(std::move(*directory), fails_),
                                     masters, options);
    EXPECT_TRUE(service.ok()) << service.status().ToString();
    return std::move(*service);
  }

  // The first answer may be null; some later one is not.
  static SharedDataKey Await(KeyService* service, const TenantId& tenant) {
    while (true) {
      if (SharedDataKey key = service->KeyOf(tenant)) return key;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const ScratchDirectory scratch_;
  const std::shared_ptr<std::atomic<bool>> fails_ = std::make_shared<std::atomic<bool>>(false);
};

TEST_F(KeyServiceTest, AKeyIsMadeOnceAndAllSeeTheSame) {
  const auto one = Service();
  const auto two = Service();
  EXPECT_EQ(one->KeyOf(kAcme), nullptr) << "nobody waits for a store here";
  const SharedDataKey key = Await(one.get(), kAcme);
  EXPECT_EQ(Await(two.get(), kAcme)->secret, key->secret);
  EXPECT_NE(Await(two.get(), kOther)->id, key->id);
  EXPECT_EQ(two->figures().known, 2u);
  EXPECT_EQ(two->figures().wanted, 0u);
}

TEST_F(KeyServiceTest, WhoeverReadsAgainNoticesThatAKeyIsGone) {
  std::vector<TenantId> gone;
  KeyServiceOptions options;
  options.on_forgotten = [&gone](const TenantId& tenant) { gone.push_back(tenant); };
  const auto one = Service();
  const auto two = Service({Master(1)}, options);
  const SharedDataKey old = Await(one.get(), kAcme);
  Await(two.get(), kAcme);
  Await(two.get(), kOther);
  ASSERT_TRUE(one->Destroy(kAcme).ok());
  EXPECT_NE(two->KeyOf(kAcme), nullptr);
  ASSERT_TRUE(two->Refresh().ok());
  EXPECT_THAT(gone, ElementsAre(kAcme));
  EXPECT_EQ(two->figures().forgotten, 1u);
  EXPECT_GT(two->figures().refreshed_unix, 0);
  EXPECT_NE(two->KeyOf(kOther), nullptr);
  EXPECT_NE(Await(two.get(), kAcme)->id, old->id) << "what comes next has nothing to do with it";
}

TEST_F(KeyServiceTest, ItReadsAgainByItself) {
  std::atomic<int> gone = 0;
  KeyServiceOptions options;
  options.refresh_nanos = 1'000'000;
  options.on_forgotten = [&gone](const TenantId&) { ++gone; };
  const auto one = Service();
  const auto two = Service({Master(1)}, options);
  Await(two.get(), kAcme);
  ASSERT_TRUE(one->Destroy(kAcme).ok());
  while (gone == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(KeyServiceTest, AStoreThatFailsIsAskedAgainAndWhatIsKnownStays) {
  std::vector<std::string> lines;
  KeyServiceOptions options;
  Mutex mutex;
  options.log = [&](const std::string& line) {
    const MutexLock lock(&mutex);
    lines.push_back(line);
  };
  const auto service = Service({Master(1)}, options);
  Await(service.get(), kAcme);
  *fails_ = true;
  EXPECT_EQ(service->KeyOf(kOther), nullptr);
  EXPECT_EQ(service->Refresh().code(), Code::kUnavailable);
  EXPECT_NE(service->KeyOf(kAcme), nullptr);
  EXPECT_THAT(service->figures().trouble, HasSubstr("no such store today"));
  EXPECT_FALSE(service->Destroy(kAcme).ok());
  EXPECT_NE(service->KeyOf(kAcme), nullptr) << "it is not destroyed, so it is not forgotten";
  *fails_ = false;
  Await(service.get(), kOther);
  ASSERT_TRUE(service->Refresh().ok());
  EXPECT_GE(service->figures().failures, 1u);
  EXPECT_EQ(service->figures().trouble, "");
  const MutexLock lock(&mutex);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("cannot be read: no such store today"),
                                 HasSubstr("can be read again")));
}

TEST_F(KeyServiceTest, TheMasterKeyIsChangedWhileItRuns) {
  const auto service = Service({Master(1)});
  const SharedDataKey key = Await(service.get(), kAcme);
  ASSERT_TRUE(service->SetMasters(std::vector{Master(2), Master(1)}).ok());
  EXPECT_EQ(*service->Rewrap(), 1u);
  EXPECT_EQ(*service->Rewrap(), 0u);
  const auto later = Service({Master(2)});
  EXPECT_EQ(Await(later.get(), kAcme)->secret, key->secret);
  // One that does not have the new one yet waits for it, and makes no other key.
  const auto behind = Service({Master(1)});
  EXPECT_EQ(behind->KeyOf(kAcme), nullptr);
  while (behind->figures().failures == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(behind->KeyOf(kAcme), nullptr);
  ASSERT_TRUE(behind->SetMasters(std::vector{Master(2)}).ok());
  EXPECT_EQ(Await(behind.get(), kAcme)->secret, key->secret);
  EXPECT_EQ(behind->SetMasters({}).code(), Code::kInvalid);
}

}  // namespace
}  // namespace aquifer
