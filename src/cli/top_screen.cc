#include "cli/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text/size_text.h"
#include "cli/ctl_text.h"

namespace aquifer {
namespace {

using nlohmann::json;

constexpr size_t kBarCells = 20;

// Names come from outside, and a terminal obeys some bytes.
std::string Plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return text;
}

std::string Rate(double a_second) {
  if (a_second >= 100) return fmt::format("{:.0f}", a_second);
  return a_second == 0 ? "0" : fmt::format("{:.1f}", a_second);
}

std::string ByteRate(double a_second) {
  return SizeText(static_cast<uint64_t>(std::max(a_second, 0.0))) + "/s";
}

std::string Bar(double part) {
  const auto full = static_cast<size_t>(std::lround(std::clamp(part, 0.0, 1.0) * kBarCells));
  return "[" + std::string(full, '#') + std::string(kBarCells - full, '.') + "]";
}

// The changes between two looks, by the second.
class Change {
 public:
  Change(const TopSample* before, const TopSample& now) : before_(before), now_(now) {
    const double end = now.status.at("uptime_ms").get<double>();
    double begin = before == nullptr ? 0 : before->status.at("uptime_ms").get<double>();
    // Another process answers there now: only its own life counts.
    if (begin > end || (before != nullptr && before->status.at("pid") != now.status.at("pid"))) {
      before_ = nullptr;
      begin = 0;
    }
    seconds_ = std::max((end - begin) / 1e3, 1e-3);
    if (before_ == nullptr) return;
    for (const json& tenant : before_->tenants.at("tenants")) {
      tenants_before_.emplace(tenant.at("name").get<std::string>(), &tenant);
    }
  }

  bool since_start() const { return before_ == nullptr; }

  double Counter(const char* name) const {
    const auto at = [name](const TopSample& sample) {
      return sample.status.at("counters").value(name, 0.0);
    };
    return (at(now_) - (before_ == nullptr ? 0 : at(*before_))) / seconds_;
  }

  double Saved(const char* name) const {
    const auto at = [name](const TopSample& sample) {
      return sample.status.at("savings").at(name).get<double>();
    };
    return (at(now_) - (before_ == nullptr ? 0 : at(*before_))) / seconds_;
  }

  double OfTenants(const char* name) const {
    const auto at = [name](const TopSample& sample) {
      double sum = 0;
      for (const json& tenant : sample.tenants.at("tenants")) sum += tenant.at(name).get<double>();
      return sum;
    };
    return (at(now_) - (before_ == nullptr ? 0 : at(*before_))) / seconds_;
  }

  double OfTenant(const json& tenant, const char* name) const {
    const auto now = tenant.at(name).get<double>();
    const auto old = tenants_before_.find(tenant.at("name").get_ref<const std::string&>());
    const bool known = old != tenants_before_.end();
    return (now - (known ? old->second->at(name).get<double>() : 0)) / seconds_;
  }

 private:
  const TopSample* before_;
  const TopSample& now_;
  double seconds_ = 1;
  std::unordered_map<std::string, const json*> tenants_before_;
};

std::string HeadLine(const json& status) {
  const char* const state = status.at("draining").get<bool>() ? "DRAINING" : "ready";
  return fmt::format(
      "aquifer {}  {}  up {}  process {}  {}", Plain(status.at("version").get<std::string>()),
      state, SpanText(status.at("uptime_ms").get<int64_t>() / 1000),
      status.at("pid").get<int64_t>(), Plain(status.at("socket").get<std::string>()));
}

std::vector<std::string> TrafficLines(const Change& change, const json& status) {
  const double dram = change.Counter("fetch_hits_dram");
  const double nvme = change.Counter("fetch_hits_nvme");
  const double durable = change.Counter("fetch_hits_durable");
  const double hits = dram + nvme + durable;
  const double late = change.Counter("fetch_late");
  const double failed = change.Counter("fetch_failed");
  const double all = hits + late + failed + change.Counter("fetch_misses");
  const double asked = change.Counter("policy_asked");
  const bool lru_decides = status.at("counters").value("policy_lru_decides", 0) != 0;
  const json& fetch = status.at("requests").at("fetch");
  const json& queues = status.at("queues");
  return {
      fmt::format("hits    {:>8}   dram {}, nvme {}, durable {}, late {}/s, failed {}/s",
                  PartText(hits, all), PartText(dram, all), PartText(nvme, all),
                  PartText(durable, all), Rate(late), Rate(failed)),
      fmt::format("fetch   {:>8}/s  {}   p50 {:.3g} ms, p99 {:.3g} ms since the start", Rate(all),
                  ByteRate(change.OfTenants("hit_bytes_dram") + change.OfTenants("hit_bytes_nvme") +
                           change.OfTenants("hit_bytes_durable")),
                  fetch.at("p50_ms").get<double>(), fetch.at("p99_ms").get<double>()),
      fmt::format("store   {:>8}/s  {}   refused {}/s", Rate(change.Counter("committed")),
                  ByteRate(change.OfTenants("committed_bytes")),
                  Rate(change.Counter("reserve_refused"))),
      fmt::format("policy  {:>8}   dram had {} of what was asked for, lru would have had {}",
                  lru_decides ? "lru" : "learned", PartText(change.Counter("policy_hits"), asked),
                  PartText(change.Counter("policy_lru_hits"), asked)),
      fmt::format("nvme    {:>12} read, {} written", ByteRate(change.Counter("nvme_bytes_read")),
                  ByteRate(change.Counter("nvme_bytes_written"))),
      fmt::format("waiting {} requests, {} loads, {} to be written",
                  queues.at("requests").get<int64_t>(), queues.at("loads").get<int64_t>(),
                  status.at("counters").value("write_down_waiting", int64_t{0})),
      fmt::format("saved   {:.2f} s of prefill a second, lost {:.2f}",
                  change.Saved("saved_ms") / 1e3, change.Saved("lost_ms") / 1e3),
  };
}

std::vector<std::string> TierLines(const json& status) {
  std::vector<std::string> lines;
  for (const json& tier : status.at("tiers")) {
    const auto used = tier.at("used_bytes").get<double>();
    const auto capacity = tier.at("capacity_bytes").get<double>();
    lines.push_back(fmt::format(
        "{:<7} {} {:>8} of {}, {} blocks{}", tier.at("tier").get<std::string>(),
        Bar(capacity == 0 ? 0 : used / capacity), SizeText(tier.at("used_bytes").get<uint64_t>()),
        SizeText(tier.at("capacity_bytes").get<uint64_t>()), tier.at("blocks").get<uint64_t>(),
        tier.at("in_service").get<bool>() ? "" : "  OUT OF SERVICE"));
  }
  return lines;
}

std::vector<std::string> TroubleLines(const json& status) {
  std::vector<std::string> lines;
  const json& counters = status.at("counters");
  const auto corrupt = counters.value("corrupt_blocks", uint64_t{0});
  const auto quarantined = counters.value("quarantined_bytes", uint64_t{0});
  if (corrupt != 0) lines.push_back(fmt::format("! {} corrupt blocks since the start", corrupt));
  if (quarantined != 0) lines.push_back(fmt::format("! {} in quarantine", SizeText(quarantined)));
  for (const json& tier : status.at("tiers")) {
    for (const json& drive : tier.at("drives")) {
      if (drive.at("in_service").get<bool>() && drive.at("writable").get<bool>()) continue;
      lines.push_back(fmt::format("! drive {}: {}", Plain(drive.at("directory").get<std::string>()),
                                  Plain(drive.at("why").get<std::string>())));
    }
  }
  return lines;
}

// Tenants that ask for most come first.
std::vector<std::string> TenantLines(const Change& change, const TopSample& now) {
  struct Row {
    double asked;
    std::string line;
  };
  std::vector<Row> rows;
  for (const json& tenant : now.tenants.at("tenants")) {
    const double hits = change.OfTenant(tenant, "hits_dram") +
                        change.OfTenant(tenant, "hits_nvme") +
                        change.OfTenant(tenant, "hits_durable");
    const double misses = change.OfTenant(tenant, "misses") + change.OfTenant(tenant, "late") +
                          change.OfTenant(tenant, "failed");
    rows.push_back(
        {hits + misses, fmt::format("{:<24} {:>10} {:>10} {:>10} {:>9} {:>10}",
                                    Plain(tenant.at("name").get<std::string>()).substr(0, 24),
                                    SizeText(tenant.at("dram_bytes").get<uint64_t>()),
                                    SizeText(tenant.at("nvme_bytes").get<uint64_t>()),
                                    Rate(hits + misses), PartText(hits, hits + misses),
                                    Rate(change.OfTenant(tenant, "committed_blocks")))});
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.asked != b.asked ? a.asked > b.asked : a.line < b.line;
  });
  std::vector<std::string> lines = {fmt::format("{:<24} {:>10} {:>10} {:>10} {:>9} {:>10}",
                                                "tenant", "dram", "nvme", "fetch/s", "hits",
                                                "store/s")};
  for (Row& row : rows) lines.push_back(std::move(row.line));
  return lines;
}

}  // namespace

std::string TopScreen(const TopSample* before, const TopSample& now, const ScreenSize& size) {
  const Change change(before, now);
  std::vector<std::string> lines = {HeadLine(now.status),
                                    change.since_start() ? "on average since the start" : "now"};
  const auto add = [&lines](std::vector<std::string> more) {
    for (std::string& line : more) lines.push_back(std::move(line));
  };
  add(TrafficLines(change, now.status));
  add({""});
  add(TierLines(now.status));
  add(TroubleLines(now.status));
  add({""});
  add(TenantLines(change, now));
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), size.rows); ++i) {
    text += lines[i].substr(0, size.columns) + "\n";
  }
  return text;
}

}  // namespace aquifer
