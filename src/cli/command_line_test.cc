// Runs the program, as a shell or a script does.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace aquifer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct Outcome {
  int status = -1;  // The exit status, or minus the signal.
  std::string out;
  std::string err;
};

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CommandLineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/command-line-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  pid_t Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), AQUIFER_PROGRAM_PATH);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, 1, (directory_ + "/out").c_str(), flags, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, (directory_ + "/err").c_str(), flags, 0600);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }

  Outcome Finish(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
            .out = TextOf(directory_ + "/out"),
            .err = TextOf(directory_ + "/err")};
  }

  Outcome Run(const std::vector<std::string>& arguments) { return Finish(Start(arguments)); }

  std::vector<std::string> Leftovers() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("aquifer-")) names.push_back(name);
    }
    return names;
  }

  std::string directory_;
};

TEST_F(CommandLineTest, HelpShowsTheCommandsAndExamples) {
  const Outcome outcome = Run({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("doctor"), HasSubstr("bench"), HasSubstr("Examples:")));
  EXPECT_THAT(Run({"bench", "--help"}).out, AllOf(HasSubstr("--quick"), HasSubstr("Examples:")));
#ifdef AQUIFER_HAS_NODE
  EXPECT_THAT(Run({"demo", "--help"}).out, AllOf(HasSubstr("--dram"), HasSubstr("Examples:")));
  EXPECT_THAT(Run({"serve", "--help"}).out, HasSubstr("aquifer serve --dram"));
  EXPECT_THAT(Run({"reference", "--help"}).out, AllOf(HasSubstr("--model"), HasSubstr("curl")));
#endif
}

TEST_F(CommandLineTest, TheVersionIsOneLine) {
  const Outcome outcome = Run({"--version"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith("aquifer "));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1);
}

TEST_F(CommandLineTest, AnUnknownCommandIsRefusedWithASuggestion) {
  const Outcome outcome = Run({"bnech"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("'bnech'"), HasSubstr("Did you mean 'bench'?"),
                                 HasSubstr("Next step:")));
  EXPECT_EQ(Run({}).status, 2);
}

TEST_F(CommandLineTest, AnUnknownOptionIsRefusedWithASuggestion) {
  const Outcome outcome = Run({"bench", "--jsno"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("'--jsno'"), HasSubstr("Did you mean '--json'?"),
                                 HasSubstr("aquifer bench --help")));
}

TEST_F(CommandLineTest, TheListNamesEveryRowOnce) {
  const Outcome outcome = Run({"bench", "--list"});
  EXPECT_EQ(outcome.status, 0);
  std::vector<std::string> names;
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);  // The head.
  while (std::getline(lines, line)) names.push_back(line.substr(0, line.find(' ')));
  for (const char* family :
       {"dram.fetch/", "dram.store/", "nvme.read/", "nvme.write/", "checksum/"}) {
    for (const char* size : {"64KiB", "1MiB", "2MiB", "8MiB"}) {
      EXPECT_THAT(names, testing::Contains(std::string(family) + size));
    }
  }
  for (const char* name :
       {"nvme.recover", "keys.derive", "codec.lossless", "codec.lossless.decode", "codec.seal",
        "codec.seal.open", "index.match", "index.match_65536", "index.bytes", "policy.blocks",
        "policy.bytes", "posix.read/2MiB", "posix.write/8MiB", "posix.write_synced/2MiB"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
#ifdef AQUIFER_HAS_NODE
  for (const char* name :
       {"node.fetch.copy/64KiB", "node.fetch.lease/8MiB", "node.first_slot", "node.first_slot_idle",
        "node.match", "node.messages", "node.syscalls"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
#endif
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST_F(CommandLineTest, TheListAsJsonIsOneObjectALine) {
  const Outcome outcome = Run({"bench", "--list", "--json", "dram.fetch"});
  EXPECT_EQ(outcome.status, 0);
  std::istringstream lines(outcome.out);
  std::string line;
  size_t rows = 0;
  for (; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(row.is_object()) << line;
    EXPECT_THAT(row.value("name", ""), testing::StartsWith("dram.fetch/"));
    EXPECT_EQ(row.value("unit", ""), "GB/s");
    EXPECT_GT(row.value("goal", 0.0), 0);
    EXPECT_FALSE(row.value("limit_is", "").empty());
  }
  EXPECT_EQ(rows, 4u);
}

TEST_F(CommandLineTest, JsonIsOneObjectALineAndNothingElse) {
  const Outcome outcome =
      Run({"bench", "keys", "index.bytes", "--quick", "--json", "--directory", directory_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  std::vector<std::string> names;
  std::istringstream lines(outcome.out);
  std::string line;
  while (std::getline(lines, line)) {
    const nlohmann::json row = nlohmann::json::parse(line);
    EXPECT_EQ(row.size(), 8u);
    names.push_back(row.at("name"));
    EXPECT_TRUE(row.at("unit").is_string());
    EXPECT_TRUE(row.at("limit_is").is_string());
    EXPECT_TRUE(row.at("peers").is_object());
    EXPECT_GT(row.at("limit").get<double>(), 0);
    EXPECT_GT(row.at("ours").get<double>(), 0);
    EXPECT_GT(row.at("ratio").get<double>(), 0);
    EXPECT_GT(row.at("goal").get<double>(), 0);
  }
  EXPECT_THAT(names, ElementsAre("keys.derive", "index.bytes"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

#ifdef AQUIFER_HAS_NODE
TEST_F(CommandLineTest, ARowOfTheNodeStartsOneAndEndsIt) {
  const Outcome outcome =
      Run({"bench", "node.match", "--quick", "--json", "--directory", directory_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  const nlohmann::json row = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(row.size(), 8u);
  EXPECT_EQ(row.at("name"), "node.match");
  EXPECT_EQ(row.at("unit"), "us");
  EXPECT_EQ(row.at("limit"), 300);
  EXPECT_THAT(row.at("limit_is").get<std::string>(), HasSubstr("design"));
  EXPECT_GT(row.at("ours").get<double>(), 0);
  EXPECT_GT(row.at("ratio").get<double>(), 0);
  EXPECT_THAT(row.at("peers"), IsEmpty());
  EXPECT_EQ(row.at("goal"), 1);
  EXPECT_THAT(Leftovers(), IsEmpty());
}
#endif

TEST_F(CommandLineTest, TheTableDescribesTheMachine) {
  const Outcome outcome = Run({"bench", "index.bytes", "--directory", directory_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("machine"), HasSubstr("kernel"), HasSubstr("disk"),
                                 HasSubstr("index.bytes"), HasSubstr("150")));
}

TEST_F(CommandLineTest, ANameThatMatchesNothingIsAnErrorThatListsWhatThereIs) {
  const Outcome outcome = Run({"bench", "keys", "nothing.like.it", "--quick", "--json"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.out, IsEmpty());  // Nothing is measured for the name that does match.
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("'nothing.like.it'"), HasSubstr("keys.derive"),
                                 HasSubstr("dram.fetch/2MiB")));
}

TEST_F(CommandLineTest, TheDoctorJudgesThisHost) {
  const Outcome outcome = Run({"doctor", "--directory", directory_});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("memory speed"), HasSubstr("io_uring"),
                                 HasSubstr("disk speed"), HasSubstr(directory_)));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(CommandLineTest, TheDoctorsJsonIsOneObjectWithAListOfChecks) {
  const Outcome outcome = Run({"doctor", "--json", "--directory", directory_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(report.at("usable").get<bool>());
  std::vector<std::string> names;
  for (const nlohmann::json& check : report.at("checks")) {
    EXPECT_EQ(check.size(), 4u);
    names.push_back(check.at("name"));
    const std::string verdict = check.at("verdict");
    EXPECT_THAT((std::vector<std::string>{"ok", "warn", "bad"}), testing::Contains(verdict));
    EXPECT_FALSE(check.at("value").get<std::string>().empty());
    EXPECT_EQ(check.at("advice").get<std::string>().empty(), verdict == "ok");
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"cpu", "memory", "huge pages", "io_uring", "memlock",
                                            "open files", "gpu", "disk", "disk speed"}));
}

TEST_F(CommandLineTest, ShellsAreToldWhatCanComeNext) {
  const auto offered = [this](std::vector<std::string> words) {
    words.insert(words.begin(), "--complete");
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(offered({""}), AllOf(StartsWith("words\n"), HasSubstr("\nbench\tMeasure this"),
                                   HasSubstr("\ndoctor\t"), HasSubstr("\n--version\t")));
  EXPECT_EQ(offered({"benc"}).find('\t'), sizeof("words\nbench") - 1);
  EXPECT_THAT(offered({"sim", "trace", "--leave"}), HasSubstr("--leave-out-faults\t"));
  // The program aquifer-bench answers for its options.
  EXPECT_THAT(offered({"bench", ""}),
              AllOf(HasSubstr("\ndram\t"), HasSubstr("\nchecksum\t"), HasSubstr("\n--quick\t")));
  EXPECT_EQ(offered({"bench", "--directory", ""}), "directories\n");
  EXPECT_THAT(Run({"bench", "--help"}).out, HasSubstr(",nvme,"));
#ifdef AQUIFER_HAS_NODE
  EXPECT_THAT(offered({"ctl", ""}), AllOf(HasSubstr("prestage\t"), HasSubstr("--token-file\t")));
#endif
}

TEST_F(CommandLineTest, EveryShellHasAScript) {
  EXPECT_THAT(Run({"completion", "zsh"}).out, StartsWith("#compdef aquifer\n"));
  EXPECT_THAT(Run({"completion", "fish"}).out, HasSubstr("complete -c aquifer"));
  const Outcome outcome = Run({"completion", "tcsh"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("bash,zsh,fish"));
  EXPECT_EQ(Run({"completion"}).status, 2);
}

// Bash itself, with our script: it is everywhere.
TEST_F(CommandLineTest, BashCompletesTheLine) {
  ASSERT_TRUE(std::filesystem::create_directory(directory_ + "/within"));
  std::ofstream(directory_ + "/with space") << "";
  const auto offered = [this](const std::string& words) {
    std::ofstream(directory_ + "/ask.bash")
        << Run({"completion", "bash"}).out << "COMP_WORDS=(" AQUIFER_PROGRAM_PATH " " << words
        << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_aquifer\nIFS=,\necho -n "
           "\"${COMPREPLY[*]}\"\n";
    const std::string ask = "cd '" + directory_ + "' && bash ask.bash > answer 2>&1";
    EXPECT_EQ(std::system(ask.c_str()), 0);
    return TextOf(directory_ + "/answer");
  };
  EXPECT_EQ(offered("do"), "doctor");
  EXPECT_EQ(offered("bench --q"), "--quick");
  EXPECT_EQ(offered("doctor --json --directory wi"), "within");
  EXPECT_EQ(offered("bench nothing-like-it"), "");
#ifdef AQUIFER_HAS_NODE
  EXPECT_THAT(offered("plan --html wi"), HasSubstr("with space"));
#endif
}

TEST_F(CommandLineTest, WithoutItsProgramTheBenchmarkSaysWhereItBelongs) {
  const std::string alone = directory_ + "/aquifer";
  std::filesystem::copy_file(AQUIFER_PROGRAM_PATH, alone);
  const std::string ask = "PATH=/usr/bin '" + alone + "' bench --list > '" + directory_ +
                          "/out' 2> '" + directory_ + "/err'";
  EXPECT_EQ(WEXITSTATUS(std::system(ask.c_str())), 1);
  EXPECT_THAT(TextOf(directory_ + "/err"),
              AllOf(HasSubstr("aquifer-bench is neither beside"), HasSubstr("Next step:")));
}

TEST_F(CommandLineTest, ADirectoryThatIsNotThereIsAnErrorWithTheNextStep) {
  std::vector<std::string> commands = {"bench", "doctor"};
#ifdef AQUIFER_HAS_NODE
  commands.emplace_back("demo");
#endif
  for (const std::string& command : commands) {
    const Outcome outcome = Run({command, "--directory", directory_ + "/nowhere"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("nowhere"), HasSubstr("--directory")));
  }
}

#ifdef AQUIFER_HAS_NODE
TEST_F(CommandLineTest, TheDemoRefusesSizesThatMakeNoSense) {
  Outcome outcome = Run({"demo", "--dram", "lots", "--directory", directory_});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'lots' is not a size"));
  outcome = Run({"demo", "--document", "7", "--directory", directory_});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--document is 7"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

// Its fields are a contract: others read them.
TEST_F(CommandLineTest, TheDemoAnswersRightBeforeAndAfterTheCrashAndSaysSoInJson) {
  const Outcome outcome =
      Run({"demo", "--json", "--document", "2048", "--dram", "128MiB", "--directory", directory_});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  std::vector<nlohmann::json> asked;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) asked.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(asked.size(), 3u) << outcome.out;
  for (const nlohmann::json& question : asked) {
    EXPECT_EQ(question.at("correct"), true) << question;
    EXPECT_GE(question.at("prompt_tokens"), 2048);
    EXPECT_GT(question.at("ttft_ms"), 0);
    EXPECT_GT(question.at("ttft_recomputed_ms"), 0);
    EXPECT_TRUE(question.at("step").is_string());
  }
  EXPECT_EQ(asked[0].at("replica"), "A");
  EXPECT_EQ(asked[0].at("recalled_tokens"), 0);
  EXPECT_EQ(asked[0].at("tier"), "none");
  EXPECT_EQ(asked[1].at("replica"), "B");
  EXPECT_EQ(asked[2].at("replica"), "A");
  // The cache must have had a part in it. On a slow machine one of them may have been computed.
  EXPECT_GT(
      asked[1].at("recalled_tokens").get<size_t>() + asked[2].at("recalled_tokens").get<size_t>(),
      0u);
  EXPECT_THAT(Leftovers(), IsEmpty());
}
#endif

TEST_F(CommandLineTest, SimulatedSeedsAreRunAndSummedUp) {
  const Outcome outcome = Run({"sim", "fuzz", "--seeds", "20"});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out,
              AllOf(StartsWith("20 seeds in "), HasSubstr("block operations ("),
                    HasSubstr("kinds of faults: "), HasSubstr("no promise was broken")));
}

TEST_F(CommandLineTest, ASimulatedSeedShowsTheSameEveryTime) {
  const Outcome outcome = Run({"sim", "trace", "--seed", "3"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("the node starts, life 1"), HasSubstr("\ndigest ")));
  EXPECT_EQ(Run({"sim", "trace", "--seed", "3"}).out, outcome.out);
  EXPECT_NE(Run({"sim", "trace", "--seed", "3", "--steps", "200"}).out, outcome.out);
}

TEST_F(CommandLineTest, TheSimulatorSaysWhatIsWrongWithItsArguments) {
  Outcome outcome = Run({"sim", "trace", "--seed", "3", "--leave-out-engines", "77"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no engine 77"));
  outcome = Run({"sim", "fuzz", "--sed", "3"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("Did you mean '--seed'?"),
                                 HasSubstr("Next step: aquifer sim fuzz --help")));
  outcome = Run({"sim", "trace"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--seed is required"));
  for (const char* count : {"0", "-3", "many", "1.5", "18446744073709551616"}) {
    outcome = Run({"sim", "fuzz", "--seeds", count});
    EXPECT_EQ(outcome.status, 2) << count;
    EXPECT_THAT(outcome.err, HasSubstr("give a whole number from 1 to")) << count;
  }
  outcome = Run({"sim", "fuzz", "--minutes", "0"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give a number above 0"));
}

TEST_F(CommandLineTest, PoliciesAreJudgedOnATrace) {
  const std::string trace = directory_ + "/trace.jsonl";
  std::ofstream file(trace);
  for (int i = 0; i < 40; ++i) {
    file << R"({"timestamp": )" << i * 1000 << R"(, "input_length": 32, "output_length": 3, )"
         << R"("hash_ids": [7, )" << 100 + i % 3 << "]}\n";
  }
  file.close();
  Outcome outcome = Run(
      {"sim", "replay", trace, "--policy", "lru,learned,belady", "--capacity", "2,100%", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::stringstream lines(outcome.out);
  std::string line;
  size_t count = 0;
  for (; std::getline(lines, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["trace"], trace);
    EXPECT_EQ(json["requests"], 40);
    EXPECT_EQ(json["blocks"], 80);
    EXPECT_FALSE(json.contains("writes_per_insert"));
    // All four fit; or two, of which one is in every request.
    const double most = json["capacity_blocks"] == 4 ? 76 / 80.0 : 75 / 80.0;
    EXPECT_LE(json["hit_rate"], most) << line;
    EXPECT_GE(json["hit_rate"], json["capacity_blocks"] == 4 ? most : 0.0) << line;
  }
  EXPECT_EQ(count, 6u);
  outcome = Run({"sim", "replay", trace, "--capacity", "1", "--nvme", "50%"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("writes/stored"));
  outcome = Run({"sim", "replay", trace, "--policy", "lru,arc", "--nvme", "50%"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("no second tier"));
  outcome = Run({"sim", "replay", trace, "--capacity", "-1%"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give a share such as 5%"));
  std::ofstream(trace, std::ios::app) << R"({"timestamp": -5})" << "\n";
  outcome = Run({"sim", "replay", trace});
  EXPECT_EQ(outcome.status, 1);  // The command line was right.
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("trace.jsonl:41: "), HasSubstr("Next step")));
}

TEST_F(CommandLineTest, SeedsEndWithTheLastOneThereIs) {
  Outcome outcome = Run({"sim", "fuzz", "--seed", "18446744073709551614", "--seeds", "3"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there are no 3 seeds from 18446744073709551614 on"));
  outcome = Run({"sim", "fuzz", "--seed", "18446744073709551614", "--minutes", "10"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("2 seeds in "));
}

TEST_F(CommandLineTest, AnInterruptedFuzzEndsWithASummary) {
  const pid_t pid = Start({"sim", "fuzz", "--minutes", "10"});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(kill(pid, SIGINT), 0);
  const Outcome outcome = Finish(pid);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("no promise was broken"));
}

TEST_F(CommandLineTest, AnInterruptedRunLeavesNothingBehind) {
  const pid_t pid = Start({"bench", "nvme.read/2MiB", "--directory", directory_});
  while (Leftovers().empty()) std::this_thread::yield();
  EXPECT_EQ(kill(pid, SIGINT), 0);
  EXPECT_EQ(Finish(pid).status, -SIGINT);
  EXPECT_THAT(Leftovers(), IsEmpty());
}

}  // namespace
}  // namespace aquifer
