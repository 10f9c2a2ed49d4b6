// Runs rows: every contender once a round, so that what the machine does besides (a throttled disk,
// a neighbour, a warm processor) touches all of them alike, and the medians of the rounds compared.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "bench/bench_row.h"

namespace aquifer {

struct RowResult {
  std::string name;
  std::string unit;
  std::string limit_is;
  double limit = 0;
  double ours = 0;
  double ratio = 0;  // 1 is at the limit, more is better.
  double goal = 0;
  std::vector<std::pair<std::string, double>> peers;  // Those that could be measured.
  std::vector<std::string> notes;
  int rounds = 0;

  bool met() const { return ratio >= goal; }
};

// Of an even number of values, the mean of the middle two. `values` is not empty.
double Median(std::vector<double> values);

// 0 when it cannot be told, because a value is not positive.
double RatioOf(double limit, double ours, bool higher_is_better);

// The rows whose names begin with one of `names`, each once, in the order of `rows`; all when there
// are no names. kNotFound, with what there is, for a name that no row begins with.
Result<std::vector<const Row*>> SelectRows(std::span<const Row> rows,
                                           std::span<const std::string> names);

// One round to warm up, which does not count, then the row's rounds. `on_round(done, all)` tells
// how far it is. A peer that fails is left out and noted; a limit or an "ours" that fails is the
// error.
Result<RowResult> MeasureRow(const Row& row, const BenchEnvironment& environment,
                             const std::function<void(int, int)>& on_round);

}  // namespace aquifer
