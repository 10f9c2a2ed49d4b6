// The node's log: lines on stderr, as text or as JSON. A line says its level with its first word:
// "warning: ", "error: ", or none of them. A line that begins with "audit: " is always written.
//
// Never waits: the node's owner logs too. Any thread may call.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/line_log.h"

namespace aquifer {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kText, kJson };

// In the order of their values.
inline constexpr std::array<std::string_view, 3> kLogLevels = {"info", "warning", "error"};
inline constexpr std::array<std::string_view, 2> kLogFormats = {"text", "json"};

using LogTable = std::vector<std::pair<std::string, std::string>>;  // Names and values.

// A title, and a line for each row below it.
std::string TableText(std::string_view title, const LogTable& rows);

// The line as it is written, without its end: "2026-01-01T00:00:00Z warning: ..." or
// {"time":"2026-01-01T00:00:00Z","level":"warning","message":"..."}.
std::string LogLine(LogFormat format, int64_t unix_seconds, std::optional<uid_t> user,
                    std::string_view line);

class NodeLog {
 public:
  NodeLog(LineLogOptions options, Clock* clock);

  // Lines below `least` are left out from now on.
  void Set(LogLevel least, LogFormat format);
  LogFormat format() const { return *format_; }

  void Write(std::string_view line) { WriteFor(std::nullopt, line); }
  // A line that a user of the host caused, who may cause as many as they like. None: the node
  // itself.
  void WriteFor(std::optional<uid_t> user, std::string_view line);

  // What the node uses: a block of lines at start, or one JSON line with a field for each name.
  void WriteTable(std::string_view title, const LogTable& rows);

  // For those who write lines and know no more of the log.
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) { Write(line); };
  }

 private:
  Clock* const clock_;
  std::atomic<LogLevel> least_ = LogLevel::kInfo;
  // Shared with the thread that writes, which may outlast the log.
  const std::shared_ptr<std::atomic<LogFormat>> format_ =
      std::make_shared<std::atomic<LogFormat>>(LogFormat::kText);
  LineLog lines_;
};

}  // namespace aquifer
