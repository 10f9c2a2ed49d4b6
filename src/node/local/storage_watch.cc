#include "node/local/storage_watch.h"

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

uint64_t TimesLeft(const DurableStats& tier) {
  for (const auto& [name, value] : tier.counters) {
    if (name == "times_left") return value;
  }
  return 0;
}

// Stores say what to do where they know it.
std::string WhyOf(const DurableStats& tier) {
  if (tier.why.find("next step: ") != std::string::npos) return tier.why;
  return fmt::format("{}; next step: aquifer ctl tiers test {}", tier.why, tier.name);
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

std::vector<std::string> TierChanges(const std::vector<DurableStats>& before,
                                     const std::vector<DurableStats>& now) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < now.size(); ++i) {
    const DurableStats known = i < before.size() ? before[i] : DurableStats{};
    const bool left = TimesLeft(now[i]) > TimesLeft(known);
    if (left || (known.in_service && !now[i].in_service)) {
      lines.push_back(fmt::format("tier {}: out of service: {}", now[i].name, WhyOf(now[i])));
    }
    if (now[i].in_service && (left || !known.in_service)) {
      lines.push_back(fmt::format("tier {}: in service again", now[i].name));
    }
  }
  return lines;
}

StorageWatch::StorageWatch(RunningCore* running, std::function<void(const std::string&)> log)
    : running_(running), log_(std::move(log)) {
  running_->owner()->Post([this, alive = alive_] {
    if (*alive) Look();
  });
}

StorageWatch::~StorageWatch() {
  RunAndWait(running_->owner(), [this](const std::function<void()>& done) {
    *alive_ = false;
    done();
  });
}

void StorageWatch::Look() {
  std::vector<DriveStats> drives = running_->core()->Drives();
  for (const std::string& line : DriveChanges(known_drives_, drives)) log_(line);
  known_drives_ = std::move(drives);
  std::vector<DurableStats> tiers = running_->core()->DurableTierStats();
  for (const std::string& line : TierChanges(known_tiers_, tiers)) log_(line);
  known_tiers_ = std::move(tiers);
  running_->owner()->PostAt(SystemClock()->NowNanos() + kLookNanos, [this, alive = alive_] {
    if (*alive) Look();
  });
}

}  // namespace aquifer
