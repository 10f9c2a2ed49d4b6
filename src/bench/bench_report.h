// How results are shown: a table for people, one JSON object a line for programs.
#pragma once

#include <span>
#include <string>

#include "bench/bench_row.h"
#include "bench/bench_runner.h"
#include "cli/machine.h"

namespace aquifer {

// {"name":...,"unit":...,"limit":...,"limit_is":...,"ours":...,"ratio":...,"peers":{...},"goal":...}
// on one line, without a line end.
std::string JsonLine(const RowResult& result);

// Three lines, each with its line end.
std::string MachineText(const Machine& machine, const std::string& directory,
                        const std::string& io_engine);

// The head of the table, and one row of it; each with its line end.
std::string TableHead();
std::string TableRow(const RowResult& result);

// Text beneath the table: the limits, and whatever else a reader should know.
std::string TableNotes(std::span<const RowResult> results);

// One line a row: name, unit, goal and what its limit is.
std::string ListText(std::span<const Row> rows);
// {"name":...,"unit":...,"goal":...,"limit_is":...} on one line each.
std::string ListJson(std::span<const Row> rows);

}  // namespace aquifer
