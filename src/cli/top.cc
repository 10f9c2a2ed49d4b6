// aquifer top: what a node does, live in a terminal.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/node_client.h"
#include "cli/terminal.h"
#include "cli/top_screen.h"

namespace aquifer {
namespace {

constexpr int kRefreshMs = 1000;
constexpr const char* kFooter = R"(
The screen is drawn anew every second; q or Ctrl-C ends it. Where there is no terminal, and with
--once, it is printed once, with averages since the node started.

Examples:
  aquifer top
  aquifer top --once | head -8
  aquifer top --http 127.0.0.1:9470)";

struct TopOptions {
  NodeClientOptions node;
  bool once = false;
};

Result<TopSample> Look(NodeClient* node) {
  TopSample sample;
  AQ_ASSIGN_OR_RETURN(sample.status, node->Get("/v1/status"));
  AQ_ASSIGN_OR_RETURN(sample.tenants, AllTenants(node));
  return sample;
}

// A node that goes away is waited for: it may be restarting.
Status Watch(NodeClient* node, TopSample first) {
  Terminal terminal;
  std::optional<TopSample> before;
  std::optional<TopSample> now = std::move(first);
  Status status;
  do {
    const std::string screen =
        now ? TopScreen(before ? &*before : nullptr, *now, terminal.size())
            : fmt::format("{}\n\nIt is asked again every second; q ends this.\n", status.message());
    terminal.Draw(screen);
    if (!terminal.WaitOrEnd(kRefreshMs)) return Status();
    before = std::move(now);
    now.reset();
    Result<TopSample> look = Look(node);
    status = look.status();
    if (look.ok()) now = std::move(*look);
  } while (true);
}

Status RunTop(const TopOptions& options) {
  AQ_ASSIGN_OR_RETURN(NodeClient node, NodeClient::New(options.node));
  AQ_ASSIGN_OR_RETURN(TopSample sample, Look(&node));
  if (!options.once && Terminal::Is()) return Watch(&node, std::move(sample));
  fmt::print("{}", TopScreen(nullptr, sample, {.columns = SIZE_MAX, .rows = SIZE_MAX}));
  return Status();
}

}  // namespace

void AddTopCommand(CLI::App* app, int* exit_status) {
  const auto options = std::make_shared<TopOptions>();  // The callback's, and CLI11's target.
  CLI::App* const top = app->add_subcommand("top", "Watch a node, live in this terminal");
  AddNodeOptions(top, &options->node);
  top->add_flag("--once", options->once, "Print one screen and end");
  top->footer(kFooter);
  top->callback([options, exit_status] {
    Status status;
    try {
      status = RunTop(*options);
    } catch (const nlohmann::json::exception&) {
      status = Status(Code::kUnavailable,
                      "the node's answer is not understood; is it of another version than this "
                      "program?");
    }
    if (status.ok()) return;
    fmt::print(stderr, "aquifer top: {}\n", status.message());
    *exit_status = status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
  });
}

}  // namespace aquifer
