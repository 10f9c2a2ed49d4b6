#include "node/drive_watch.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/executor.h"

namespace aquifer {
namespace {

constexpr int64_t kLookNanos = 1'000'000'000;

std::string StateOf(const DriveStats& drive) {
  if (!drive.in_service) return "out of service";
  return drive.writable ? "in service" : "in service, but nothing can be written to it";
}

}  // namespace

std::vector<std::string> DriveChanges(const std::vector<DriveStats>& before,
                                      const std::vector<DriveStats>& now) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < now.size(); ++i) {
    const DriveStats known = i < before.size() ? before[i] : DriveStats{};
    if (StateOf(now[i]) == StateOf(known) && now[i].why == known.why) continue;
    lines.push_back(fmt::format("drive {}: {}{}", now[i].directory, StateOf(now[i]),
                                now[i].why.empty() ? "" : ": " + now[i].why));
  }
  return lines;
}

DriveWatch::DriveWatch(RunningCore* running, std::function<void(const std::string&)> log)
    : running_(running), log_(std::move(log)) {
  running_->owner()->Post([this, alive = alive_] {
    if (*alive) Look();
  });
}

DriveWatch::~DriveWatch() {
  RunAndWait(running_->owner(), [this](const std::function<void()>& done) {
    *alive_ = false;
    done();
  });
}

void DriveWatch::Look() {
  std::vector<DriveStats> now = running_->core()->Drives();
  for (const std::string& line : DriveChanges(known_, now)) log_(line);
  known_ = std::move(now);
  running_->owner()->PostAt(SystemClock()->NowNanos() + kLookNanos, [this, alive = alive_] {
    if (*alive) Look();
  });
}

}  // namespace aquifer
