#include "tenant/tenants.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/text/hex_text.h"
#include "testing/example_file.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAreArray;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr TierCapacities kCapacities = {.dram_bytes = 8 * kGiB, .nvme_bytes = 100 * kGiB};

std::string DigestText(std::string_view token) {
  return Sha256Text(Sha256Of(std::as_bytes(std::span(token))));
}

// A tenant whose token is "token of <name>".
std::string TenantText(const std::string& name, const std::string& more = "") {
  return fmt::format("[[tenant]]\nname = \"{}\"\ntoken_sha256 = \"{}\"\n{}\n", name,
                     DigestText("token of " + name), more);
}

std::shared_ptr<const Tenants> Parsed(const std::string& text) {
  auto tenants = Tenants::Parse(text, "t.toml", kCapacities);
  EXPECT_TRUE(tenants.ok()) << tenants.status().ToString();
  return tenants.ok() ? *tenants : nullptr;
}

std::string Refusal(const std::string& text) {
  const auto tenants = Tenants::Parse(text, "t.toml", kCapacities);
  EXPECT_FALSE(tenants.ok()) << text;
  EXPECT_EQ(tenants.status().code(), Code::kInvalid);
  return tenants.status().message();
}

TEST(TenantsTest, EveryKeyIsRead) {
  const auto tenants = Parsed(TenantText("team-a", R"(
uids = [1000, 1001]
dram_floor = "1GiB"
dram_ceiling = "2GiB"
nvme_floor = "3GiB"
nvme_ceiling = "4GiB"
ttl = "7d"
priority = -3
durability = "durable")"));
  ASSERT_EQ(tenants->all().size(), 1u);
  const Tenant& tenant = tenants->all().front();
  EXPECT_EQ(tenant.options.name, "team-a");
  EXPECT_EQ(tenant.options.dram_floor_bytes, 1 * kGiB);
  EXPECT_EQ(tenant.options.dram_ceiling_bytes, 2 * kGiB);
  EXPECT_EQ(tenant.options.nvme_floor_bytes, 3 * kGiB);
  EXPECT_EQ(tenant.options.nvme_ceiling_bytes, 4 * kGiB);
  EXPECT_EQ(tenant.options.ttl_seconds, 7 * 86'400);
  EXPECT_EQ(tenant.options.priority, -3);
  EXPECT_EQ(tenant.options.durability, Durability::kDurable);
  EXPECT_EQ(tenant.uids, (std::vector<uid_t>{1000, 1001}));
  EXPECT_TRUE(tenants->from_file());
  EXPECT_EQ(tenants->Options().front().name, "team-a");
}

TEST(TenantsTest, OmittedSettingsHaveTheDefaultsOfTheCache) {
  const auto tenants = Parsed(TenantText("a"));
  const Tenant& tenant = tenants->all().front();
  EXPECT_EQ(tenant.options.dram_floor_bytes, 0u);
  EXPECT_EQ(tenant.options.dram_ceiling_bytes, UINT64_MAX);
  EXPECT_EQ(tenant.options.ttl_seconds, 0);
  EXPECT_EQ(tenant.options.priority, 0);
  EXPECT_TRUE(tenant.uids.empty());
}

TEST(TenantsTest, TheRightTokenAndUserAreLetIn) {
  const auto tenants = Parsed(TenantText("a", "uids = [7]") + TenantText("b"));
  Denial denial = Denial::kWrongToken;
  const auto a = tenants->Authenticate("a", "token of a", 7, &denial);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ((*a)->options.name, "a");
  EXPECT_EQ(denial, Denial::kNone);
  EXPECT_TRUE(tenants->Authenticate("b", "token of b", 12345, nullptr).ok());
}

TEST(TenantsTest, WhoeverIsRefusedLearnsNothingFromIt) {
  const auto tenants = Parsed(TenantText("a", "uids = [7]") + TenantText("b"));
  struct Attempt {
    std::string name;
    std::string token;
    uid_t uid;
    Denial denial;
  };
  const Attempt attempts[] = {
      {"nobody", "token of a", 7, Denial::kUnknownTenant},
      {"", "", 7, Denial::kUnknownTenant},
      {"a", "guess", 7, Denial::kWrongToken},
      {"a", "", 7, Denial::kWrongToken},
      {"a", "token of b", 7, Denial::kWrongToken},
      {"a", "token of a", 8, Denial::kWrongUser},
      {std::string("a\0", 2), "token of a", 7, Denial::kUnknownTenant},
  };
  for (const Attempt& attempt : attempts) {
    Denial denial = Denial::kNone;
    const auto tenant = tenants->Authenticate(attempt.name, attempt.token, attempt.uid, &denial);
    ASSERT_FALSE(tenant.ok()) << attempt.name;
    EXPECT_EQ(tenant.status().code(), Code::kInvalid);
    EXPECT_EQ(tenant.status().message(), kAccessDenied);
    EXPECT_EQ(denial, attempt.denial) << attempt.name << " " << DenialName(denial);
  }
}

TEST(TenantsTest, WithoutAFileThereIsOneTenantForOneUser) {
  const auto tenants = Tenants::Local(7);
  EXPECT_FALSE(tenants->from_file());
  EXPECT_TRUE(tenants->Authenticate("local", "", 7, nullptr).ok());
  EXPECT_TRUE(tenants->Authenticate("local", "any token", 7, nullptr).ok());
  Denial denial = Denial::kNone;
  EXPECT_FALSE(tenants->Authenticate("local", "", 8, &denial).ok());
  EXPECT_EQ(denial, Denial::kWrongUser);
  EXPECT_FALSE(tenants->Authenticate("local", "", 0, &denial).ok());  // Root is another user.
  EXPECT_FALSE(tenants->Authenticate("other", "", 7, &denial).ok());
  EXPECT_EQ(denial, Denial::kUnknownTenant);
}

TEST(TenantsTest, EachMistakeIsSaidWithItsLine) {
  EXPECT_THAT(Refusal(TenantText("a", "tll = 5")),
              AllOf(StartsWith("t.toml:4: "), HasSubstr("did you mean 'ttl'?")));
  EXPECT_THAT(Refusal("[[tennant]]\nname = \"a\"\n"), HasSubstr("did you mean 'tenant'?"));
  EXPECT_THAT(Refusal("[tenant]\nname = \"a\"\n"), HasSubstr("[[tenant]]"));
  EXPECT_THAT(Refusal("[[tenant]]\n"), AllOf(StartsWith("t.toml:1: "), HasSubstr("no name")));
  EXPECT_THAT(Refusal("[[tenant]]\nname = \"a\"\n"), HasSubstr("no token_sha256"));
  EXPECT_THAT(Refusal(TenantText("no space")), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(Refusal(TenantText("..")), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(Refusal(TenantText(std::string(65, 'x'))), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(Refusal(TenantText("a", "durability = \"some\"")),
              HasSubstr("\"durable\", \"never\""));
  EXPECT_THAT(Refusal(TenantText("a", "priority = 8")), HasSubstr("-8 to 7"));
  EXPECT_THAT(Refusal(TenantText("a", "uids = []")), HasSubstr("nobody could connect"));
  EXPECT_THAT(Refusal(TenantText("a", "uids = [-1]")), HasSubstr("uids[0]"));
  EXPECT_THAT(Refusal(TenantText("a", "uids = [4294967295]")), HasSubstr("uids[0]"));
  EXPECT_THAT(Refusal(TenantText("a", "dram_floor = \"2GiB\"\ndram_ceiling = \"1GiB\"")),
              HasSubstr("dram_floor, 2GiB, is above dram_ceiling, 1GiB"));
  EXPECT_THAT(Refusal(""), HasSubstr("there is no [[tenant]]"));
  EXPECT_THAT(Refusal("tenant = 5"), HasSubstr("[[tenant]]"));
  EXPECT_THAT(Refusal("tenant = [5]"), HasSubstr("must be a table"));
}

TEST(TenantsTest, ATokenInPlaceOfItsDigestIsRefusedAndNotRepeated) {
  const std::string message =
      Refusal("[[tenant]]\nname = \"a\"\ntoken_sha256 = \"my-real-token\"\n");
  EXPECT_THAT(message, HasSubstr("sha256sum"));
  EXPECT_EQ(message.find("my-real-token"), std::string::npos);
  EXPECT_THAT(
      Refusal(fmt::format("[[tenant]]\nname = \"a\"\ntoken_sha256 = \"{}\"\n", DigestText(""))),
      HasSubstr("was the variable empty?"));
}

TEST(TenantsTest, NamesAndTokensAreThereOnce) {
  EXPECT_THAT(Refusal(TenantText("a") + TenantText("b") + TenantText("a")),
              AllOf(HasSubstr("'a' is there already, at t.toml:1")));
  const std::string same =
      fmt::format("[[tenant]]\nname = \"c\"\ntoken_sha256 = \"{}\"\n", DigestText("token of a"));
  EXPECT_THAT(Refusal(TenantText("a") + same), HasSubstr("'a' and 'c' have the same token"));
}

TEST(TenantsTest, FloorsMustFitTogether) {
  const std::string half = "dram_floor = \"4GiB\"\nnvme_floor = \"50GiB\"";
  EXPECT_NE(Parsed(TenantText("a", half) + TenantText("b", half)), nullptr);
  EXPECT_THAT(
      Refusal(TenantText("a", half) + TenantText("b", half) + TenantText("c", "dram_floor = 1")),
      AllOf(HasSubstr("dram floors"), HasSubstr("8GiB")));
  EXPECT_THAT(Refusal(TenantText("a", half) + TenantText("b", "nvme_floor = \"51GiB\"")),
              HasSubstr("nvme floors"));
  EXPECT_THAT(Refusal(TenantText("a", "dram_floor = \"900000TiB\"\n")), HasSubstr("dram floors"));
}

TEST(TenantsTest, TheFileIsClosedToOthersUnlessItIsRoots) {
  const uid_t self = 1000;
  EXPECT_TRUE(CheckTenantsFileMode("f", self, 0600, self).ok());
  EXPECT_TRUE(CheckTenantsFileMode("f", self, 0400, self).ok());
  EXPECT_TRUE(CheckTenantsFileMode("f", 0, 0644, self).ok());
  EXPECT_TRUE(CheckTenantsFileMode("f", 0, 0640, self).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0602}) {
    const Status status = CheckTenantsFileMode("f", self, mode, self);
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("chmod 600 f"));
  }
  EXPECT_THAT(CheckTenantsFileMode("f", 0, 0664, self).message(), HasSubstr("chmod go-w f"));
  EXPECT_THAT(CheckTenantsFileMode("f", 1001, 0600, self).message(), HasSubstr("chown 1000 f"));
}

TEST(TenantsTest, FilesAreReadWithTheirPermissionsChecked) {
  const ScratchDirectory scratch;
  const std::string path = scratch.Sub("tenants.toml");
  std::ofstream(path) << TenantText("a");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  auto tenants = Tenants::Read(path, kCapacities, geteuid());
  ASSERT_TRUE(tenants.ok()) << tenants.status().ToString();
  // After a reload, tenants from the first object stay valid.
  const Result<const Tenant*> a = (*tenants)->Authenticate("a", "token of a", 1, nullptr);
  std::ofstream(path) << TenantText("b");
  const auto reloaded = Tenants::Read(path, kCapacities, geteuid());
  ASSERT_TRUE(reloaded.ok());
  EXPECT_EQ((*a)->options.name, "a");
  EXPECT_FALSE((*reloaded)->Authenticate("a", "token of a", 1, nullptr).ok());
  EXPECT_TRUE((*reloaded)->Authenticate("b", "token of b", 1, nullptr).ok());

  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_THAT(Tenants::Read(path, kCapacities, geteuid()).status().message(),
              AllOf(StartsWith(path), HasSubstr("chmod")));
  EXPECT_THAT(Tenants::Read(scratch.Sub("absent"), kCapacities, geteuid()).status().message(),
              HasSubstr("No such file"));
  EXPECT_THAT(Tenants::Read(scratch.path(), kCapacities, geteuid()).status().message(),
              HasSubstr("no regular file"));
  std::ofstream(path) << "[[tenant]]\nnam = \"a\"\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(Tenants::Read(path, kCapacities, geteuid()).status().message(),
              StartsWith(path + ":2: "));
}

// ---- etc/tenants.toml ----

std::string Example() { return ReadExampleFile(AQUIFER_SOURCE_DIR "/etc/tenants.toml"); }

TEST(TenantsTest, TheExampleIsAFileThatCanBeRead) {
  EXPECT_EQ(Parsed(Example())->all().front().options.name, "example");
}

TEST(TenantsTest, TheExampleShowsEveryKeyAndItsDefault) {
  std::vector<std::string> shown;
  for (const ExampleSetting& setting : SettingsIn(Example())) shown.push_back(setting.name);
  EXPECT_THAT(shown, UnorderedElementsAreArray(TenantKeys()));
  const auto written =
      Parsed(WithDefaultsWrittenOut(Example(), {"uids", "dram_ceiling", "nvme_ceiling"}));
  const Tenant& tenant = written->all().front();
  EXPECT_EQ(tenant.options.dram_floor_bytes, TenantOptions{}.dram_floor_bytes);
  EXPECT_EQ(tenant.options.nvme_floor_bytes, TenantOptions{}.nvme_floor_bytes);
  EXPECT_EQ(tenant.options.ttl_seconds, TenantOptions{}.ttl_seconds);
  EXPECT_EQ(tenant.options.priority, Tenant{}.options.priority);
  EXPECT_EQ(tenant.options.durability, TenantOptions{}.durability);
  EXPECT_NE(Parsed(WithDefaultsWrittenOut(Example())), nullptr);
}

}  // namespace
}  // namespace aquifer
