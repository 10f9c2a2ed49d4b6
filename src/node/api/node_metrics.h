// A node's counters in Prometheus' words. docs/operating/metrics.md explains each; a test holds the
// two together. Pure: a snapshot in, text out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/core_snapshot.h"
#include "metrics/prometheus_text.h"
#include "node/api/process_usage.h"
#include "node/local/server.h"
#include "tenant/keys/key_service.h"

namespace aquifer {

struct NodeSnapshot {
  CoreSnapshot core;
  std::vector<TenantSnapshot> tenants;  // All.
  ServerStats server;
  ProcessUsage process;
  std::optional<KeyFigures> keys;  // None: nothing is encrypted.
  double owner_wait_seconds = 0;   // How long the task that took this waited for its turn.
  int64_t started_unix = 0;
  std::string version;
};

// Tenants that get lines of their own, the first that came; all others share one.
inline constexpr size_t kMaxTenantLabels = 256;

std::string MetricsText(const NodeSnapshot& snapshot,
                        MetricsFormat format = MetricsFormat::kPrometheus);

// Counters of CacheStats that are in no metric: none, if the table is complete.
std::vector<std::string> CountersWithoutMetric(const CacheStats& stats);

}  // namespace aquifer
