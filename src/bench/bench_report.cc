#include "bench/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/text/size_text.h"

namespace aquifer {
namespace {

std::string Number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  if (value >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

// "dram.fetch/2MiB" and "dram.fetch/8MiB" share their explanation.
std::string FamilyOf(const std::string& name) { return name.substr(0, name.find('/')); }

}  // namespace

std::string JsonLine(const RowResult& result) {
  nlohmann::ordered_json peers = nlohmann::ordered_json::object();
  for (const auto& [name, value] : result.peers) peers[name] = value;
  nlohmann::ordered_json line;
  line["name"] = result.name;
  line["unit"] = result.unit;
  line["limit"] = result.limit;
  line["limit_is"] = result.limit_is;
  line["ours"] = result.ours;
  line["ratio"] = result.ratio;
  line["peers"] = std::move(peers);
  line["goal"] = result.goal;
  return line.dump();
}

std::string MachineText(const Machine& machine, const std::string& directory,
                        const std::string& io_engine) {
  return fmt::format(
      "machine  {}, {} core{}, {} memory ({} available)\n"
      "kernel   {}\n"
      "disk     {} ({}, {})\n",
      machine.cpu, machine.cores, machine.cores == 1 ? "" : "s", SizeText(machine.memory_bytes),
      SizeText(machine.memory_available_bytes), machine.kernel, directory, FileSystemOf(directory),
      io_engine);
}

std::string TableHead() {
  return fmt::format("{:<21} {:>12} {:>9} {:>9} {:>7} {:>6}         {}\n", "row", "unit", "limit",
                     "ours", "ratio", "goal", "peers");
}

std::string TableRow(const RowResult& result) {
  std::string peers;
  for (const auto& [name, value] : result.peers) {
    peers += fmt::format("{}{} {}", peers.empty() ? "" : ", ", name, Number(value));
  }
  std::string line =
      fmt::format("{:<21} {:>12} {:>9} {:>9} {:>7.3f} {:>6.2f}  {:<6} {}", result.name, result.unit,
                  Number(result.limit), Number(result.ours), result.ratio, result.goal,
                  result.met() ? "met" : "MISSED", peers);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string TableNotes(std::span<const RowResult> results) {
  std::string text = "What the limits are (ratio 1 is at the limit, more is better)\n";
  std::vector<std::pair<std::string, std::string>> said;
  for (const RowResult& result : results) {
    std::pair<std::string, std::string> pair{FamilyOf(result.name), result.limit_is};
    if (std::find(said.begin(), said.end(), pair) != said.end()) continue;
    text += fmt::format("  {:<21} {}\n", pair.first, pair.second);
    said.push_back(std::move(pair));
  }
  bool titled = false;
  for (const RowResult& result : results) {
    for (const std::string& note : result.notes) {
      if (!std::exchange(titled, true)) text += "Notes\n";
      text += fmt::format("  {:<21} {}\n", result.name, note);
    }
  }
  return text;
}

std::string ListText(std::span<const Row> rows) {
  std::string text = fmt::format("{:<21} {:>12} {:>6}  {}\n", "row", "unit", "goal", "limit");
  for (const Row& row : rows) {
    fmt::format_to(std::back_inserter(text), "{:<21} {:>12} {:>6.2f}  {}\n", row.name, row.unit,
                   row.goal, row.limit_is);
  }
  return text;
}

std::string ListJson(std::span<const Row> rows) {
  std::string text;
  for (const Row& row : rows) {
    nlohmann::ordered_json line;
    line["name"] = row.name;
    line["unit"] = row.unit;
    line["goal"] = row.goal;
    line["limit_is"] = row.limit_is;
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace aquifer
