// Metrics of several things that are alike, such as tenants or tiers: a row of a table says which
// figure a series has. Rows of one metric follow each other; the first one's help is the metric's.
#pragma once

#include <span>
#include <string_view>

#include "metrics/prometheus_text.h"

namespace aquifer {

template <class Thing>
struct MetricRow {
  std::string_view metric;
  MetricKind kind;
  std::string_view label;  // Empty: none but the thing's name.
  std::string_view value;
  double (*figure)(const Thing&);
  std::string_view help;
};

// `name_label` is the label with the thing's name, which `name_of` tells.
template <class Thing, class NameOf>
void WriteMetricRows(std::span<const MetricRow<Thing>> rows, std::span<const Thing> things,
                     std::string_view name_label, NameOf name_of, PrometheusText* text) {
  std::string_view family;
  for (const MetricRow<Thing>& row : rows) {
    if (row.metric != family) text->Family(row.metric, row.kind, row.help);
    family = row.metric;
    for (const Thing& thing : things) {
      if (row.label.empty()) {
        text->Sample({{name_label, name_of(thing)}}, row.figure(thing));
      } else {
        text->Sample({{row.label, row.value}, {name_label, name_of(thing)}}, row.figure(thing));
      }
    }
  }
}

}  // namespace aquifer
