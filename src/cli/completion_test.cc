#include "cli/completion.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace aquifer {
namespace {

std::string Answer(const std::vector<std::string>& words) {
  CLI::App app("A tool.", "tool");
  std::string text;
  bool flag = false;
  CLI::App* const make = app.add_subcommand("make", "Makes it");
  make->add_option("KIND", text, "Which kind")->check(CLI::IsMember({"small", "large"}));
  make->add_option("--into", text, "Where")->type_name("DIR");
  make->add_option("--from", text, "From what\nand more")->type_name("FILE");
  make->add_option("--count", text, "How many")->type_name("N");
  make->add_option("--colour", text, "Of it")->check(CLI::IsMember({"red", "green"}));
  make->add_flag("--secret", flag, "Hidden")->group("");
  CLI::App* const list = app.add_subcommand("list", "Shows them");
  list->add_subcommand("all", "All of it")->add_flag("--deep", flag, "Deeply");
  return CompletionAnswer(app, words);
}

TEST(CompletionTest, CommandsAndOptionsAreOfferedWithTheirHelp) {
  EXPECT_EQ(Answer({""}),
            "words\nmake\tMakes it\nlist\tShows them\n--help\tPrint this help message and exit\n");
  EXPECT_EQ(Answer({}), Answer({""}));
  EXPECT_EQ(Answer({"m"}), "words\nmake\tMakes it\n");
  EXPECT_EQ(Answer({"list", "all", "--d"}), "words\n--deep\tDeeply\n");
  EXPECT_EQ(Answer({"make", "--f"}), "words\n--from\tFrom what\n");
  EXPECT_EQ(Answer({"make", "--s"}), "words\n");
}

TEST(CompletionTest, ValuesAreOfferedWhereTheyAreKnown) {
  EXPECT_EQ(Answer({"make", "s"}), "words\nsmall\tWhich kind\n");
  EXPECT_EQ(Answer({"make", "--colour", ""}), "words\nred\tOf it\ngreen\tOf it\n");
  EXPECT_EQ(Answer({"make", "--count", ""}), "words\n");
  EXPECT_EQ(Answer({"make", "--into", "x"}), "directories\n");
  EXPECT_EQ(Answer({"make", "--from", ""}), "files\n");
}

}  // namespace
}  // namespace aquifer
