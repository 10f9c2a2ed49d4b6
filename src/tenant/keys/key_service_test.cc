#include "tenant/keys/key_service.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
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

bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 60'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// A key directory that can be made to fail.
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

  std::string KeyFileOf(const TenantId& tenant) const {
    std::string name;
    for (const std::byte one : tenant.bytes) {
      name += fmt::format("{:02x}", std::to_integer<unsigned>(one));
    }
    return scratch_.Sub("keys") + "/" + name;
  }

  // The first answer may be null; a later one is not.
  static SharedDataKey Await(KeyService* service, const TenantId& tenant) {
    EXPECT_TRUE(Eventually([&] { return service->KeyOf(tenant) != nullptr; }));
    return service->KeyOf(tenant);
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
  options.on_forgotten = [&gone](const TenantId& tenant, const std::function<void()>& on_dropped) {
    gone.push_back(tenant);
    on_dropped();
  };
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
  options.on_forgotten = [&gone](const TenantId&, const std::function<void()>&) { ++gone; };
  const auto one = Service();
  const auto two = Service({Master(1)}, options);
  Await(two.get(), kAcme);
  ASSERT_TRUE(one->Destroy(kAcme).ok());
  EXPECT_TRUE(Eventually([&] { return gone > 0; }));
}

TEST_F(KeyServiceTest, AFailingStoreIsAskedAgainAndKnownKeysStay) {
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

TEST_F(KeyServiceTest, AKeyIsMissingOnceItWasLookedForInVainAndUntilItIsFound) {
  Await(Service().get(), kAcme);
  const auto wrong = Service({Master(2)});
  EXPECT_FALSE(wrong->Missing(kAcme)) << "nobody has asked yet";
  EXPECT_EQ(wrong->Known(kAcme), nullptr);
  EXPECT_TRUE(Eventually([&] { return wrong->Missing(kAcme); }));
  EXPECT_NE(wrong->figures().trouble, "");
  ASSERT_TRUE(wrong->SetMasters(std::vector{Master(1)}).ok());
  Await(wrong.get(), kAcme);
  EXPECT_FALSE(wrong->Missing(kAcme));
  // A tenant that has no key has nothing that a key could open: its blocks are dropped.
  EXPECT_EQ(wrong->Known(kOther), nullptr);
  EXPECT_TRUE(Eventually([&] { return wrong->Generations(kOther).has_value(); }));
  EXPECT_FALSE(wrong->Missing(kOther));
}

TEST_F(KeyServiceTest, TheMasterKeyIsChangedWhileItRuns) {
  const auto service = Service({Master(1)});
  const SharedDataKey key = Await(service.get(), kAcme);
  ASSERT_TRUE(service->SetMasters(std::vector{Master(2), Master(1)}).ok());
  EXPECT_EQ(*service->Rewrap(), 1u);
  EXPECT_EQ(*service->Rewrap(), 0u);
  const auto later = Service({Master(2)});
  EXPECT_EQ(Await(later.get(), kAcme)->secret, key->secret);
  // A node that does not know the new master key yet waits for it, and makes no other key.
  const auto behind = Service({Master(1)});
  EXPECT_EQ(behind->KeyOf(kAcme), nullptr);
  EXPECT_TRUE(Eventually([&] { return behind->figures().failures > 0; }));
  EXPECT_EQ(behind->KeyOf(kAcme), nullptr);
  ASSERT_TRUE(behind->SetMasters(std::vector{Master(2)}).ok());
  EXPECT_EQ(Await(behind.get(), kAcme)->secret, key->secret);
  EXPECT_EQ(behind->SetMasters({}).code(), Code::kInvalid);
}

TEST_F(KeyServiceTest, WhoOnlyReadsOrErasesMakesNoKeyForATenantThatIsDeleted) {
  const auto one = Service();
  const auto two = Service();
  const DataKeyId id = Await(one.get(), kAcme)->id;
  Await(two.get(), kAcme);
  ASSERT_TRUE(one->Destroy(kAcme).ok());
  ASSERT_TRUE(two->Refresh().ok());
  for (KeyService* service : {one.get(), two.get()}) {
    EXPECT_EQ(service->Known(kAcme), nullptr);
    std::optional<std::vector<DataKeyId>> generations;
    EXPECT_TRUE(Eventually([&] {
      generations = service->Generations(kAcme);
      return generations.has_value();
    }));
    EXPECT_THAT(*generations, ElementsAre(id)) << "what it wrote is still found";
    EXPECT_EQ(service->Known(kAcme), nullptr);
  }
  EXPECT_FALSE(std::filesystem::exists(KeyFileOf(kAcme)));
  // A tenant that stores again gets another key. The ids of the first one are still known.
  const DataKeyId next = Await(two.get(), kAcme)->id;
  EXPECT_THAT(*two->Generations(kAcme), ElementsAre(id, next));
  EXPECT_TRUE(
      Eventually([&] { return one->Known(kOther) == nullptr && one->Generations(kOther); }));
  EXPECT_TRUE(one->Generations(kOther)->empty());
}

// Erasing the old key's blocks, by names that contain its generation, never meets the new key's.
TEST_F(KeyServiceTest, AReturningTenantGetsItsKeyOnceItsOldBlocksAreDropped) {
  std::function<void()> dropped;
  KeyServiceOptions options;
  options.on_forgotten = [&](const TenantId&, std::function<void()> on_dropped) {
    dropped = std::move(on_dropped);
  };
  const auto one = Service();
  const auto two = Service({Master(1)}, options);
  const DataKeyId old = Await(one.get(), kAcme)->id;
  Await(two.get(), kAcme);
  ASSERT_TRUE(one->Destroy(kAcme).ok());
  const DataKeyId young = Await(one.get(), kAcme)->id;
  ASSERT_TRUE(two->Refresh().ok());
  ASSERT_TRUE(dropped);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(two->KeyOf(kAcme), nullptr);
    EXPECT_EQ(two->Known(kAcme), nullptr);
    EXPECT_THAT(two->Generations(kAcme), testing::Optional(ElementsAre(old)));
    Await(two.get(), TenantIdOf(fmt::format("other {}", i)));  // By now the thread had time for it.
  }
  EXPECT_EQ(two->figures().failures, 0u);
  dropped();
  EXPECT_EQ(Await(two.get(), kAcme)->id, young);
  EXPECT_THAT(two->Generations(kAcme), testing::Optional(ElementsAre(old, young)));
}

TEST_F(KeyServiceTest, WhileADestroyedKeysBlocksAreDroppedItIsSureThatThereIsNoOther) {
  const auto service = Service();
  const DataKeyId old = Await(service.get(), kAcme)->id;
  bool ran = false;
  const auto drop = [&] {
    ran = true;
    EXPECT_THAT(service->Generations(kAcme), testing::Optional(ElementsAre(old)));
    EXPECT_EQ(service->KeyOf(kAcme), nullptr);
  };
  ASSERT_TRUE(service->Destroy(kAcme, drop).ok());
  EXPECT_TRUE(ran);
  EXPECT_NE(Await(service.get(), kAcme)->id, old);
  *fails_ = true;
  ran = false;
  const auto drop_for_nothing = [&] {
    ran = true;
    EXPECT_NE(service->KeyOf(kAcme), nullptr) << "it is not destroyed";
  };
  EXPECT_FALSE(service->Destroy(kAcme, drop_for_nothing).ok());
  EXPECT_TRUE(ran);
}

// Stands for a remote key service, which wraps in its own way.
class RemoteWrapper final : public KeyWrapper {
 public:
  explicit RemoteWrapper(uint8_t number) : number_(static_cast<std::byte>(number)) {}

  MasterKeyId current() const override { return {number_}; }
  Result<std::vector<std::byte>> Wrap(const SecretKey& key,
                                      std::span<const std::byte> associated) override {
    std::vector<std::byte> wrapped(associated.begin(), associated.end());
    for (const std::byte byte : key.bytes()) wrapped.push_back(byte ^ number_);
    return wrapped;
  }
  Result<SecretKey> Unwrap(const MasterKeyId& master, std::span<const std::byte> wrapped,
                           std::span<const std::byte> associated) override {
    if (master != current()) return Status(Code::kInvalid, "the key service has no such key");
    SecretKey key;
    const bool fits = wrapped.size() == associated.size() + key.bytes().size() &&
                      std::ranges::equal(wrapped.first(associated.size()), associated);
    if (!fits) return Status(Code::kCorrupt);
    std::ranges::transform(wrapped.subspan(associated.size()), key.writable().begin(),
                           [this](std::byte byte) { return byte ^ number_; });
    return key;
  }

 private:
  const std::byte number_;
};

TEST_F(KeyServiceTest, AKeyServiceMayWrapInPlaceOfMasterKeys) {
  const auto start = [this](uint8_t number) {
    return KeyService::Start(*OpenKeyDirectory(scratch_.Sub("keys")),
                             std::make_unique<RemoteWrapper>(number), {});
  };
  const auto service = start(7);
  const SharedDataKey key = Await(service.get(), kAcme);
  EXPECT_EQ(Await(start(7).get(), kAcme)->secret, key->secret);
  const auto other = start(8);
  other->KeyOf(kAcme);
  EXPECT_TRUE(Eventually([&] { return other->figures().failures > 0; }));
  EXPECT_THAT(other->figures().trouble, HasSubstr("no such key"));
  EXPECT_EQ(other->KeyOf(kAcme), nullptr);
  other->SetWrapper(std::make_unique<RemoteWrapper>(7));
  EXPECT_EQ(Await(other.get(), kAcme)->secret, key->secret);
}

TEST_F(KeyServiceTest, NodesThatWereNotThereKnowWhichKeysWereDestroyed) {
  const auto one = Service();
  const DataKeyId id = Await(one.get(), kAcme)->id;
  const DataKeyId other = Await(one.get(), kOther)->id;
  ASSERT_TRUE(one->Destroy(kAcme).ok());
  EXPECT_TRUE(one->IsDestroyed(id));
  KeyServiceOptions unhurried;
  unhurried.refresh_nanos *= 1000;
  const auto later = Service({Master(1)}, unhurried);
  EXPECT_TRUE(Eventually([&] { return later->IsDestroyed(id); })) << "it asks at its start";
  EXPECT_THAT(later->Destroyed(), ElementsAre(id));
  EXPECT_FALSE(later->IsDestroyed(other));
  EXPECT_EQ(*later->Rewrap(), 0u) << "a mark is no key";
}

TEST_F(KeyServiceTest, ADamagedKeyKeepsNoOtherWaiting) {
  Await(Service().get(), kAcme);
  std::filesystem::resize_file(KeyFileOf(kAcme), 20);
  const auto service = Service();
  service->KeyOf(kAcme);
  // Until the pause has grown beyond what a test would wait for.
  EXPECT_TRUE(Eventually([&] { return service->figures().failures >= 3; }));
  EXPECT_THAT(service->figures().trouble, HasSubstr("damaged"));
  const auto begin = std::chrono::steady_clock::now();
  Await(service.get(), kOther);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_EQ(service->figures().wanted, 1u);
  EXPECT_THAT(service->figures().trouble, HasSubstr("damaged")) << "it still is";
}

}  // namespace
}  // namespace aquifer
