// Runs `aquifer demo` over replicas that lie: it reports them in words, in JSON and by its exit
// status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "testing/child_process.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::Each;
using testing::HasSubstr;

struct Outcome {
  std::vector<bool> correct;  // One for each question.
  std::string said;           // The lines that are no JSON.
  int status = 0;
};

Outcome DemoOverReplicasThatLie(const char* when) {
  ::setenv("AQUIFER_LIE", when, 1);
  const ScratchDirectory scratch;
  const auto demo = ChildProcess::StartCommand(
      {AQUIFER_PROGRAM_PATH, "demo", "--json", "--document", "1024", "--dram", "128MiB",
       "--directory", scratch.path(), "--replica", AQUIFER_LYING_REPLICA});
  Outcome outcome;
  while (const std::optional<std::string> line = demo->ReadLine(seconds(60))) {
    const json question = json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (question.is_object()) {
      outcome.correct.push_back(question.at("correct"));
    } else {
      outcome.said += *line + "\n";
    }
  }
  outcome.status = demo->Wait();
  return outcome;
}

TEST(DemoTest, RightAnswersAreASuccess) {
  const Outcome outcome = DemoOverReplicasThatLie("never");
  EXPECT_EQ(outcome.status, 0) << outcome.said;
  EXPECT_EQ(outcome.correct.size(), 3u);
  EXPECT_THAT(outcome.correct, Each(true));
}

TEST(DemoTest, AWrongAnswerIsAFailure) {
  const Outcome outcome = DemoOverReplicasThatLie("always");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.correct.size(), 3u);
  EXPECT_THAT(outcome.correct, Each(false));
  EXPECT_THAT(outcome.said, HasSubstr("an answer was wrong"));
}

TEST(DemoTest, AnotherAnswerThanWhenRecomputedIsAFailure) {
  const Outcome outcome = DemoOverReplicasThatLie("recomputed");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.correct, Each(false));
  EXPECT_THAT(outcome.said, HasSubstr("an answer was wrong"));
}

}  // namespace
}  // namespace aquifer
