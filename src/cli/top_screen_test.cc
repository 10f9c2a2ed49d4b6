#include "cli/top_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cli/ctl_text.h"

namespace aquifer {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

json Tier(const char* name, uint64_t used) {
  return {{"tier", name},           {"in_service", true}, {"capacity_bytes", 1000 << 20},
          {"used_bytes", used},     {"blocks", 7},        {"read_bytes_per_second", 0.0},
          {"drives", json::array()}};
}

json Tenant(const std::string& name, uint64_t hits, uint64_t misses) {
  json tenant = {{"name", name}, {"hits_dram", hits}, {"misses", misses}};
  for (const char* zero :
       {"dram_bytes", "nvme_bytes", "hits_nvme", "hit_bytes_nvme", "hits_durable",
        "hit_bytes_durable", "late", "failed", "committed_blocks", "committed_bytes", "refused",
        "saved_ms", "lost_ms"}) {
    tenant[zero] = 0;
  }
  tenant["hit_bytes_dram"] = hits << 20;
  return tenant;
}

TopSample Sample(int64_t uptime_ms, uint64_t hits, uint64_t misses) {
  TopSample sample;
  sample.tenants = {{"tenants", json::array({Tenant("a", hits, misses)})}};
  sample.status = {
      {"version", "1.2.3"},
      {"pid", 42},
      {"uptime_ms", uptime_ms},
      {"ready", true},
      {"draining", false},
      {"socket", "/run/aquifer/node.sock"},
      {"http", "127.0.0.1:9470"},
      {"sessions", 3},
      {"connections", {{"open", 2}, {"lingering", 1}, {"accepted", 9}, {"cut_off", 0}}},
      {"tiers", json::array({Tier("dram", 500 << 20), Tier("nvme", 0)})},
      {"requests", {{"fetch", {{"p50_ms", 0.016}, {"p99_ms", 2.0}}}}},
      {"queues", {{"requests", 1}, {"loads", 2}, {"nvme", 3}}},
      {"savings", {{"saved_ms", 1500.0}, {"lost_ms", 0.0}}},
      {"counters",
       {{"fetch_hits_dram", hits},
        {"fetch_hits_nvme", 0},
        {"fetch_hits_durable", 0},
        {"fetch_misses", misses},
        {"fetch_late", 0},
        {"fetch_failed", 0},
        {"committed", 0},
        {"reserve_refused", 0},
        {"engines", 2},
        {"corrupt_blocks", 0},
        {"quarantined_bytes", 0},
        {"overdue_leases", 1},
        {"overdue_reservations", 2}}}};
  return sample;
}

TEST(TopScreenTest, RatesAreOfTheTimeBetweenTwoLooks) {
  const TopSample before = Sample(10'000, 1000, 0);
  const TopSample now = Sample(12'000, 1300, 100);
  const std::string screen = TopScreen(&before, now, {});
  EXPECT_THAT(screen, AllOf(HasSubstr("aquifer 1.2.3  ready  up 12s"), HasSubstr("75.0 %"),
                            HasSubstr("fetch        200/s  150MiB/s"), Not(HasSubstr("average"))));
}

TEST(TopScreenTest, HitsInDurableTiersAreHits) {
  TopSample now = Sample(10'000, 0, 100);
  now.status["counters"]["fetch_hits_durable"] = 300;
  now.tenants["tenants"][0]["hits_durable"] = 300;
  now.tenants["tenants"][0]["hit_bytes_durable"] = 300 << 20;
  EXPECT_THAT(TopScreen(nullptr, now, {}),
              AllOf(HasSubstr("hits      75.0 %   dram 0.0 %, nvme 0.0 %, durable 75.0 %"),
                    HasSubstr("fetch       40.0/s  30MiB/s"), HasSubstr("40.0    75.0 %")));
  EXPECT_THAT(StatusText(now.status),
              HasSubstr("400 blocks asked for, 75.0 % hit: 0 from dram, 0 from nvme, 300 from "
                        "durable tiers; "));
  EXPECT_THAT(TenantsText(now.tenants), HasSubstr("300     100    75.0 %"));
}

TEST(TopScreenTest, StatusSaysThatDataKeysCannotBeRead) {
  TopSample now = Sample(10'000, 0, 100);
  EXPECT_THAT(StatusText(now.status), Not(HasSubstr("cannot be read")));
  now.status["key_trouble"] = "the master key does not fit";
  EXPECT_THAT(StatusText(now.status), HasSubstr("cannot be read: the master key does not fit\n"));
}

TEST(TopScreenTest, WhoDecidesWhatIsKeptIsSaidAndHowLruWouldFare) {
  TopSample now = Sample(10'000, 0, 100);
  EXPECT_THAT(StatusText(now.status), HasSubstr("learned\n"));
  EXPECT_THAT(TopScreen(nullptr, now, {}), HasSubstr("policy   learned   dram had - of"));
  json& counters = now.status["counters"];
  counters["policy_asked"] = 400;
  counters["policy_hits"] = 100;
  counters["policy_lru_hits"] = 110;
  counters["policy_takeovers"] = 2;
  counters["policy_lru_decides"] = 1;
  EXPECT_THAT(StatusText(now.status),
              HasSubstr("lru decides; dram had 25.0 % of 400 blocks asked for, lru would have had "
                        "27.5 %; lru took over 2 times"));
  EXPECT_THAT(TopScreen(nullptr, now, {}),
              HasSubstr("policy       lru   dram had 25.0 % of what was asked for, lru would have "
                        "had 27.5 %"));
}

TEST(TopScreenTest, WhoIsNewSinceTheLastLookBeganThen) {
  const TopSample before = Sample(10'000, 1000, 0);
  TopSample now = Sample(12'000, 1000, 0);
  now.tenants["tenants"].push_back(Tenant("b", 400, 0));
  EXPECT_THAT(TopScreen(&before, now, {}), HasSubstr("200   100.0 %"));
}

TEST(TopScreenTest, TheFirstLookIsSinceTheStart) {
  EXPECT_THAT(TopScreen(nullptr, Sample(10'000, 1000, 0), {}),
              AllOf(HasSubstr("on average since the start"), HasSubstr("fetch        100/s")));
}

TEST(TopScreenTest, ANodeThatWasRestartedIsLookedAtAnew) {
  const TopSample before = Sample(100'000, 100'000, 0);
  TopSample now = Sample(10'000, 1000, 0);
  EXPECT_THAT(TopScreen(&before, now, {}), HasSubstr("fetch        100/s"));
  now = Sample(200'000, 1000, 0);
  now.status["pid"] = 43;
  EXPECT_THAT(TopScreen(&before, now, {}), HasSubstr("on average since the start"));
}

TEST(TopScreenTest, NothingIsLongerThanTheScreen) {
  const std::string screen = TopScreen(nullptr, Sample(1, 1, 1), {.columns = 20, .rows = 5});
  std::istringstream lines(screen);
  size_t rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) EXPECT_LE(line.size(), 20u);
  EXPECT_EQ(rows, 5u);
}

TEST(TopScreenTest, ControlCharactersAreNotPassedToTheTerminal) {
  TopSample sample = Sample(1000, 1, 1);
  sample.tenants["tenants"][0]["name"] = "a\x1b[2Jb";
  EXPECT_THAT(TopScreen(nullptr, sample, {}), AllOf(HasSubstr("a?[2Jb"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(TenantsText(sample.tenants), Not(HasSubstr("\x1b")));
  sample.tenants["tenants"][0]["name"] = "\xC3\xA9\xC2\x9B[2J";
  EXPECT_THAT(TenantsText(sample.tenants), HasSubstr("\xC3\xA9??[2J"));
}

TEST(TopScreenTest, TroubleIsShownWhenThereIsSome) {
  TopSample sample = Sample(1000, 1, 1);
  EXPECT_THAT(TopScreen(nullptr, sample, {}), Not(HasSubstr("!")));
  sample.status["counters"]["corrupt_blocks"] = 3;
  sample.status["draining"] = true;
  sample.status["tiers"][1]["in_service"] = false;
  sample.status["tiers"][1]["drives"].push_back(
      {{"directory", "/mnt/x"}, {"in_service", false}, {"writable", false}, {"why", "it hangs"}});
  EXPECT_THAT(TopScreen(nullptr, sample, {}),
              AllOf(HasSubstr("! 3 corrupt blocks"), HasSubstr("DRAINING"),
                    HasSubstr("OUT OF SERVICE"), HasSubstr("! drive /mnt/x: it hangs")));
}

TEST(CtlTextTest, AStatusIsAFewLines) {
  const std::string text = StatusText(Sample(7'384'000, 300, 100).status);
  EXPECT_THAT(text, AllOf(HasSubstr("ready, aquifer 1.2.3, process 42"), HasSubstr("2h 3m"),
                          HasSubstr("400 blocks asked for, 75.0 % hit"), HasSubstr("3 overdue"),
                          HasSubstr("50.0 %")));
}

TEST(CtlTextTest, PastStateIsNotShownAsThePresent) {
  json tier = {{"name", "far"}, {"place", "s3://kv"}, {"why", "it hangs"}, {"in_service", false}};
  for (const char* figure : {"waiting_loads", "waiting_writes", "waiting_erasures", "failed_loads",
                             "failed_writes", "capacity_bytes", "used_bytes", "latency_ms",
                             "read_bytes_per_second", "loaded_bytes", "written_bytes"}) {
    tier[figure] = 0;
  }
  const auto text = [&tier] {
    return TiersText({{"tiers", json::array()}, {"durable", json::array({tier})}});
  };
  EXPECT_THAT(text(), AllOf(HasSubstr("OUT OF SERVICE"), HasSubstr("far: s3://kv: it hangs\n")));
  tier["unswept_tenants"] = 2;
  EXPECT_THAT(text(), HasSubstr("    2 deleted tenants are still to be swept from it\n"));
  tier["unswept_tenants"] = 0;
  EXPECT_THAT(text(), Not(HasSubstr("swept")));
  tier["in_service"] = true;
  EXPECT_THAT(text(),
              AllOf(HasSubstr("in service"), HasSubstr("far: s3://kv (last trouble: it hangs)\n")));
  tier["why"] = "";
  EXPECT_THAT(text(), HasSubstr("far: s3://kv\n"));
}

TEST(CtlTextTest, WhoDeletesATenantHearsWhichStoresAreStillToBeSwept) {
  json answer = {{"evicted", 16}, {"key_destroyed", true}};
  EXPECT_THAT(TenantDeletedText(answer),
              AllOf(HasSubstr("16 blocks are gone from this node; the key is destroyed"),
                    Not(HasSubstr("swept"))));
  answer["unswept"] = {"cold"};
  EXPECT_THAT(TenantDeletedText(answer), HasSubstr("1 store is still to be swept"));
  answer["unswept"] = {"cold", "far"};
  EXPECT_THAT(TenantDeletedText(answer),
              AllOf(HasSubstr("2 stores are still to be swept"), HasSubstr(": cold, far;")));
}

TEST(CtlTextTest, SessionsTellWhereTheNextPageBegins) {
  json answer = {{"tenant", "a"}, {"sessions", json::array()}, {"next", ""}};
  EXPECT_THAT(SessionsText(answer), HasSubstr("no sessions"));
  answer["sessions"].push_back({{"session", "chat"},
                                {"head", "00"},
                                {"group", 0},
                                {"part", 0},
                                {"blocks", 5},
                                {"tokens", 80},
                                {"bytes", 4096}});
  answer["next"] = "chat";
  EXPECT_THAT(SessionsText(answer), AllOf(HasSubstr("4KiB"), HasSubstr("--after 'chat'")));
  answer["next"] = "x'; echo '";  // One word of the shell that it is pasted to.
  EXPECT_THAT(SessionsText(answer), HasSubstr("--after 'x'\\''; echo '\\'''\n"));
}

TEST(CtlTextTest, PartsOfNothingAreNoNumber) {
  EXPECT_EQ(PartText(0, 0), "-");
  EXPECT_EQ(PartText(1, 3), "33.3 %");
  EXPECT_EQ(SpanText(59), "59s");
  EXPECT_EQ(SpanText(61), "1m 1s");
  EXPECT_EQ(SpanText(90'000), "1d 1h");
}

}  // namespace
}  // namespace aquifer
