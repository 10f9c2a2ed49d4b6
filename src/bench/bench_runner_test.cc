#include "bench/bench_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/bench_report.h"

namespace aquifer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Plays back figures, and writes down who was asked in which order.
class ScriptedContest final : public Contest {
 public:
  struct Script {
    std::vector<double> limit;
    std::vector<double> ours;
    std::vector<double> peer;  // Empty: the peer fails.
    Status ours_status;
  };

  ScriptedContest(Script script, std::string* order) : script_(std::move(script)), order_(order) {}

  Result<double> Limit() override {
    *order_ += "L";
    return script_.limit[limit_++];
  }
  Result<double> Ours() override {
    *order_ += "O";
    if (!script_.ours_status.ok()) return script_.ours_status;
    return script_.ours[ours_++];
  }
  std::vector<std::string> PeerNames() const override { return {"other"}; }
  Result<double> Peer(size_t /*peer*/) override {
    *order_ += "P";
    if (script_.peer.empty()) return Status(Code::kUnavailable, "not installed");
    return script_.peer[peer_++];
  }

 private:
  const Script script_;
  std::string* const order_;
  size_t limit_ = 0;
  size_t ours_ = 0;
  size_t peer_ = 0;
};

Row ScriptedRow(const ScriptedContest::Script& script, std::string* order) {
  Row row{.name = "thing/2MiB",
          .unit = "GB/s",
          .limit_is = "what there is",
          .goal = 0.9,
          .prepare =
              [=](const BenchEnvironment&) {
                return Result<std::unique_ptr<Contest>>(
                    std::make_unique<ScriptedContest>(script, order));
              },
          .rounds = 3,
          .quick_rounds = 1};
  return row;
}

Result<RowResult> Measure(const Row& row, bool quick = false) {
  return MeasureRow(row, {.directory = "", .quick = quick}, [](int, int) {});
}

std::vector<Row> Named(const std::vector<std::string>& names) {
  std::vector<Row> rows;
  rows.reserve(names.size());
  for (const std::string& name : names)
    rows.push_back({.name = name, .unit = {}, .limit_is = {}, .prepare = {}});
  return rows;
}

std::vector<std::string> NamesOf(const std::vector<const Row*>& rows) {
  std::vector<std::string> names;
  names.reserve(rows.size());
  for (const Row* row : rows) names.push_back(row->name);
  return names;
}

TEST(BenchRunnerTest, AMedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(Median({7}), 7);
  EXPECT_DOUBLE_EQ(Median({9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(Median({4, 100, 2, 3}), 3.5);
}

TEST(BenchRunnerTest, ARatioIsInvertedWhereLessIsBetter) {
  EXPECT_DOUBLE_EQ(RatioOf(10, 9, true), 0.9);
  EXPECT_DOUBLE_EQ(RatioOf(2, 4, false), 0.5);
  EXPECT_DOUBLE_EQ(RatioOf(2, 1, false), 2);
  EXPECT_DOUBLE_EQ(RatioOf(0, 1, true), 0);
  EXPECT_DOUBLE_EQ(RatioOf(1, 0, false), 0);
}

TEST(BenchRunnerTest, ANameSelectsEveryRowThatBeginsWithItOnce) {
  const std::vector<Row> rows = Named({"dram.fetch/1MiB", "dram.store/1MiB", "keys.derive"});
  EXPECT_THAT(NamesOf(*SelectRows(rows, {})),
              ElementsAre("dram.fetch/1MiB", "dram.store/1MiB", "keys.derive"));
  const std::vector<std::string> dram = {"dram"};
  EXPECT_THAT(NamesOf(*SelectRows(rows, dram)), ElementsAre("dram.fetch/1MiB", "dram.store/1MiB"));
  const std::vector<std::string> twice = {"keys", "dram.fetch", "dram.fetch/1MiB"};
  EXPECT_THAT(NamesOf(*SelectRows(rows, twice)), ElementsAre("dram.fetch/1MiB", "keys.derive"));
}

TEST(BenchRunnerTest, ANameThatMatchesNothingIsAnErrorThatListsWhatThereIs) {
  const std::vector<Row> rows = Named({"dram.fetch/1MiB", "keys.derive"});
  const std::vector<std::string> names = {"keys", "fetch"};
  const auto selected = SelectRows(rows, names);
  ASSERT_FALSE(selected.ok());
  EXPECT_EQ(selected.status().code(), Code::kNotFound);
  EXPECT_THAT(selected.status().message(), HasSubstr("'fetch'"));
  EXPECT_THAT(selected.status().message(), HasSubstr("dram.fetch/1MiB"));
  EXPECT_THAT(selected.status().message(), HasSubstr("keys.derive"));
}

TEST(BenchRunnerTest, ContendersTakeTurnsAndTheWarmUpRoundDoesNotCount) {
  std::string order;
  const Row row = ScriptedRow({.limit = {1000, 10, 12, 11},
                               .ours = {1000, 8, 11, 9},
                               .peer = {1000, 1, 3, 2},
                               .ours_status = {}},
                              &order);
  const Result<RowResult> result = Measure(row);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(order, "LOPPOLLOPPOL");
  EXPECT_DOUBLE_EQ(result->limit, 11);
  EXPECT_DOUBLE_EQ(result->ours, 9);
  EXPECT_DOUBLE_EQ(result->ratio, 9.0 / 11);  // Of the medians.
  EXPECT_FALSE(result->met());
  EXPECT_EQ(result->rounds, 3);
  ASSERT_EQ(result->peers.size(), 1u);
  EXPECT_DOUBLE_EQ(result->peers[0].second, 2);
}

TEST(BenchRunnerTest, QuickMeasuresTheSameInFewerRounds) {
  std::string order;
  const Row row =
      ScriptedRow({.limit = {1, 1}, .ours = {1, 1}, .peer = {1, 1}, .ours_status = {}}, &order);
  const Result<RowResult> result = Measure(row, true);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(order, "LOPPOL");
  EXPECT_TRUE(result->met());
}

TEST(BenchRunnerTest, ARowWhoseTimeIsOverEndsAfterThreeRounds) {
  std::string order;
  const std::vector<double> figures(10, 1);
  Row row =
      ScriptedRow({.limit = figures, .ours = figures, .peer = figures, .ours_status = {}}, &order);
  row.rounds = 9;
  const Result<RowResult> result =
      MeasureRow(row, {.directory = "", .row_seconds = 1e-9}, [](int, int) {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->rounds, 3);
  EXPECT_EQ(order, "LOPPOLLOPPOL");
}

TEST(BenchRunnerTest, AQuickRowThatIsCheapHasAllOfItsRounds) {
  std::string order;
  const std::vector<double> figures(10, 1);
  Row row =
      ScriptedRow({.limit = figures, .ours = figures, .peer = figures, .ours_status = {}}, &order);
  row.rounds = 4;
  const Result<RowResult> result =
      MeasureRow(row, {.directory = "", .quick = true, .least_seconds = 3600}, [](int, int) {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->rounds, 4);
  EXPECT_EQ(order, "LOPPOLLOPPOLLOP");
}

TEST(BenchRunnerTest, APeerThatFailsIsLeftOutAndNotAskedAgain) {
  std::string order;
  const Row row = ScriptedRow(
      {.limit = {1, 1, 1, 1}, .ours = {1, 1, 1, 1}, .peer = {}, .ours_status = {}}, &order);
  const Result<RowResult> result = Measure(row);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->peers.empty());
  EXPECT_EQ(order, "LOPOLLOOL");
  ASSERT_EQ(result->notes.size(), 1u);
  EXPECT_THAT(result->notes[0], HasSubstr("not installed"));
}

TEST(BenchRunnerTest, ARowThatCannotBeMeasuredIsAnError) {
  std::string order;
  const Row row = ScriptedRow({.limit = {1, 1, 1, 1},
                               .ours = {},
                               .peer = {},
                               .ours_status = Status(Code::kUnavailable, "the disk is gone")},
                              &order);
  const Result<RowResult> result = Measure(row);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("the disk is gone"));
}

TEST(BenchReportTest, AJsonLineHasExactlyWhatIsPromised) {
  const RowResult result{.name = "thing/2MiB",
                         .unit = "GB/s",
                         .limit_is = "what there is",
                         .limit = 12.34567,
                         .ours = 11,
                         .ratio = 0.891,
                         .goal = 0.9,
                         .peers = {{"other", 2.5}},
                         .notes = {"for people"},
                         .rounds = 3};
  const std::string line = JsonLine(result);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(line);
  std::vector<std::string> fields;
  for (const auto& [field, value] : json.items()) fields.push_back(field);
  EXPECT_THAT(fields,
              ElementsAre("name", "unit", "limit", "limit_is", "ours", "ratio", "peers", "goal"));
  EXPECT_EQ(json["name"], "thing/2MiB");
  EXPECT_DOUBLE_EQ(json["limit"], 12.34567);
  EXPECT_DOUBLE_EQ(json["ratio"], 0.891);
  EXPECT_DOUBLE_EQ(json["goal"], 0.9);
  EXPECT_DOUBLE_EQ(json["peers"]["other"], 2.5);
}

TEST(BenchReportTest, PeersAreAnObjectEvenWhenThereAreNone) {
  const RowResult result{.name = "a", .unit = "s", .limit_is = "b", .peers = {}, .notes = {}};
  EXPECT_TRUE(nlohmann::json::parse(JsonLine(result))["peers"].is_object());
}

TEST(BenchReportTest, TheTableSaysWhichGoalWasMissed) {
  RowResult result{.name = "thing/2MiB",
                   .unit = "GB/s",
                   .limit_is = "what there is",
                   .limit = 10,
                   .ours = 8,
                   .ratio = 0.8,
                   .goal = 0.9,
                   .peers = {{"other", 2.5}},
                   .notes = {"mind the gap"}};
  EXPECT_THAT(TableRow(result), HasSubstr("MISSED"));
  EXPECT_THAT(TableRow(result), HasSubstr("other 2.50"));
  result.ratio = 0.95;
  EXPECT_THAT(TableRow(result), HasSubstr("met"));
  const RowResult results[] = {result, result};
  const std::string notes = TableNotes(results);
  EXPECT_THAT(notes, HasSubstr("mind the gap"));
  EXPECT_EQ(notes.find("what there is"), notes.rfind("what there is"));  // Once a family.
}

}  // namespace
}  // namespace aquifer
