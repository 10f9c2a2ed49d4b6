#include "tenant/keys/data_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "tenant/keys/mounted_keys.h"
#include "testing/failing_calls.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using Bytes = std::vector<std::byte>;

const TenantId kAcme = TenantIdOf("acme");
const TenantId kOther = TenantIdOf("other");

SecretKey Secret(uint64_t seed) {
  SecretKey key;
  SeededRandom(seed).Fill(key.writable());
  return key;
}

std::unique_ptr<KeyWrapper> Wrapper(const std::vector<SecretKey>& masters) {
  return *NewMasterKeyWrapper(masters, SystemRandom());
}

Bytes FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Bytes bytes;
  for (char c = 0; file.get(c);) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

void WriteFile(const std::string& path, const Bytes& bytes) {
  // Some filesystems sync a file that was truncated and written anew.
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

std::set<std::string> NamesIn(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.insert(entry.path().filename());
  }
  return names;
}

bool Contains(const Bytes& all, std::span<const std::byte> part) {
  return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

// One key store in a directory, and a node's view of it.
class DataKeysTest : public testing::Test {
 protected:
  std::string path() const { return scratch_.Sub("keys"); }
  std::string FileOf(const TenantId& tenant) const {
    std::string name;
    for (const std::byte byte : tenant.bytes) {
      char text[3];
      std::snprintf(text, sizeof(text), "%02x", std::to_integer<unsigned>(byte));
      name += text;
    }
    return path() + "/" + name;
  }

  ScratchDirectory scratch_;
  const std::unique_ptr<KeyStore> store_ = *OpenKeyDirectory(path());
  const std::unique_ptr<KeyWrapper> wrapper_ = Wrapper({Secret(1)});
  DataKeys keys_{store_.get(), wrapper_.get(), SystemRandom()};
};

TEST_F(DataKeysTest, AKeyIsMadeOnceAndFoundByEveryNode) {
  EXPECT_EQ(keys_.Known(kAcme), nullptr);
  EXPECT_EQ(keys_.Get(kAcme).status().code(), Code::kNotFound);
  const auto made = keys_.GetOrMake(kAcme);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_NE((*made)->id, DataKeyId{});
  EXPECT_EQ(*keys_.GetOrMake(kAcme), *made);
  EXPECT_EQ(keys_.Known(kAcme), *made);
  EXPECT_NE((*keys_.GetOrMake(kOther))->id, (*made)->id);

  const auto store = *OpenKeyDirectory(path());
  DataKeys elsewhere(store.get(), wrapper_.get(), SystemRandom());
  const auto found = elsewhere.Get(kAcme);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ((*found)->id, (*made)->id);
  EXPECT_TRUE((*found)->secret == (*made)->secret);
}

TEST_F(DataKeysTest, StoredKeysAreWrappedAndForThisUserOnly) {
  const auto key = *keys_.GetOrMake(kAcme);
  const Bytes stored = FileBytes(FileOf(kAcme));
  EXPECT_EQ(stored.size(), 116u);
  EXPECT_FALSE(Contains(stored, key->secret.bytes()));
  EXPECT_FALSE(Contains(stored, key->secret.bytes().first(8)));
  EXPECT_TRUE(Contains(stored, key->id));
  struct stat facts{};
  ASSERT_EQ(stat(FileOf(kAcme).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
}

TEST_F(DataKeysTest, EveryBitOfAStoredKeyCounts) {
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  const Bytes sound = FileBytes(FileOf(kAcme));
  for (size_t bit = 0; bit < sound.size() * 8; ++bit) {
    Bytes changed = sound;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    WriteFile(FileOf(kAcme), changed);
    DataKeys reader(store_.get(), wrapper_.get(), SystemRandom());
    const auto read = reader.GetOrMake(kAcme);
    ASSERT_FALSE(read.ok()) << bit;
    // An unknown version or master key needs a person; the rest is damage.
    EXPECT_TRUE(read.status().code() == Code::kCorrupt || read.status().code() == Code::kInvalid);
    EXPECT_TRUE(FileBytes(FileOf(kAcme)) == changed);  // No key was made in its place.
  }
  for (const size_t bytes : {0, 7, 56, 115}) {
    WriteFile(FileOf(kAcme), Bytes(sound.begin(), sound.begin() + bytes));
    DataKeys reader(store_.get(), wrapper_.get(), SystemRandom());
    EXPECT_EQ(reader.Get(kAcme).status().code(), Code::kCorrupt) << bytes;
  }
}

TEST_F(DataKeysTest, AnotherTenantsKeyDoesNotUnwrap) {
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  Bytes bytes = FileBytes(FileOf(kAcme));
  WriteFile(FileOf(kOther), bytes);
  EXPECT_EQ(keys_.Get(kOther).status().code(), Code::kCorrupt);
  std::memcpy(bytes.data() + 8, kOther.bytes.data(),
              16);  // Changing the name inside does not help either.
  WriteFile(FileOf(kOther), bytes);
  EXPECT_EQ(keys_.Get(kOther).status().code(), Code::kCorrupt);
}

TEST_F(DataKeysTest, AMasterKeyIsChangedWithoutTouchingDataKeys) {
  const auto before = *keys_.GetOrMake(kAcme);
  ASSERT_TRUE(keys_.GetOrMake(kOther).ok());
  const auto only_new = Wrapper({Secret(2)});
  DataKeys stranger(store_.get(), only_new.get(), SystemRandom());
  EXPECT_EQ(stranger.GetOrMake(kAcme).status().code(), Code::kInvalid);

  const auto both = Wrapper({Secret(2), Secret(1)});
  DataKeys rotating(store_.get(), both.get(), SystemRandom());
  EXPECT_TRUE(rotating.Get(kAcme).ok());  // Still wrapped with the old master key.
  EXPECT_EQ(*rotating.Rewrap(), 2u);
  EXPECT_EQ(*rotating.Rewrap(), 0u);
  EXPECT_TRUE(rotating.Refresh().forgotten.empty());

  const auto after = stranger.Get(kAcme);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ((*after)->id, before->id);
  EXPECT_TRUE((*after)->secret == before->secret);
  DataKeys old_one(store_.get(), wrapper_.get(), SystemRandom());
  EXPECT_EQ(old_one.Get(kAcme).status().code(), Code::kInvalid);
}

TEST_F(DataKeysTest, RewrappingDoesNotBringBackADestroyedKey) {
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  const Bytes old = FileBytes(FileOf(kAcme));
  ASSERT_TRUE(keys_.Destroy(kAcme).ok());
  const std::string name = FileOf(kAcme).substr(path().size() + 1);
  EXPECT_FALSE(*store_->Replace(name, old, old));
  keys_.Release(kAcme);
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  const Bytes young = FileBytes(FileOf(kAcme));
  EXPECT_FALSE(*store_->Replace(name, old, old));
  EXPECT_TRUE(FileBytes(FileOf(kAcme)) == young);
}

TEST_F(DataKeysTest, ADestroyedKeyIsForgottenByAllAndNothingOfItIsLeft) {
  const auto store = *OpenKeyDirectory(path());
  DataKeys elsewhere(store.get(), wrapper_.get(), SystemRandom());
  const DataKeyId id = (*keys_.GetOrMake(kAcme))->id;
  ASSERT_TRUE(elsewhere.Get(kAcme).ok());
  ASSERT_TRUE(elsewhere.GetOrMake(kOther).ok());

  ASSERT_TRUE(keys_.Destroy(kAcme).ok());
  EXPECT_EQ(keys_.Known(kAcme), nullptr);
  keys_.Release(kAcme);
  EXPECT_EQ(keys_.Get(kAcme).status().code(), Code::kNotFound);
  const auto refreshed = elsewhere.Refresh();
  EXPECT_TRUE(refreshed.status.ok());
  EXPECT_EQ(refreshed.forgotten, std::vector<TenantId>{kAcme});
  EXPECT_EQ(elsewhere.Known(kAcme), nullptr);
  EXPECT_NE(elsewhere.Known(kOther), nullptr);
  for (const std::string& name : NamesIn(path())) {
    EXPECT_FALSE(Contains(FileBytes(path() + "/" + name), id)) << name;
  }
  EXPECT_TRUE(keys_.Destroy(kAcme).ok());  // A second Destroy() succeeds.
}

// A store that can be told to make no value, or to show none.
class SparingStore final : public KeyStore {
 public:
  explicit SparingStore(KeyStore* store) : store_(store) {}

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override {
    return makes ? store_->Create(name, value) : Status(Code::kUnavailable, "full");
  }
  Result<Bytes> Read(const std::string& name) override {
    return shows ? store_->Read(name) : Status(Code::kUnavailable, "timeout");
  }
  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override {
    return store_->Replace(name, expected, value);
  }
  Status Delete(const std::string& name) override { return store_->Delete(name); }
  Result<std::vector<std::string>> List() override { return store_->List(); }

  bool makes = true;
  bool shows = true;

 private:
  KeyStore* const store_;
};

TEST_F(DataKeysTest, AMarkThatCouldNotBeLeftIsLeftLater) {
  SparingStore store(store_.get());
  DataKeys keys(&store, wrapper_.get(), SystemRandom());
  const DataKeyId id = (*keys.GetOrMake(kAcme))->id;
  store.makes = false;
  ASSERT_TRUE(keys.Destroy(kAcme).ok());
  EXPECT_EQ(keys.Destroyed(), std::vector<DataKeyId>{id});
  EXPECT_TRUE(keys.ReadMarks().ok());
  EXPECT_TRUE(store_->List()->empty());
  store.makes = true;
  EXPECT_TRUE(keys.ReadMarks().ok());
  EXPECT_EQ(store_->List()->size(), 1u);
  EXPECT_EQ(keys.Destroyed(), std::vector<DataKeyId>{id});
  DataKeys elsewhere(store_.get(), wrapper_.get(), SystemRandom());
  EXPECT_TRUE(elsewhere.ReadMarks().ok());
  EXPECT_EQ(elsewhere.Destroyed(), std::vector<DataKeyId>{id});
}

TEST_F(DataKeysTest, AnUnreadableKeyIsMarkedAsDestroyedByItsKnownId) {
  SparingStore store(store_.get());
  DataKeys keys(&store, wrapper_.get(), SystemRandom());
  const DataKeyId id = (*keys.GetOrMake(kAcme))->id;
  store.shows = false;
  ASSERT_TRUE(keys.Destroy(kAcme).ok());
  EXPECT_EQ(keys.Destroyed(), std::vector<DataKeyId>{id});
  EXPECT_EQ(keys.Past(kAcme), std::vector<DataKeyId>{id});
  DataKeys elsewhere(store_.get(), wrapper_.get(), SystemRandom());
  EXPECT_TRUE(elsewhere.ReadMarks().ok());
  EXPECT_EQ(elsewhere.Destroyed(), std::vector<DataKeyId>{id});
}

TEST_F(DataKeysTest, AKeyThatSomebodyElseMadeAnewIsDestroyedWithTheOldOne) {
  const auto store = *OpenKeyDirectory(path());
  DataKeys elsewhere(store.get(), wrapper_.get(), SystemRandom());
  const DataKeyId old = (*keys_.GetOrMake(kAcme))->id;
  ASSERT_TRUE(elsewhere.Destroy(kAcme).ok());
  elsewhere.Release(kAcme);
  const DataKeyId young = (*elsewhere.GetOrMake(kAcme))->id;
  ASSERT_TRUE(keys_.Destroy(kAcme).ok());
  EXPECT_TRUE(keys_.IsDestroyed(old));
  EXPECT_TRUE(keys_.IsDestroyed(young));
}

TEST_F(DataKeysTest, ATenantHasNoOtherKeyBeforeWhatTheLastOneSealedIsDropped) {
  const auto store = *OpenKeyDirectory(path());
  DataKeys elsewhere(store.get(), wrapper_.get(), SystemRandom());
  ASSERT_TRUE(elsewhere.GetOrMake(kAcme).ok());
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  ASSERT_TRUE(keys_.Destroy(kAcme).ok());
  ASSERT_TRUE(keys_.Destroy(kAcme).ok());  // Two callers destroy it at once.
  EXPECT_EQ(keys_.GetOrMake(kAcme).status().code(), Code::kBusy);
  keys_.Release(kAcme);
  EXPECT_EQ(keys_.GetOrMake(kAcme).status().code(), Code::kBusy);
  keys_.Release(kAcme);
  const auto young = keys_.GetOrMake(kAcme);
  ASSERT_TRUE(young.ok());
  EXPECT_EQ(elsewhere.Refresh().forgotten, std::vector<TenantId>{kAcme});
  EXPECT_EQ(elsewhere.Get(kAcme).status().code(), Code::kBusy);
  EXPECT_TRUE(elsewhere.held(kAcme));
  EXPECT_TRUE(elsewhere.GetOrMake(kOther).ok());
  elsewhere.Release(kAcme);
  EXPECT_FALSE(elsewhere.held(kAcme));
  EXPECT_EQ((*elsewhere.Get(kAcme))->id, (*young)->id);
}

TEST_F(DataKeysTest, AKeyThatWasMadeAnewIsNotTakenForTheOldOne) {
  const auto store = *OpenKeyDirectory(path());
  DataKeys elsewhere(store.get(), wrapper_.get(), SystemRandom());
  const DataKeyId old = (*elsewhere.GetOrMake(kAcme))->id;
  ASSERT_TRUE(keys_.Destroy(kAcme).ok());
  keys_.Release(kAcme);
  const DataKeyId young = (*keys_.GetOrMake(kAcme))->id;
  EXPECT_NE(old, young);
  EXPECT_EQ(elsewhere.Refresh().forgotten, std::vector<TenantId>{kAcme});
  elsewhere.Release(kAcme);
  EXPECT_EQ((*elsewhere.Get(kAcme))->id, young);
}

TEST_F(DataKeysTest, AStoreThatCannotBeReadIsNoReasonToForget) {
  const DataKeyId id = (*keys_.GetOrMake(kAcme))->id;
  WriteFile(FileOf(kAcme), Bytes(10));
  const auto refreshed = keys_.Refresh();
  EXPECT_EQ(refreshed.status.code(), Code::kCorrupt);
  EXPECT_TRUE(refreshed.forgotten.empty());
  ASSERT_NE(keys_.Known(kAcme), nullptr);
  EXPECT_EQ(keys_.Known(kAcme)->id, id);
}

// A second name of the file shows that its bytes were wiped.
TEST_F(DataKeysTest, ADeletedFileIsOverwritten) {
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  const std::string second = scratch_.Sub("second_name");
  ASSERT_EQ(link(FileOf(kAcme).c_str(), second.c_str()), 0);
  ASSERT_TRUE(keys_.Destroy(kAcme).ok());
  EXPECT_TRUE(FileBytes(second) == Bytes(116));
}

TEST_F(DataKeysTest, AReplacedFileIsOverwritten) {
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  const std::string second = scratch_.Sub("second_name");
  ASSERT_EQ(link(FileOf(kAcme).c_str(), second.c_str()), 0);
  const std::string name = FileOf(kAcme).substr(path().size() + 1);
  ASSERT_TRUE(*store_->Replace(name, FileBytes(second), Bytes(40, std::byte{1})));
  EXPECT_TRUE(FileBytes(second) == Bytes(116));
  EXPECT_TRUE(*store_->Read(name) == Bytes(40, std::byte{1}));
}

TEST_F(DataKeysTest, OpeningFinishesWhatADeadWriterLeft) {
  ASSERT_TRUE(keys_.GetOrMake(kAcme).ok());
  const std::string name = FileOf(kAcme).substr(path().size() + 1);
  // One writer died after the link, before its temporary name was gone. Another one died in
  // mid-delete.
  ASSERT_EQ(link(FileOf(kAcme).c_str(), (path() + "/." + name + ".new").c_str()), 0);
  WriteFile(path() + "/.0123.gone", Bytes(116, std::byte{1}));
  ASSERT_TRUE(OpenKeyDirectory(path()).ok());
  EXPECT_EQ(NamesIn(path()), (std::set<std::string>{".lock", name}));
  EXPECT_TRUE(keys_.Refresh().forgotten.empty());
}

TEST_F(DataKeysTest, TheStoreRefusesNamesThatAreNone) {
  for (const std::string& name :
       std::vector<std::string>{"", "..", "a/b", ".lock", "A", std::string(65, 'a')}) {
    EXPECT_EQ(store_->Create(name, Bytes(1)).status().code(), Code::kInvalid) << name;
    EXPECT_EQ(store_->Read(name).status().code(), Code::kInvalid) << name;
    EXPECT_EQ(store_->Delete(name).code(), Code::kInvalid) << name;
  }
  EXPECT_EQ(NewMasterKeyWrapper({}, SystemRandom()).status().code(), Code::kInvalid);
  EXPECT_EQ(NewMasterKeyWrapper(std::vector<SecretKey>(1), SystemRandom()).status().code(),
            Code::kInvalid);
  EXPECT_EQ(OpenKeyDirectory("/nowhere/at/all").status().code(), Code::kUnavailable);
}

TEST_F(DataKeysTest, OfManyThreadsThatMakeAKeyOneWins) {
  constexpr size_t kThreads = 8;
  std::vector<std::unique_ptr<KeyStore>> stores;
  for (size_t i = 0; i < kThreads; ++i) stores.push_back(*OpenKeyDirectory(path()));
  std::vector<DataKeyId> ids(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      DataKeys keys(stores[i].get(), wrapper_.get(), SystemRandom());
      if (const auto key = keys.GetOrMake(kAcme); key.ok()) ids[i] = (*key)->id;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const DataKeyId& id : ids) EXPECT_EQ(id, ids[0]);
  EXPECT_NE(ids[0], DataKeyId{});
}

TEST_F(DataKeysTest, WithoutLocksAKeyIsWholeAndNoneThatIsDeletedComesBack) {
  const bool ran = RunWhereCallFails({.call = SYS_flock, .error = ENOLCK}, [this] {
    const auto store = OpenKeyDirectory(path());
    ASSERT_TRUE(store.ok());
    for (int round = 0; round < 20; ++round) {
      const std::string name = "key" + std::to_string(round);
      std::atomic<int> made = 0;
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          const auto result = (*store)->Create(name, Bytes(60'000, static_cast<std::byte>(i)));
          ASSERT_TRUE(result.ok()) << result.status().ToString();
          made += *result ? 1 : 0;
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(made, 1);
      const auto value = (*store)->Read(name);
      ASSERT_TRUE(value.ok());
      EXPECT_EQ(*value, Bytes(60'000, value->front()));
      const auto replaced = (*store)->Replace(name, *value, Bytes(10));
      EXPECT_EQ(replaced.status().code(), Code::kUnavailable);
      EXPECT_EQ(*(*store)->Read(name), *value);
      EXPECT_TRUE((*store)->Delete(name).ok());
    }
  });
  if (!ran) GTEST_SKIP() << "the host allows no filters of system calls";
}

// Runs writers as processes, and kills some at any moment: every key that is left can be read.
TEST_F(DataKeysTest, AKilledWriterLeavesAKeyOrNone) {
  for (int round = 0; round < 10; ++round) {
    const TenantId tenant = TenantIdOf(std::to_string(round));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto store = OpenKeyDirectory(path());
      for (int i = 0; store.ok() && i < 1000; ++i) {
        DataKeys keys(store->get(), wrapper_.get(), SystemRandom());
        if (!keys.GetOrMake(tenant).ok() || !keys.Destroy(tenant).ok()) _exit(1);
        keys.Release(tenant);
      }
      _exit(0);
    }
    usleep(static_cast<useconds_t>(1000 + round * 700));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || status == 0);
    const auto store = OpenKeyDirectory(path());
    ASSERT_TRUE(store.ok());
    DataKeys keys(store->get(), wrapper_.get(), SystemRandom());
    EXPECT_TRUE(keys.GetOrMake(tenant).ok());
  }
}

TEST(MountedKeysTest, AMountPointThatIsEmptyIsNoStoreThatLostItsKeys) {
  const ScratchDirectory scratch;
  const std::string mount = scratch.Sub("mount");
  const auto store = NewMountedKeys(mount + "/keys", mount + "/proof");
  const Bytes value(8, std::byte{7});
  EXPECT_EQ(store->Create("a", value).status().code(), Code::kUnavailable);
  std::filesystem::create_directory(mount);
  EXPECT_EQ(store->Create("a", value).status().code(), Code::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(mount + "/keys"));
  std::ofstream(mount + "/proof").put('1');
  ASSERT_TRUE(*store->Create("a", value));

  // The file system is unmounted and comes back; then another one comes in its place.
  std::filesystem::rename(mount, scratch.Sub("elsewhere"));
  std::filesystem::create_directory(mount);
  EXPECT_EQ(store->Read("a").status().code(), Code::kUnavailable);
  EXPECT_EQ(store->Delete("a").code(), Code::kUnavailable);
  std::filesystem::remove(mount);
  std::filesystem::rename(scratch.Sub("elsewhere"), mount);
  EXPECT_EQ(*store->Read("a"), value);
  std::filesystem::rename(mount, scratch.Sub("elsewhere"));
  std::filesystem::create_directory(mount);
  std::ofstream(mount + "/proof").put('2');
  EXPECT_EQ(store->Read("a").status().code(), Code::kNotFound);
  EXPECT_TRUE(*store->Create("b", value));
  EXPECT_EQ(*store->List(), std::vector<std::string>{"b"});
}

}  // namespace
}  // namespace aquifer
