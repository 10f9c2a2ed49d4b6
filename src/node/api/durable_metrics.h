// What is counted of durable tiers and of data keys, in Prometheus' words.
// docs/operating/metrics.md explains each. Pure: figures in, text out.
#pragma once

#include <optional>
#include <span>

#include "cache/core_snapshot.h"
#include "metrics/prometheus_text.h"
#include "tenant/keys/key_service.h"

namespace aquifer {

// The families are there also where there are no tiers.
void WriteDurableMetrics(std::span<const DurableStats> tiers, PrometheusText* text);

// None: nothing is encrypted.
void WriteKeyMetrics(const std::optional<KeyFigures>& keys, PrometheusText* text);

}  // namespace aquifer
