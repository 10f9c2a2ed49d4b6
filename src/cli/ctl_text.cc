#include "cli/ctl_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/text/size_text.h"
#include "base/text/utf8.h"
#include "cli/shell_quoted.h"

namespace aquifer {
namespace {

using nlohmann::json;

// Columns as wide as their widest cell; the first to the left, the others to the right.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string Size(const json& value, const char* name) {
  return SizeText(value.at(name).get<uint64_t>());
}

std::string Count(const json& value, const char* name) {
  return fmt::format("{}", value.at(name).get<uint64_t>());
}

// Names come from engines, and a terminal obeys some bytes.
std::string Printable(const json& value, const char* name) {
  const auto text = value.at(name).get<std::string>();
  std::string printable;
  for (std::string_view left = text; !left.empty();) {
    const size_t length = PrintableBytes(left);
    printable += length == 0 ? "?" : left.substr(0, length);
    left.remove_prefix(std::max<size_t>(length, 1));
  }
  return printable;
}

std::string Line(const char* name, const std::string& text) {
  return fmt::format("{:<12} {}\n", name, text);
}

std::string StateText(const json& status) {
  if (status.at("draining").get<bool>()) return "draining: nothing is stored any more";
  return status.at("ready").get<bool>() ? "ready" : "not ready";
}

uint64_t Misses(const json& value, const char* not_found, const char* late, const char* failed) {
  return value.at(not_found).get<uint64_t>() + value.at(late).get<uint64_t>() +
         value.at(failed).get<uint64_t>();
}

std::string Part(uint64_t part, uint64_t whole) {
  return PartText(static_cast<double>(part), static_cast<double>(whole));
}

std::string FetchText(const json& counters) {
  const auto dram = counters.at("fetch_hits_dram").get<uint64_t>();
  const auto nvme = counters.at("fetch_hits_nvme").get<uint64_t>();
  const auto durable = counters.at("fetch_hits_durable").get<uint64_t>();
  const uint64_t hits = dram + nvme + durable;
  const uint64_t all = hits + Misses(counters, "fetch_misses", "fetch_late", "fetch_failed");
  return fmt::format(
      "{} blocks asked for, {} hit: {} from dram, {} from nvme, {} from durable tiers; {} late, {} "
      "failed",
      all, Part(hits, all), dram, nvme, durable, Count(counters, "fetch_late"),
      Count(counters, "fetch_failed"));
}

// Of what was asked for, which an order hears of before anything is fetched.
std::string PolicyText(const json& counters) {
  const auto count = [&counters](const char* name) { return counters.value(name, uint64_t{0}); };
  const uint64_t asked = count("policy_asked");
  if (asked == 0) return count("policy_lru_decides") != 0 ? "lru" : "learned";
  return fmt::format(
      "{} decides; dram had {} of {} blocks asked for, lru would have had {}; lru took over {} "
      "times",
      count("policy_lru_decides") != 0 ? "lru" : "learned", Part(count("policy_hits"), asked),
      asked, Part(count("policy_lru_hits"), asked), count("policy_takeovers"));
}

std::string PaceText(double bytes_per_second) {
  return SizeText(static_cast<uint64_t>(bytes_per_second)) + "/s";
}

// Looking for a blob and removing it move no bytes, so they are counted.
std::string MeasurePaceText(const json& measure) {
  const double bytes_per_second = measure.at("bytes_per_second").get<double>();
  const json& what = measure.at("what");
  if (what != "look" && what != "remove") return PaceText(bytes_per_second);
  const double per_second = bytes_per_second / std::max(measure.at("bytes").get<double>(), 1.0);
  return fmt::format("{:.0f} a second", per_second);
}

// A shared tier has no count of blocks, and its use may not be known.
std::string DurableText(const json& tiers) {
  if (tiers.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"durable tier", "used", "of", "latency", "pace",
                                                 "loaded", "written", "waiting", "failed",
                                                 "state"}};
  std::string more;
  for (const json& tier : tiers) {
    const uint64_t waiting = tier.at("waiting_loads").get<uint64_t>() +
                             tier.at("waiting_writes").get<uint64_t>() +
                             tier.at("waiting_erasures").get<uint64_t>();
    const uint64_t failed =
        tier.at("failed_loads").get<uint64_t>() + tier.at("failed_writes").get<uint64_t>();
    const bool capped = tier.at("capacity_bytes").get<uint64_t>() > 0;
    const bool in_service = tier.at("in_service").get<bool>();
    rows.push_back({Printable(tier, "name"), Size(tier, "used_bytes"),
                    capped ? Size(tier, "capacity_bytes") : "-",
                    fmt::format("{:.1f} ms", tier.at("latency_ms").get<double>()),
                    PaceText(tier.at("read_bytes_per_second").get<double>()),
                    Size(tier, "loaded_bytes"), Size(tier, "written_bytes"),
                    fmt::format("{}", waiting), fmt::format("{}", failed),
                    in_service ? "in service" : "OUT OF SERVICE"});
    const std::string why = Printable(tier, "why");
    const std::string trouble = why.empty()  ? ""
                                : in_service ? fmt::format(" (last trouble: {})", why)
                                             : ": " + why;
    more += fmt::format("  {}: {}{}\n", Printable(tier, "name"), Printable(tier, "place"), trouble);
    if (const auto unswept = tier.value("unswept_tenants", uint64_t{0}); unswept > 0) {
      more += fmt::format("    {} deleted tenant{} still to be swept from it\n", unswept,
                          unswept == 1 ? " is" : "s are");
    }
  }
  return "\n" + Table(rows) + more;
}

}  // namespace

std::string SpanText(int64_t seconds) {
  if (seconds >= 86'400) return fmt::format("{}d {}h", seconds / 86'400, seconds % 86'400 / 3600);
  if (seconds >= 3600) return fmt::format("{}h {}m", seconds / 3600, seconds % 3600 / 60);
  if (seconds >= 60) return fmt::format("{}m {}s", seconds / 60, seconds % 60);
  return fmt::format("{}s", seconds);
}

std::string PartText(double part, double whole) {
  return whole <= 0 ? "-" : fmt::format("{:.1f} %", 100 * part / whole);
}

std::string TiersText(const json& answer) {
  std::vector<std::vector<std::string>> rows = {{"tier", "used", "of", "full", "blocks", "state"}};
  std::string drives;
  for (const json& tier : answer.at("tiers")) {
    const bool durable = tier.at("tier") == "durable";
    if (durable && answer.contains("durable")) continue;  // With more of them below.
    rows.push_back(
        {tier.at("tier").get<std::string>(), Size(tier, "used_bytes"), Size(tier, "capacity_bytes"),
         PartText(tier.at("used_bytes").get<double>(), tier.at("capacity_bytes").get<double>()),
         Count(tier, "blocks"),
         tier.at("in_service").get<bool>() ? "in service" : "OUT OF SERVICE"});
    for (const json& drive : tier.at("drives")) {
      std::string state = drive.at("in_service").get<bool>() ? "in service" : "OUT OF SERVICE";
      if (!drive.at("writable").get<bool>()) state += ", not writable";
      const std::string why = Printable(drive, "why");
      drives += fmt::format("  drive {}: {}{}\n", Printable(drive, "directory"), state,
                            why.empty() ? "" : ": " + why);
    }
  }
  return Table(rows) + drives + DurableText(answer.value("durable", json::array()));
}

std::string StoreReportText(const json& report) {
  std::string text =
      fmt::format("tier {}, {}\n", Printable(report, "tier"), Printable(report, "place"));
  std::vector<std::vector<std::string>> rows = {{"", "size", "at once", "median", "worst", "pace"}};
  for (const json& measure : report.at("measures")) {
    rows.push_back({Printable(measure, "what"), Size(measure, "bytes"), Count(measure, "at_once"),
                    fmt::format("{:.2f} ms", measure.at("median_ms").get<double>()),
                    fmt::format("{:.2f} ms", measure.at("worst_ms").get<double>()),
                    MeasurePaceText(measure)});
  }
  if (rows.size() > 1) text += Table(rows);
  if (report.at("works").get<bool>()) return text + "It works: every byte came back.\n";
  return text + fmt::format("It does not work: {}: {}\n", Printable(report, "failed"),
                            Printable(report, "trouble"));
}

std::string StatusText(const json& status) {
  const json& counters = status.at("counters");
  const json& savings = status.at("savings");
  const json& connections = status.at("connections");
  std::string text;
  text += Line("node", fmt::format("{}, aquifer {}, process {}", StateText(status),
                                   Printable(status, "version"), Count(status, "pid")));
  text += Line("up", SpanText(status.at("uptime_ms").get<int64_t>() / 1000));
  text += Line("socket", Printable(status, "socket"));
  const std::string http = Printable(status, "http");
  text += Line("http", http.empty() ? "off" : http);
  text += Line("engines", fmt::format("{}, on {} connections ({} more linger), {} sessions",
                                      Count(counters, "engines"), Count(connections, "open"),
                                      Count(connections, "lingering"), Count(status, "sessions")));
  text += Line("fetches", FetchText(counters));
  text += Line("stores", fmt::format("{} blocks, {} refused", Count(counters, "committed"),
                                     Count(counters, "reserve_refused")));
  text += Line("policy", PolicyText(counters));
  text += Line("saved", fmt::format("{:.1f} s of prefill, {:.1f} s lost",
                                    savings.at("saved_ms").get<double>() / 1e3,
                                    savings.at("lost_ms").get<double>() / 1e3));
  text += Line("trouble",
               fmt::format("{} corrupt blocks, {} quarantined, {} overdue",
                           Count(counters, "corrupt_blocks"), Size(counters, "quarantined_bytes"),
                           counters.at("overdue_leases").get<uint64_t>() +
                               counters.at("overdue_reservations").get<uint64_t>()));
  const std::string keys = status.value("key_trouble", std::string());
  if (!keys.empty()) text += Line("keys", "cannot be read: " + Printable(status, "key_trouble"));
  return text + "\n" + TiersText(status);
}

std::string TenantsText(const json& answer) {
  std::vector<std::vector<std::string>> rows = {
      {"tenant", "dram", "nvme", "hits", "misses", "hit rate", "stored", "refused", "saved"}};
  for (const json& tenant : answer.at("tenants")) {
    const uint64_t hits = tenant.at("hits_dram").get<uint64_t>() +
                          tenant.at("hits_nvme").get<uint64_t>() +
                          tenant.at("hits_durable").get<uint64_t>();
    const uint64_t misses = Misses(tenant, "misses", "late", "failed");
    rows.push_back(
        {Printable(tenant, "name"), Size(tenant, "dram_bytes"), Size(tenant, "nvme_bytes"),
         fmt::format("{}", hits), fmt::format("{}", misses), Part(hits, hits + misses),
         Count(tenant, "committed_blocks"), Count(tenant, "refused"),
         fmt::format(
             "{:.1f} s",
             (tenant.at("saved_ms").get<double>() - tenant.at("lost_ms").get<double>()) / 1e3)});
  }
  return Table(rows);
}

std::string TenantDeletedText(const json& answer) {
  std::string text =
      fmt::format("{} blocks are gone from this node; {}\n", Count(answer, "evicted"),
                  answer.value("key_destroyed", false)
                      ? "the key is destroyed, and other nodes notice within a minute"
                      : "there was no key, for nothing is encrypted here");
  const std::string trouble = answer.value("trouble", std::string());
  if (!trouble.empty()) text += fmt::format("Not all could be dropped: {}\n", trouble);
  const auto unswept = answer.value("unswept", std::vector<std::string>());
  if (!unswept.empty()) {
    text += fmt::format(
        "{} still to be swept, which goes on by itself, also after a restart: {}; see aquifer ctl "
        "tiers\n",
        unswept.size() == 1 ? "1 store is" : fmt::format("{} stores are", unswept.size()),
        fmt::join(unswept, ", "));
  }
  if (answer.value("still_configured", false)) {
    text += "It is still in the tenants file, and begins anew with what it stores.\n";
  }
  return text;
}

std::string SessionsText(const json& answer) {
  if (answer.at("sessions").empty()) {
    return fmt::format("tenant {} has no sessions\n", Printable(answer, "tenant"));
  }
  std::vector<std::vector<std::string>> rows = {{"session", "blocks", "tokens", "bytes", "head"}};
  for (const json& session : answer.at("sessions")) {
    rows.push_back({Printable(session, "session"), Count(session, "blocks"),
                    Count(session, "tokens"), Size(session, "bytes"), Printable(session, "head")});
  }
  std::string text = Table(rows);
  const std::string next = Printable(answer, "next");
  if (!next.empty()) text += fmt::format("There are more: --after {}\n", ShellQuoted(next));
  return text;
}

}  // namespace aquifer
