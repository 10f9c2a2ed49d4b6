// aquifer ctl: asks a node that runs, and tells it what to do. One entry of kActions for each.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/text/duration_text.h"
#include "cli/commands.h"
#include "cli/ctl_text.h"
#include "cli/node_client.h"
#include "node/api/http_actions.h"
#include "node/api/http_stores.h"
#include "node/config/known_directories.h"
#include "node/config/node_config.h"
#include "node/config/node_plan.h"
#include "node/config/node_stores.h"
#include "node/config/secret_environment.h"
#include "store/store_check.h"

namespace aquifer {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr const char* kFooter = R"(
A node is asked on its administrator's socket, which only its own user and root can use, or over HTTP
with the administrator's token. Blocks are named by the session that an engine gave, or by their keys.

Examples:
  aquifer ctl status
  aquifer ctl tenants --json
  aquifer ctl tiers test shared                   whether that store works, and how fast
  aquifer ctl tiers test shared --config FILE     the same, where no node runs
  aquifer ctl tenants delete acme --yes           destroys its key, so nothing of it can be read again
  aquifer ctl prestage --session chat-7           bring it to DRAM before its next turn
  aquifer ctl pin --session system-prompt --for 8h
  aquifer ctl evict --tenant acme --everything --yes
  aquifer ctl record start /var/tmp/requests.jsonl
  aquifer ctl drain --timeout 60s                 before the node is stopped
  aquifer ctl undrain                             it stays after all, and stores again
  aquifer ctl status --http 10.0.0.7:9470 --token-file /etc/aquifer/admin-token)";

constexpr auto kSlack = seconds(15);  // For the answer, beyond what the node was given.
constexpr auto kTestLimit = minutes(3);
constexpr auto kLongLimit = minutes(65);  // For what has no limit of its own.
constexpr int64_t kMsPerSecond = 1000;

struct CtlOptions {
  NodeClientOptions node;
  bool json = false;
  std::string tenant;
  std::string session;
  std::vector<std::string> keys;
  int64_t group = 0;
  int64_t part = 0;
  std::string duration;  // --for
  std::string timeout;
  bool everything = false;
  bool yes = false;
  bool force = false;
  std::string after;
  uint32_t limit = 100;
  std::string action;  // start, stop or status; test; delete; rewrap
  std::string name;    // Of a tier, or of a tenant.
  std::string config;  // --config
  std::string file;
};

Status Usage(std::string message) { return Status(Code::kInvalid, std::move(message)); }

Result<json> BlocksFrom(const CtlOptions& options, bool may_be_all = false) {
  json body = json::object();
  if (!options.tenant.empty()) body["tenant"] = options.tenant;
  if (!options.session.empty()) body["session"] = options.session;
  if (!options.keys.empty()) {
    body["keys"] = options.keys;
    body["group"] = options.group;
    body["part"] = options.part;
  }
  if (options.everything) body["everything"] = true;
  const int ways = (options.session.empty() ? 0 : 1) + (options.keys.empty() ? 0 : 1) +
                   (options.everything ? 1 : 0);
  if (ways != 1) {
    return Usage(may_be_all ? "name blocks in one way: --session NAME, KEY... or --everything"
                            : "name blocks in one way: --session NAME, or KEY...");
  }
  return body;
}

Result<int64_t> TimeFrom(const std::string& text, const char* option, int64_t most_seconds) {
  const Result<int64_t> parsed = ParseSeconds(text);
  if (!parsed.ok() || *parsed <= 0) {
    return Usage(fmt::format("{}: '{}' is not a time; write it like 90s, 15m or 8h", option, text));
  }
  if (*parsed <= most_seconds) return *parsed;
  return Usage(fmt::format("{}: '{}' is too long; give at most {}", option, text,
                           SecondsText(most_seconds)));
}

// Adds "timeout_ms" where one is given; returns how long to wait for the answer.
Result<milliseconds> AddTimeout(const CtlOptions& options, json* body) {
  if (options.timeout.empty()) return milliseconds(kLongLimit);
  AQ_ASSIGN_OR_RETURN(const int64_t limit,
                      TimeFrom(options.timeout, "--timeout", kMaxTimeoutMs / kMsPerSecond));
  (*body)["timeout_ms"] = limit * kMsPerSecond;
  return milliseconds(seconds(limit) + kSlack);
}

std::string JsonText(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

// Shows an answer, or what was done of it and why not all.
Status Show(const CtlOptions& options, const Result<json>& answer, const json& partial,
            const std::function<std::string(const json&)>& text) {
  if (!answer.ok()) {
    if (!partial.is_null() && !partial.empty()) {
      fmt::print("{}", options.json ? JsonText(partial) : text(partial));
    }
    return answer.status();
  }
  fmt::print("{}", options.json ? JsonText(*answer) : text(*answer));
  return Status();
}

Status Act(NodeClient* node, const CtlOptions& options, const std::string& target, const json& body,
           milliseconds limit, const std::function<std::string(const json&)>& text) {
  json partial;
  const Result<json> answer = node->Post(target, body, limit, &partial);
  return Show(options, answer, partial, text);
}

uint64_t Number(const json& answer, const char* name) { return answer.value(name, uint64_t{0}); }

// ---- What there is to ask and to do ----

Status ShowStatus(NodeClient* node, const CtlOptions& options) {
  return Show(options, node->Get("/v1/status"), {}, StatusText);
}

// A store that does not work is not what the person hoped for.
Status ShowTest(const CtlOptions& options, const json& report) {
  fmt::print("{}", options.json ? JsonText(report) : StoreReportText(report));
  if (report.at("works").get<bool>()) return Status();
  return Status(Code::kUnavailable, fmt::format("tier {} does not work", options.name));
}

Status TestTier(NodeClient* node, const CtlOptions& options) {
  json partial;
  AQ_ASSIGN_OR_RETURN(const json report,
                      node->Post("/v1/tiers/test", {{"tier", options.name}}, kTestLimit, &partial));
  return ShowTest(options, report);
}

// Without a node, with what a node would be told.
Status TestTierOf(const CtlOptions& options) {
  AQ_ASSIGN_OR_RETURN(const NodeConfig config, ReadNodeConfig(options.config));
  for (const TierConfig& tier : config.tiers) {
    if (tier.name != options.name) continue;
    // Another user's than the node's, perhaps: it only looks.
    KnownDirectories known(StateDirectoryOf(ThisHost(), /*may_make=*/false), /*may_add=*/false);
    AQ_ASSIGN_OR_RETURN(const auto store, NewStore(tier, SecretEnvironment::Take(), &known));
    const StoreReport report = CheckStore(store.get(), {}, SystemClock(), SystemRandom());
    return ShowTest(options, StoreReportJson(tier.name, store->Describe(), report));
  }
  return Usage(
      fmt::format("there is no [[tier]] of the name '{}' in {}", options.name, options.config));
}

Status Tiers(NodeClient* node, const CtlOptions& options) {
  if (options.action == "test") {
    if (options.name.empty()) return Usage("name the tier to test: aquifer ctl tiers test NAME");
    return TestTier(node, options);
  }
  return Show(options, node->Get("/v1/tiers"), {}, TiersText);
}

Status Undrain(NodeClient* node, const CtlOptions& options) {
  return Act(node, options, "/v1/undrain", json::object(), kLongLimit, [](const json& answer) {
    return answer.at("was_draining").get<bool>() ? "blocks are stored again\n"
                                                 : "the node was not draining; blocks are stored\n";
  });
}

Status DeleteTenant(NodeClient* node, const CtlOptions& options) {
  if (options.name.empty()) return Usage("name the tenant: aquifer ctl tenants delete NAME --yes");
  if (!options.yes) {
    return Usage(
        "this destroys the tenant's key and deletes all that it has, for good; add --yes "
        "if that is meant");
  }
  json body = {{"tenant", options.name}};
  if (options.force) body["force"] = true;
  return Act(node, options, "/v1/tenants/delete", body, kLongLimit, TenantDeletedText);
}

Status ShowTenants(NodeClient* node, const CtlOptions& options) {
  if (options.action == "delete") return DeleteTenant(node, options);
  return Show(options, AllTenants(node), {}, TenantsText);
}

Status ShowSessions(NodeClient* node, const CtlOptions& options) {
  std::string target = fmt::format("/v1/sessions?limit={}", options.limit);
  if (!options.tenant.empty()) target += "&tenant=" + PercentEncoded(options.tenant);
  if (!options.after.empty()) target += "&after=" + PercentEncoded(options.after);
  return Show(options, node->Get(target), {}, SessionsText);
}

Status Pin(NodeClient* node, const CtlOptions& options) {
  AQ_ASSIGN_OR_RETURN(json body, BlocksFrom(options));
  AQ_ASSIGN_OR_RETURN(const int64_t time, TimeFrom(options.duration, "--for", kMaxPinSeconds));
  body["seconds"] = time;
  return Act(node, options, "/v1/pin", body, kLongLimit, [time](const json& answer) {
    return fmt::format("pinned {} of {} blocks for {}\n", Number(answer, "pinned"),
                       Number(answer, "blocks"), SecondsText(time));
  });
}

Status Unpin(NodeClient* node, const CtlOptions& options) {
  AQ_ASSIGN_OR_RETURN(const json body, BlocksFrom(options));
  return Act(node, options, "/v1/unpin", body, kLongLimit, [](const json& answer) {
    return fmt::format("unpinned {} of {} blocks\n", Number(answer, "unpinned"),
                       Number(answer, "blocks"));
  });
}

Status Prestage(NodeClient* node, const CtlOptions& options) {
  AQ_ASSIGN_OR_RETURN(json body, BlocksFrom(options));
  AQ_ASSIGN_OR_RETURN(const milliseconds limit, AddTimeout(options, &body));
  return Act(node, options, "/v1/prestage", body, limit, [](const json& answer) {
    return fmt::format("{} of {} blocks are in DRAM\n", Number(answer, "staged"),
                       Number(answer, "found"));
  });
}

Status Evict(NodeClient* node, const CtlOptions& options) {
  AQ_ASSIGN_OR_RETURN(const json body, BlocksFrom(options, /*may_be_all=*/true));
  if (options.everything && !options.yes) {
    return Usage("--everything deletes all that the tenant has; add --yes if that is meant");
  }
  return Act(node, options, "/v1/evict", body, kLongLimit, [](const json& answer) {
    return fmt::format("{} blocks are gone from every tier\n", Number(answer, "evicted"));
  });
}

std::string KeysText(const json& answer) {
  if (!answer.at("encryption").get<bool>()) return "nothing is encrypted\n";
  const std::string trouble = answer.at("trouble").get<std::string>();
  return fmt::format("encrypted: {} data keys known, {} wanted, {} forgotten{}\n",
                     Number(answer, "known"), Number(answer, "wanted"), Number(answer, "forgotten"),
                     trouble.empty() ? "" : "; the key store: " + trouble);
}

Status Keys(NodeClient* node, const CtlOptions& options) {
  if (options.action != "rewrap") return Show(options, node->Get("/v1/keys"), {}, KeysText);
  return Act(node, options, "/v1/keys/rewrap", json::object(), kLongLimit, [](const json& answer) {
    return fmt::format("{} data keys were wrapped by the current master key\n",
                       Number(answer, "rewrapped"));
  });
}

std::string RecordingText(const json& answer) {
  const std::string file = answer.at("file").get<std::string>();
  const std::string failure = answer.at("failure").get<std::string>();
  if (file.empty()) return "nothing is recorded\n";
  return fmt::format("{} {}: {} requests, {} left out{}\n",
                     answer.at("running").get<bool>() ? "recording to" : "recorded to", file,
                     Number(answer, "requests"), Number(answer, "left_out"),
                     failure.empty() ? "" : "; it ended by itself: " + failure);
}

Status Record(NodeClient* node, const CtlOptions& options) {
  if ((options.action == "start") == options.file.empty()) {
    return Usage("start takes the FILE to record to, stop and status take none");
  }
  if (options.action == "status") return Show(options, node->Get("/v1/record"), {}, RecordingText);
  if (options.action == "stop") {
    return Act(node, options, "/v1/record/stop", json::object(), kLongLimit, RecordingText);
  }
  // The node may have another current directory.
  std::error_code error;
  const std::string file = std::filesystem::absolute(options.file, error).string();
  return Act(node, options, "/v1/record/start", {{"file", file}}, kLongLimit, RecordingText);
}

Status Drain(NodeClient* node, const CtlOptions& options) {
  json body = json::object();
  AQ_ASSIGN_OR_RETURN(const milliseconds limit, AddTimeout(options, &body));
  return Act(node, options, "/v1/drain", body, limit, [](const json& answer) {
    const uint64_t left = Number(answer, "left");
    return left == 0
               ? std::string("drained: no block is only in DRAM, and nothing is stored any more\n")
               : fmt::format("drained in part: {} blocks are only in DRAM\n", left);
  });
}

// ---- The command line ----

enum Takes : unsigned {
  kNone = 0,
  kBlocks = 1,
  kTime = 2,
  kTimeout = 4,
  kEverything = 8,
  kPage = 16,
  kRecord = 32,
  kTest = 64,
  kDelete = 128,
  kRewrap = 256,
};

struct CtlAction {
  const char* name;
  const char* help;
  unsigned takes;
  Status (*run)(NodeClient* node, const CtlOptions& options);
};

constexpr CtlAction kActions[] = {
    {"status", "The node at a glance", kNone, &ShowStatus},
    {"tiers", "Where blocks are kept, how full that is, and whether a store works", kTest, &Tiers},
    {"tenants", "Who has how much, and what it did for them; deletes one", kDelete, &ShowTenants},
    {"keys", "The data keys of tenants, and to wrap them anew", kRewrap, &Keys},
    {"sessions", "The sessions that a tenant's engines named", kPage, &ShowSessions},
    {"pin", "Keep blocks from being evicted for some time", kBlocks | kTime, &Pin},
    {"unpin", "Take such pins away", kBlocks, &Unpin},
    {"prestage", "Bring blocks to DRAM ahead of a fetch", kBlocks | kTimeout, &Prestage},
    {"evict", "Delete blocks from every tier, for good", kBlocks | kEverything, &Evict},
    {"record", "Record what engines ask for, without its content, for planning", kRecord, &Record},
    {"drain", "Write everything to the lower tiers and store nothing any more", kTimeout, &Drain},
    {"undrain", "Store blocks again after a drain", kNone, &Undrain},
};

// Without CLI11's own words in the help.
CLI::Validator NumberFrom(size_t least, size_t most) {
  return CLI::Range(least, most).description("");
}

void AddOptions(const CtlAction& action, CtlOptions* options, CLI::App* command) {
  AddNodeOptions(command, &options->node);
  command->add_flag("--json", options->json, "For programs: what the node answered");
  if ((action.takes & (kBlocks | kPage)) != 0) {
    command->add_option("--tenant", options->tenant, "Whose; not needed where there is one")
        ->type_name("NAME");
  }
  if ((action.takes & kBlocks) != 0) {
    command->add_option("KEY", options->keys, "Keys of blocks, 64 hexadecimal digits each");
    command->add_option("--session", options->session, "All blocks of this session instead")
        ->type_name("NAME");
    command->add_option("--group", options->group, "The kv group of the keys (default: 0)")
        ->type_name("NUMBER")
        ->check(NumberFrom(0, UINT16_MAX));
    command->add_option("--part", options->part, "The part of the keys (default: 0)")
        ->type_name("NUMBER")
        ->check(NumberFrom(0, UINT16_MAX));
  }
  if ((action.takes & kTime) != 0) {
    command->add_option("--for", options->duration, "For how long: 90s, 15m, 8h or 7d")
        ->type_name("TIME")
        ->required();
  }
  if ((action.takes & kTimeout) != 0) {
    command->add_option("--timeout", options->timeout, "How long it may take: 90s or 15m")
        ->type_name("TIME");
  }
  if ((action.takes & kEverything) != 0) {
    command->add_flag("--everything", options->everything, "All that the tenant has");
    command->add_flag("--yes", options->yes, "That is really meant");
  }
  if ((action.takes & kRecord) != 0) {
    command->add_option("ACTION", options->action, "What to do")
        ->required()
        ->check(CLI::IsMember({"start", "stop", "status"}));
    command->add_option("FILE", options->file, "Where to, on the node's host");
  }
  if ((action.takes & kTest) != 0) {
    command->add_option("ACTION", options->action, "What to do instead of showing them")
        ->check(CLI::IsMember({"test"}));
    command->add_option("NAME", options->name, "The durable tier to test");
    command->add_option("--config", options->config, "Test what this file says, without a node")
        ->type_name("FILE");
  }
  if ((action.takes & kDelete) != 0) {
    command->add_option("ACTION", options->action, "What to do instead of showing them")
        ->check(CLI::IsMember({"delete"}));
    command->add_option("NAME", options->name, "The tenant to delete");
    command->add_flag("--yes", options->yes, "That is really meant");
    command->add_flag(
        "--force", options->force,
        "Also a tenant that this node does not know: durable tiers may have blocks of it");
  }
  if ((action.takes & kRewrap) != 0) {
    command->add_option("ACTION", options->action, "What to do instead of showing them")
        ->check(CLI::IsMember({"rewrap"}));
  }
  if ((action.takes & kPage) != 0) {
    command->add_option("--after", options->after, "Begin behind this session")->type_name("NAME");
    command->add_option("--limit", options->limit, "At most so many, up to 1000 (default: 100)")
        ->type_name("NUMBER")
        ->check(NumberFrom(1, kMaxHttpPage));
  }
}

Status RunAction(const CtlAction& action, const CtlOptions& options) {
  if (!options.config.empty()) {
    if (options.action != "test" || options.name.empty()) {
      return Usage("--config is for: aquifer ctl tiers test NAME --config FILE");
    }
    return TestTierOf(options);
  }
  AQ_ASSIGN_OR_RETURN(NodeClient node, NodeClient::New(options.node));
  try {
    return action.run(&node, options);
  } catch (const json::exception&) {
    return Status(
        Code::kUnavailable,
        "the node's answer is not understood; is it of another version than this program?");
  }
}

}  // namespace

void AddNodeOptions(CLI::App* command, NodeClientOptions* options) {
  command
      ->add_option("--socket", options->socket,
                   "The node's socket (default: $AQUIFER_SOCKET, or where nodes usually are)")
      ->type_name("PATH");
  command->add_option("--http", options->http, "Ask over TCP instead, as in 127.0.0.1:9470")
      ->type_name("ADDRESS");
  command->add_option("--token-file", options->token_file, "The administrator's token, for --http")
      ->type_name("FILE");
}

void AddCtlCommand(CLI::App* app, int* exit_status) {
  CLI::App* const ctl = app->add_subcommand("ctl", "Ask a node that runs, and tell it what to do");
  ctl->require_subcommand(1);
  ctl->footer(kFooter);
  for (const CtlAction& action : kActions) {
    const auto options = std::make_shared<CtlOptions>();  // The callback's, and CLI11's target.
    CLI::App* const command = ctl->add_subcommand(action.name, action.help);
    AddOptions(action, options.get(), command);
    command->callback([&action, options, exit_status] {
      const Status status = RunAction(action, *options);
      if (status.ok()) return;
      fmt::print(stderr, "aquifer ctl {}: {}\n", action.name, status.message());
      *exit_status = status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
    });
  }
}

}  // namespace aquifer
