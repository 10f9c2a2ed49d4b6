#include "node/config/node_log.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

namespace aquifer {
namespace {

using nlohmann::ordered_json;

struct Prefix {
  std::string_view text;
  std::string_view level;
  bool always = false;
  LogLevel value = LogLevel::kInfo;
};
constexpr Prefix kPrefixes[] = {
    {"audit: ", "audit", true, LogLevel::kInfo},
    {"warning: ", "warning", false, LogLevel::kWarning},
    {"error: ", "error", false, LogLevel::kError},
};
constexpr Prefix kNoPrefix = {"", "info", false, LogLevel::kInfo};

const Prefix& PrefixOf(std::string_view line) {
  for (const Prefix& prefix : kPrefixes) {
    if (line.starts_with(prefix.text)) return prefix;
  }
  return kNoPrefix;
}

std::string StampOf(int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  char stamp[sizeof("2026-01-01T00:00:00Z")];
  std::strftime(stamp, sizeof(stamp), "%FT%TZ", &utc);
  return stamp;
}

ordered_json JsonOf(int64_t unix_seconds, std::optional<uid_t> user, std::string_view line) {
  const Prefix& prefix = PrefixOf(line);
  ordered_json entry = {{"time", StampOf(unix_seconds)},
                        {"level", prefix.level},
                        {"message", line.substr(prefix.text.size())}};
  if (user) entry["user"] = *user;
  return entry;
}

std::string Dump(const ordered_json& entry) {
  return entry.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string TableText(std::string_view title, const LogTable& rows) {
  std::string text(title);
  for (const auto& [name, value] : rows) text += fmt::format("\n  {:<12} {}", name, value);
  return text;
}

std::string LogLine(LogFormat format, int64_t unix_seconds, std::optional<uid_t> user,
                    std::string_view line) {
  if (format == LogFormat::kJson) return Dump(JsonOf(unix_seconds, user, line));
  return fmt::format("{} {}", StampOf(unix_seconds), line);
}

NodeLog::NodeLog(LineLogOptions options, Clock* clock)
    : clock_(clock),
      lines_((
                 options.left_out_line =
                     [clock, format = format_](uint64_t count) {
                       return LogLine(
                           *format, clock->UnixSeconds(), std::nullopt,
                           fmt::format("warning: {} lines of the log were left out", count));
                     },
                 options),
             clock) {}

void NodeLog::Set(LogLevel least, LogFormat format) {
  least_ = least;
  *format_ = format;
}

void NodeLog::WriteFor(std::optional<uid_t> user, std::string_view line) {
  const Prefix& prefix = PrefixOf(line);
  if (!prefix.always && prefix.value < least_.load()) return;
  std::string text = LogLine(*format_, clock_->UnixSeconds(), user, line);
  user ? lines_.WriteFor(*user, std::move(text)) : lines_.Write(std::move(text));
}

void NodeLog::WriteTable(std::string_view title, const LogTable& rows) {
  if (least_.load() > LogLevel::kInfo) return;
  if (format_->load() == LogFormat::kJson) {
    ordered_json entry = JsonOf(clock_->UnixSeconds(), std::nullopt, title);
    for (const auto& [name, value] : rows) entry["uses"][name].push_back(value);
    return lines_.Write(Dump(entry));
  }
  lines_.Write(TableText(title, rows));
}

}  // namespace aquifer
