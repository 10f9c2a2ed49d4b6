// aquifer demo: a node and two replicas of the reference engine; a long document, questions about
// it, a replica and the node killed and started again. Every answer is checked, and every recalled
// one compared with the same one recomputed. With --socket: a few blocks through a node that runs
// (demo_node.h). With --stay: everything stays up afterwards (./run).
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/crypto/random.h"
#include "base/text/size_text.h"
#include "cli/commands.h"
#include "cli/demo/demo_client.h"
#include "cli/demo/demo_node.h"
#include "cli/demo/demo_process.h"
#include "cli/progress.h"
#include "cli/temporary_directory.h"
#include "reference/model/directory_text.h"

namespace aquifer {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr size_t kLeastTokens = 1024;
constexpr size_t kMostTokens = 30'000;
constexpr auto kStartLimit = seconds(60);

struct DemoOptions {
  std::string directory;
  std::string dram = "256MiB";
  std::string nvme = "1GiB";
  std::string socket;
  std::string replica;  // A program; none: this one.
  size_t tokens = 16'384;
  bool as_json = false;
  bool stay = false;
  std::vector<std::string> node;  // Arguments of `aquifer serve`; with --stay.
};

// Set by Ctrl-C and the like; looked at between steps.
std::atomic<bool> interrupted = false;

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// The first signal ends the demonstration in order: its processes, its files. One that comes later
// ends it at once; its processes die with it.
void TakeSignals() {
  const sigset_t signals = EndingSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int signal = 0;
    while (::sigwait(&signals, &signal) != 0) {
    }
    interrupted = true;
    // A terminal and a script may both tell us of the same Ctrl-C.
    const timespec same{.tv_sec = 1, .tv_nsec = 0};
    while (::sigtimedwait(&signals, nullptr, &same) > 0) {
    }
    while (::sigwait(&signals, &signal) != 0) {
    }
    ::_exit(128 + signal);
  }).detach();
}

// One question, and what became of it.
struct Asked {
  std::string step{};
  std::string replica{};
  std::string question{};
  std::string answer{};
  size_t prompt_tokens = 0;
  size_t computed_tokens = 0;
  size_t recalled_tokens = 0;
  std::string tier{};
  double recomputed_ms = 0;
  double first_token_ms = 0;
  bool correct = false;
};

json JsonOf(const Asked& asked) {
  return {{"step", asked.step},
          {"replica", asked.replica},
          {"question", asked.question},
          {"answer", asked.answer},
          {"prompt_tokens", asked.prompt_tokens},
          {"prefilled_tokens", asked.computed_tokens},
          {"recalled_tokens", asked.recalled_tokens},
          {"tier", asked.tier},
          {"ttft_recomputed_ms", asked.recomputed_ms},
          {"ttft_ms", asked.first_token_ms},
          {"correct", asked.correct}};
}

class Demo {
 public:
  Demo(const DemoOptions& options, std::string directory)
      : options_(options),
        directory_(std::move(directory)),
        book_(options.tokens, SystemRandom()->Next64()),
        salt_(fmt::format("demo {:x}", SystemRandom()->Next64())) {}

  Status Run() {
    AQ_RETURN_IF_ERROR(Start());
    AQ_RETURN_IF_ERROR(Ask("first question", &a_, 1));
    AQ_RETURN_IF_ERROR(Ask("follow-up elsewhere", &b_, 2));
    AQ_RETURN_IF_ERROR(KillAndRestart());
    AQ_RETURN_IF_ERROR(Ask("after the crash", &a_, 8));
    Show();
    for (const Asked& asked : asked_) {
      if (!asked.correct) return Wrong();
    }
    return Status();
  }

  const std::string& socket() const { return socket_; }
  uint16_t port() const { return a_.port; }

  // A short question for a person to try, with its answer.
  std::string Example() const { return book_.ExamplePrompt(); }

  // In order: those who ask first. Nothing of the demonstration stays in the node.
  void End() {
    a_.process.reset();
    b_.process.reset();
    if (node_ == nullptr) return;
    if (!node_->silent() && !socket_.empty()) Forget();
    node_->End(SIGTERM);
    node_.reset();
  }

 private:
  struct Replica {
    std::string name;
    std::unique_ptr<DemoProcess> process;
    uint16_t port = 0;
  };

  // For people only: whoever asks for JSON gets nothing else.
  void Say(const std::string& text) {
    progress_.Clear();
    if (!options_.as_json) {
      fmt::print("{}\n", text);
      std::fflush(stdout);
    }
  }

  Status Start() {
    Say(fmt::format(
        "Aquifer demo: a directory of {} entries, {} tokens; a node and two replicas of "
        "the reference engine",
        book_.entries(), options_.tokens));
    progress_.Show("  starting the node");
    AQ_RETURN_IF_ERROR(StartNode());
    if (options_.stay) AQ_RETURN_IF_ERROR(DemonstrateNode(socket_));
    for (Replica* const replica : {&a_, &b_}) {
      progress_.Show("  starting replica " + replica->name);
      AQ_RETURN_IF_ERROR(StartReplica(replica));
    }
    return Status();
  }

  std::vector<std::string> NodeWords() const {
    std::vector<std::string> words = {"serve"};
    if (options_.stay) {
      words.insert(words.end(), options_.node.begin(), options_.node.end());
      return words;
    }
    for (const std::string& word :
         {std::string("--socket"), directory_ + "/node.sock", std::string("--dram"), options_.dram,
          std::string("--nvme"), directory_ + "/nvme:" + options_.nvme, std::string("--http"),
          std::string("off")}) {
      words.push_back(word);
    }
    return words;
  }

  Status StartNode() {
    AQ_ASSIGN_OR_RETURN(node_, DemoProcess::Start({}, NodeWords(), options_.stay));
    constexpr std::string_view kReady = " ready on ";
    const auto line = node_->AwaitLine(kReady, kStartLimit);
    if (!line) return Failed("the node", node_.get());
    socket_ = line->substr(line->find(kReady) + kReady.size());
    return Status();
  }

  Status StartReplica(Replica* replica) {
    AQ_ASSIGN_OR_RETURN(replica->process,
                        DemoProcess::Start(options_.replica,
                                           {"reference", "--port", fmt::format("{}", replica->port),
                                            "--socket", socket_, "--model", "constructed"},
                                           false));
    constexpr std::string_view kServing = "serving on http://127.0.0.1:";
    const auto line = replica->process->AwaitLine(kServing, kStartLimit);
    if (!line) return Failed("replica " + replica->name, replica->process.get());
    replica->port = static_cast<uint16_t>(std::stoul(line->substr(kServing.size())));
    return Status();
  }

  static Status Wrong() {
    return Status(Code::kCorrupt,
                  "an answer was wrong, or another one than when it was recomputed; "
                  "please report this");
  }

  static Status Failed(const std::string& what, DemoProcess* process) {
    if (interrupted) return Status(Code::kLate, "interrupted");
    const std::string last = process->LastLine();
    const int status = process->silent() ? process->Wait() : process->End(SIGKILL);
    return Status(status == kExitUsage ? Code::kInvalid : Code::kUnavailable,
                  fmt::format("{} does not start: {}", what, last));
  }

  json Body(bool recall) const {
    json body = {{"model", "constructed"}, {"temperature", 0},    {"messages", messages_},
                 {"max_tokens", 600},      {"cache_salt", salt_}, {"user", salt_}};
    body["aquifer"] = {{"recall", recall}, {"store", recall}};
    return body;
  }

  // The same prompt once more with everything recomputed, where something was recalled.
  Status Ask(const std::string& step, Replica* replica, size_t lookups) {
    const reference::DirectoryQuestion question = book_.Ask(lookups);
    messages_.push_back(
        {{"role", "user"},
         {"content", messages_.empty() ? book_.text() + question.text : question.text}});
    progress_.Show(fmt::format("  {}: asking replica {}", step, replica->name));
    AQ_ASSIGN_OR_RETURN(const DemoReply reply, AskReplica(replica->port, Body(true), &interrupted));
    Asked asked{
        .step = step, .replica = replica->name, .question = question.text, .answer = reply.text};
    asked.first_token_ms = asked.recomputed_ms = reply.first_token_ms;
    asked.correct = reply.text == question.answer;
    Account(reply, &asked);
    if (asked.recalled_tokens > 0) {
      progress_.Show(fmt::format("  {}: the same, recomputed", step));
      AQ_ASSIGN_OR_RETURN(const DemoReply again,
                          AskReplica(replica->port, Body(false), &interrupted));
      asked.recomputed_ms = again.first_token_ms;
      asked.correct = asked.correct && again.text == reply.text;
    }
    messages_.push_back({{"role", "assistant"}, {"content", reply.text}});
    Say(fmt::format("  {:<20} replica {} answered in {:.0f} ms", step, replica->name,
                    asked.first_token_ms));
    asked_.push_back(std::move(asked));
    return Status();
  }

  static void Account(const DemoReply& reply, Asked* asked) {
    asked->prompt_tokens = reply.usage.value("prompt_tokens", size_t{0});
    const json own = reply.usage.value("aquifer", json::object());
    asked->computed_tokens = own.value("computed_tokens", size_t{0});
    const auto dram = own.value("dram_tokens", size_t{0});
    const auto nvme = own.value("nvme_tokens", size_t{0});
    asked->recalled_tokens = dram + nvme;
    asked->tier = dram > 0 && nvme > 0 ? "dram+nvme"
                  : dram > 0           ? "dram"
                  : nvme > 0           ? "nvme"
                                       : "none";
  }

  // A crash takes the blocks that the node had not yet written; a demonstration waits for those.
  Status KillAndRestart() {
    progress_.Show("  waiting until the blocks are on NVMe");
    AQ_ASSIGN_OR_RETURN(const std::unique_ptr<Cache> client, Connect({.socket = socket_}, {}));
    FlushRequest flush;
    client->Flush(&flush);
    client->Wait(flush);
    AQ_RETURN_IF_ERROR(flush.status);
    a_.process->End(SIGKILL);
    node_->End(SIGKILL);
    Say("  killed               replica A and the node (kill -9)");
    progress_.Show("  starting them again");
    AQ_RETURN_IF_ERROR(StartNode());
    AQ_RETURN_IF_ERROR(StartReplica(&a_));
    Say("  restarted            both");
    return Status();
  }

  void Forget() {
    const auto client = Connect({.socket = socket_}, {});
    if (!client.ok()) return;
    EvictRequest evict;
    evict.session = salt_;
    (*client)->Evict(&evict);
    (*client)->Wait(evict, 10 * kDefaultTimeoutNanos);
  }

  void Show() {
    progress_.Clear();
    if (options_.as_json) {
      for (const Asked& asked : asked_) fmt::print("{}\n", JsonOf(asked).dump());
      return;
    }
    fmt::print("\n{:<20} {:>7} {:>9} {:>8} {:>5} {:>14} {:>11} {:>6}  {}\n", "asked", "replica",
               "prefilled", "recalled", "tier", "recomputed, ms", "TTFT, ms", "faster", "answer");
    for (const Asked& asked : asked_) {
      const std::string faster =
          asked.recalled_tokens > 0
              ? fmt::format("{:.0f}x", asked.recomputed_ms / asked.first_token_ms)
              : "";
      fmt::print("{:<20} {:>7} {:>9} {:>8} {:>5} {:>14.0f} {:>11.1f} {:>6}  {}\n", asked.step,
                 asked.replica, asked.computed_tokens, asked.recalled_tokens,
                 asked.tier == "none" ? "" : asked.tier, asked.recomputed_ms, asked.first_token_ms,
                 faster, asked.correct ? "correct" : "WRONG: " + asked.answer);
    }
  }

  const DemoOptions options_;
  const std::string directory_;
  reference::DirectoryText book_;
  // Nothing of an earlier run is recalled. Also the session's name, to delete it by.
  const std::string salt_;
  Progress progress_;
  std::string socket_;
  std::unique_ptr<DemoProcess> node_;
  Replica a_{.name = "A", .process = nullptr};
  Replica b_{.name = "B", .process = nullptr};
  json messages_ = json::array();
  std::vector<Asked> asked_;
};

int Refuse(const Status& status) {
  fmt::print(stderr, "aquifer demo: {}\n", status.message());
  return status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
}

Status CheckOptions(const DemoOptions& options) {
  if (options.tokens < kLeastTokens || options.tokens > kMostTokens) {
    return Status(Code::kInvalid, fmt::format("--document is {}; it may be {} to {} tokens",
                                              options.tokens, kLeastTokens, kMostTokens));
  }
  AQ_RETURN_IF_ERROR(ParseSize(options.dram).status());
  AQ_RETURN_IF_ERROR(ParseSize(options.nvme).status());
  if (!options.stay && !options.node.empty()) {
    return Status(Code::kInvalid, "arguments for the node are only taken with --stay");
  }
  return Status();
}

void SayWhatToTry(const Demo& demo) {
  const std::string& socket = demo.socket();
  std::error_code ignored;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  fmt::print(
      "\nEverything is up. Ctrl-C ends it. What to try meanwhile, in another terminal:\n"
      "  curl -s http://127.0.0.1:{}/v1/chat/completions -d '{{\"model\": \"constructed\",\n"
      "    \"temperature\": 0, \"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}]}}'\n"
      "      ask replica A; it speaks OpenAI's API, so any client of that will do\n"
      "  {} ctl status --socket {}\n"
      "      what the node has and does; ctl --help for the rest\n"
      "  {} top --socket {}\n"
      "      the same, live\n"
      "  {} demo --socket {}\n"
      "      a few blocks through the node\n"
      "  {} bench node --quick\n"
      "      what shared memory costs, measured on a node of its own\n"
      "  {} doctor\n"
      "      what this host can do, and what to change\n"
      "An engine connects with Connect({{.socket = \"{}\"}}, {{}}): include/aquifer/cache.h\n",
      demo.port(), demo.Example(), program, socket, program, socket, program, socket, program,
      program, socket);
  std::fflush(stdout);
}

int RunDemo(const DemoOptions& options) {
  TakeSignals();
  if (const Status status = CheckOptions(options); !status.ok()) return Refuse(status);
  const auto directory = TemporaryDirectory::New(options.directory, "aquifer-demo-");
  if (!directory.ok()) return Refuse(directory.status());
  const auto began = std::chrono::steady_clock::now();
  Demo demo(options, (*directory)->path());
  const Status status = demo.Run();
  if (!status.ok() && !interrupted) {
    const int exit_status = Refuse(status);
    demo.End();
    return exit_status;
  }
  if (!interrupted && !options.as_json) {
    const auto taken = std::chrono::steady_clock::now() - began;
    fmt::print("\nDone in {:.1f} s.\n", std::chrono::duration<double>(taken).count());
  }
  if (options.stay && !interrupted) {
    SayWhatToTry(demo);
    while (!interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  demo.End();
  return interrupted && !options.stay ? kExitFailed : kExitOk;
}

int RunNodeDemo(const std::string& socket) {
  fmt::print("A few blocks through the node on {}\n", socket);
  const Status status = DemonstrateNode(socket);
  return status.ok() ? kExitOk : Refuse(status);
}

constexpr const char* kFooter = R"(
Sizes are written like 512MiB or 2GiB. All files are removed at the end.

Examples:
  aquifer demo
  aquifer demo --json --document 4096
  aquifer demo --stay -- --dram 2GiB               and leave it up; what follows -- is for aquifer serve
  aquifer demo --socket /run/aquifer/node.sock     a few blocks through a node that runs)";

}  // namespace

void AddDemoCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command = app->add_subcommand(
      "demo", "Ask two engines about a long document, kill one and the node, and ask again");
  const auto options = std::make_shared<DemoOptions>();  // The callback's, and CLI11's targets.
  command
      ->add_option("--directory", options->directory,
                   "Where to make a temporary directory (default: /var/tmp)")
      ->type_name("DIR");
  command->add_option("--document", options->tokens, "Its length in tokens (default: 16384)")
      ->type_name("TOKENS");
  command->add_option("--dram", options->dram, "The node's DRAM (default: 256MiB)");
  command->add_option("--nvme", options->nvme, "The node's disk space (default: 1GiB)");
  command
      ->add_option("--replica", options->replica,
                   "Another engine's program, started and asked as `aquifer reference` is")
      ->type_name("PROGRAM");
  command->add_flag("--json", options->as_json, "One object a question, and nothing else");
  command->add_flag("--stay", options->stay, "Leave everything up until interrupted");
  command
      ->add_option("--socket", options->socket,
                   "Instead: store and recall a few blocks through the node on this socket")
      ->type_name("PATH");
  command->add_option("node", options->node, "With --stay: arguments for aquifer serve");
  command->footer(kFooter);
  command->callback([options, exit_status] {
    *exit_status = options->socket.empty() ? RunDemo(*options) : RunNodeDemo(options->socket);
  });
}

}  // namespace aquifer
