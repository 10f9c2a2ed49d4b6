#include "bench/bench_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "bench/peers/bench_memory.h"

namespace aquifer {
namespace {

// One contender's figures over the rounds.
struct Lane {
  std::string name;
  std::function<Result<double>()> measure;
  std::vector<double> values;
  Status status;
};

std::vector<Lane> LanesOf(Contest* contest) {
  std::vector<Lane> lanes;
  lanes.push_back({"the limit", [contest] { return contest->Limit(); }, {}, {}});
  lanes.push_back({"ours", [contest] { return contest->Ours(); }, {}, {}});
  const std::vector<std::string> peers = contest->PeerNames();
  for (size_t i = 0; i < peers.size(); ++i) {
    lanes.push_back({peers[i], [contest, i] { return contest->Peer(i); }, {}, {}});
  }
  return lanes;
}

constexpr int kLeastRounds = 3;

constexpr size_t kLimitLane = 0;
constexpr size_t kOursLane = 1;
constexpr size_t kFirstPeerLane = 2;

// Every second round goes backwards, so that nobody always comes after the same other one.
void RunRound(std::vector<Lane>* lanes, int round) {
  for (size_t i = 0; i < lanes->size(); ++i) {
    Lane& lane = (*lanes)[round % 2 == 0 ? i : lanes->size() - 1 - i];
    if (!lane.status.ok()) continue;
    const Result<double> value = lane.measure();
    if (!value.ok()) {
      lane.status = value.status();
    } else if (round > 0) {  // The first round warms up.
      lane.values.push_back(*value);
    }
  }
}

}  // namespace

Result<double> Contest::Peer(size_t /*peer*/) {
  return Status(Code::kInvalid, "this row has no peers");
}

double Median(std::vector<double> values) {
  AQ_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

double RatioOf(double limit, double ours, bool higher_is_better) {
  if (!(limit > 0) || !(ours > 0)) return 0;
  return higher_is_better ? ours / limit : limit / ours;
}

Result<std::vector<const Row*>> SelectRows(std::span<const Row> rows,
                                           std::span<const std::string> names) {
  for (const std::string& name : names) {
    if (std::any_of(rows.begin(), rows.end(),
                    [&](const Row& row) { return row.name.starts_with(name); })) {
      continue;
    }
    std::string there_are;
    for (const Row& row : rows) there_are += "\n  " + row.name;
    return Status(Code::kNotFound,
                  fmt::format("no row's name begins with '{}'. There are:{}", name, there_are));
  }
  std::vector<const Row*> selected;
  for (const Row& row : rows) {
    if (names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return row.name.starts_with(name);
        })) {
      selected.push_back(&row);
    }
  }
  return selected;
}

Result<RowResult> MeasureRow(const Row& row, const BenchEnvironment& environment,
                             const std::function<void(int, int)>& on_round) {
  int rounds = environment.quick ? row.quick_rounds : row.rounds;
  AQ_CHECK(rounds > 0);
  const Stopwatch watch;
  on_round(0, rounds);
  AQ_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest, row.prepare(environment));
  std::vector<Lane> lanes = LanesOf(contest.get());
  for (int round = 0; round <= rounds; ++round) {
    RunRound(&lanes, round);
    for (const size_t i : {kLimitLane, kOursLane}) {
      if (lanes[i].status.ok()) continue;
      return Status(lanes[i].status.code(), fmt::format("{} could not be measured: {}",
                                                        lanes[i].name, lanes[i].status.message()));
    }
    on_round(round, rounds);
    if (environment.row_seconds > 0 && watch.Seconds() > environment.row_seconds) {
      rounds = std::min(rounds, std::max(round, kLeastRounds));
    } else if (round == rounds && watch.Seconds() < environment.least_seconds) {
      rounds = std::min(rounds + 1, row.rounds);
    }
  }

  RowResult result{.name = row.name,
                   .unit = row.unit,
                   .limit_is = contest->LimitIs().empty() ? row.limit_is : contest->LimitIs(),
                   .limit = Median(lanes[kLimitLane].values),
                   .ours = Median(lanes[kOursLane].values),
                   .goal = row.goal,
                   .peers = {},
                   .notes = {},
                   .rounds = rounds};
  result.ratio = RatioOf(result.limit, result.ours, row.higher_is_better);
  for (size_t i = kFirstPeerLane; i < lanes.size(); ++i) {
    if (lanes[i].status.ok()) {
      result.peers.emplace_back(lanes[i].name, Median(lanes[i].values));
    } else {
      result.notes.push_back(
          fmt::format("{} could not be measured: {}", lanes[i].name, lanes[i].status.ToString()));
    }
  }
  if (std::string note = contest->Note(); !note.empty()) result.notes.push_back(std::move(note));
  return result;
}

}  // namespace aquifer
