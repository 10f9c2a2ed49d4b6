// `aquifer serve`: a node, with its configuration, log and signals.
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/detached_task.h"
#include "cli/commands.h"
#include "net/http/http_server.h"
#include "node/config/node_config.h"
#include "node/config/node_log.h"
#include "node/config/node_plan.h"
#include "node/config/secret_environment.h"
#include "node/process.h"

namespace aquifer {
namespace {

constexpr auto kLeaveWithin = std::chrono::seconds(2);  // Once it has drained.

constexpr const char* kFooter = R"(
Without options it uses what this host has: a quarter of the available memory and a directory for NVMe.
It says first what it will use, and then serves until SIGTERM, which drains it. On SIGHUP it reads
its file again.

Examples:
  aquifer serve
  aquifer serve --dram 64GiB --nvme /mnt/nvme0:2TB --nvme /mnt/nvme1:2TB
  aquifer serve --config /etc/aquifer/aquifer.toml
  aquifer serve --record /var/tmp/requests.jsonl              what aquifer plan reads
  aquifer serve --socket /tmp/try.sock --http off --nvme off  beside the host's own node)";

NodeLog* TheLog() {
  static NodeLog log({.descriptor = STDERR_FILENO}, SystemClock());
  return &log;
}

// Every connection takes seven descriptors, and each extent of the pool one.
void RaiseOpenFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    TheLog()->Write("warning: the limit on open files cannot be raised");
  }
}

// Those that this program waits for; every thread started later has them blocked too.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// A drive that hangs would keep the process for ever. What it still writes is as after a crash,
// which every start can cope with.
void LeaveEvenIfADriveHangs() {
  [[maybe_unused]] const bool started = RunDetached("aq-leave", [] {
    std::this_thread::sleep_for(kLeaveWithin);
    // The log may be gone by now, and whoever reads it may not be reading.
    const std::string line = LogLine(TheLog()->format(), SystemClock()->UnixSeconds(), std::nullopt,
                                     "warning: a drive does not answer; leaving without it") +
                             "\n";
    pollfd reader{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&reader, 1, 0) == 1) {
      [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, line.data(), line.size());
    }
    ::_exit(EXIT_SUCCESS);
  });
}

// The file knows more than this release, or this build, does.
Status CheckIsThere(const NodeConfig& config) {
  if (config.http.has_value() && config.http_asked && !HttpIsBuilt()) {
    return Status(Code::kInvalid,
                  "--http: this aquifer was built without HTTP; leave it out, or install "
                  "libboost-dev and build it again");
  }
  return Status();
}

// As JSON where that was asked for: whoever reads the log reads this too.
void SayWhyItEnds(const std::string& message) {
  if (TheLog()->format() == LogFormat::kText) {
    return fmt::print(stderr, "aquifer serve: {}\n", message);
  }
  fmt::print(
      stderr, "{}\n",
      LogLine(LogFormat::kJson, SystemClock()->UnixSeconds(), std::nullopt, "error: " + message));
}

Status Serve(const NodeOverrides& overrides) {
  SecretEnvironment environment = SecretEnvironment::Take();
  const sigset_t signals = BlockSignals();
  ::signal(SIGPIPE, SIG_IGN);  // Whoever reads what we write may end before we do.
  if (overrides.log_format == kLogFormats[1]) TheLog()->Set(LogLevel::kInfo, LogFormat::kJson);
  RaiseOpenFileLimit();
  AQ_ASSIGN_OR_RETURN(NodeConfig config, LoadNodeConfig(overrides));
  TheLog()->Set(config.log_level, config.log_format);
  AQ_RETURN_IF_ERROR(CheckIsThere(config));
  if (!HttpIsBuilt()) config.http.reset();
  const NodeHost host = ThisHost();
  AQ_ASSIGN_OR_RETURN(NodePlan plan, PlanNode(config, host));
  const std::string socket = plan.socket;
  NodeProcess process(
      {.overrides = overrides, .host = host, .version = AQUIFER_VERSION, .log = TheLog()},
      std::move(plan), std::move(environment));
  AQ_RETURN_IF_ERROR(process.Start());
  NotifySupervisor("READY=1");
  TheLog()->Write("ready on " + socket);
  while (true) {
    int signal = 0;
    if (::sigwait(&signals, &signal) != 0) continue;
    if (signal != SIGHUP) break;
    [[maybe_unused]] const Status told = process.Reload();  // It is in the log.
  }
  // Whoever asks a second time gets what they ask for at once. A reload asks for nothing now.
  sigset_t ends = signals;
  sigdelset(&ends, SIGHUP);
  ::pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
  process.Drain();
  LeaveEvenIfADriveHangs();
  return Status();
}

}  // namespace

void AddServeCommand(CLI::App* app, int* exit_status) {
  auto overrides = std::make_shared<NodeOverrides>();
  CLI::App* const serve = app->add_subcommand(
      "serve", "Run the node: the host's cache, which every engine of the host shares");
  serve->footer(kFooter);
  for (const NodeOption& option : NodeOptions()) {
    CLI::Option* const added =
        option.once != nullptr
            ? serve->add_option(std::string(option.name), (*overrides).*option.once,
                                std::string(option.help))
            : serve->add_option(std::string(option.name), (*overrides).*option.repeated,
                                std::string(option.help));
    added->type_name(std::string(option.value));
  }
  serve->callback([overrides, exit_status] {
    const Status status = Serve(*overrides);
    if (status.ok()) return;
    SayWhyItEnds(status.message());
    *exit_status = status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
  });
}

}  // namespace aquifer
