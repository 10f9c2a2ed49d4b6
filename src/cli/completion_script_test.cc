// Runs the scripts in the shells that are installed; bash always is.
#include "cli/completion_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::HasSubstr;

std::vector<CompletedCommand> Commands() {
  return {
      {.path = "tool",
       .words = {{"make", "It's made: now"}, {"list", "Shows \"all\""}},
       .options = {{"--help", "Help", ValueKind::kNone}}},
      {.path = "tool make",
       .words = {{"small", "A small one"}},
       .options = {{"--into", "Where", ValueKind::kDirectory},
                   {"--from", "What", ValueKind::kFile},
                   {"--count", "How many", ValueKind::kText}}},
      {.path = "tool list", .words = {{"all", "All"}}, .options = {}},
      {.path = "tool list all", .words = {}, .options = {{"--deep", "Deep", ValueKind::kNone}}},
  };
}

std::string OutputOf(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      popen((command + " 2>&1").c_str(), "r"), &pclose);
  std::string text;
  char piece[4096];
  while (const size_t count = std::fread(piece, 1, sizeof(piece), pipe.get())) {
    text.append(piece, count);
  }
  return text;
}

bool Installed(const std::string& shell) { return !OutputOf("command -v " + shell).empty(); }

class CompletionScriptTest : public testing::Test {
 protected:
  std::string Written(const std::string& name, const std::string& text) {
    std::ofstream(scratch_.Sub(name)) << text;
    return scratch_.Sub(name);
  }

  // What bash offers for the last of these words.
  std::string Offered(const std::string& words) {
    const std::string ask = BashScript(Commands()) + "COMP_WORDS=(" + words +
                            ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_tool\n"
                            "echo -n \"${COMPREPLY[*]}\"\n";
    return OutputOf("cd '" + scratch_.path() + "' && bash '" + Written("ask.bash", ask) + "'");
  }

  ScratchDirectory scratch_;
};

TEST_F(CompletionScriptTest, BashOffersWhatCanComeNext) {
  EXPECT_EQ(Offered("tool ''"), "make list --help");
  EXPECT_EQ(Offered("tool m"), "make");
  EXPECT_EQ(Offered("tool make --"), "--into --from --count");
  EXPECT_EQ(Offered("tool make s"), "small");
  EXPECT_EQ(Offered("tool list all ''"), "--deep");
  EXPECT_EQ(Offered("tool --help l"), "list");
  EXPECT_EQ(Offered("tool make --count ''"), "");  // A number: nobody knows which.
}

TEST_F(CompletionScriptTest, BashOffersFilesAndDirectoriesWhereTheyAreDue) {
  Written("with space.txt", "");
  ASSERT_EQ(mkdir(scratch_.Sub("within").c_str(), 0700), 0);
  EXPECT_EQ(Offered("tool make --into wi"), "within");
  EXPECT_THAT(Offered("tool make --from wi"), HasSubstr("with space.txt"));
}

TEST_F(CompletionScriptTest, ZshTakesTheScript) {
  const std::string script = ZshScript(Commands());
  EXPECT_THAT(script, HasSubstr("'make:It'\\''s made: now'"));
  if (!Installed("zsh")) return;
  EXPECT_EQ(OutputOf("zsh -n '" + Written("_tool", script) + "'"), "");
}

TEST_F(CompletionScriptTest, FishOffersWhatCanComeNext) {
  const std::string script = FishScript(Commands());
  EXPECT_THAT(script, HasSubstr("-d 'It\\'s made: now'"));
  if (!Installed("fish")) return;
  const std::string source =
      "fish --no-config -c \"source '" + Written("tool.fish", script) + "'; ";
  EXPECT_EQ(OutputOf(source + "complete -C 'tool m'\""), "make\tIt's made: now\n");
  EXPECT_THAT(OutputOf(source + "complete -C 'tool make --'\""), HasSubstr("--count\tHow many"));
  EXPECT_THAT(OutputOf(source + "complete -C 'tool list all --d'\""), HasSubstr("--deep"));
}

}  // namespace
}  // namespace aquifer
