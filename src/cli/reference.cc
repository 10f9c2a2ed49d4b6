// aquifer reference: one replica of the reference engine, with OpenAI's API, until it is told to
// end.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "cli/commands.h"
#include "reference/engine/engine.h"
#include "reference/model/constructed.h"
#include "reference/model/kernels.h"
#include "reference/model/kv_pages.h"
#include "reference/model/model.h"
#include "reference/model/safetensors.h"
#include "reference/model/tokenizer.h"
#include "reference/server/openai_server.h"

namespace aquifer {
namespace {

using namespace reference;  // NOLINT(google-build-using-namespace)

constexpr int64_t kConnectNanos = 500'000'000;

struct ReferenceOptions {
  std::string model = "constructed";
  std::vector<uint32_t> shape;
  uint64_t seed = 1;
  std::string host = "127.0.0.1";
  uint16_t port = 8470;
  std::string socket;
  std::string tenant = "local";
  std::string engine;
  bool no_cache = false;
  bool always = false;
  uint32_t pool_tokens = 0;
  uint32_t page_tokens = 16;
  size_t threads = 2;
  size_t requests = 8;
  std::string logits;  // A file with tokens; then nothing is served.
};

struct LoadedModel {
  std::string name;
  std::shared_ptr<const Weights> weights;
  std::unique_ptr<Tokenizer> tokenizer;
};

Result<LoadedModel> LoadModel(const ReferenceOptions& options) {
  if (options.model == "constructed") {
    return LoadedModel{"constructed", ConstructedWeights(), NewWordTokenizer()};
  }
  LoadedModel loaded;
  loaded.tokenizer = NewByteTokenizer();
  if (options.model == "random") {
    ModelShape shape;
    shape.vocabulary = 512;
    if (!options.shape.empty()) {
      const std::vector<uint32_t>& s = options.shape;
      if (s.size() != 6) return Status(Code::kInvalid, "--shape takes six numbers");
      shape.hidden = s[0];
      shape.intermediate = s[1];
      shape.layers = s[2];
      shape.heads = s[3];
      shape.kv_heads = s[4];
      shape.head_dim = s[5];
    }
    loaded.name = "random";
    AQ_ASSIGN_OR_RETURN(loaded.weights, RandomWeights(shape, options.seed));
    return loaded;
  }
  loaded.name = options.model.substr(options.model.find_last_not_of('/') == std::string::npos
                                         ? 0
                                         : options.model.find_last_of('/') + 1);
  AQ_ASSIGN_OR_RETURN(loaded.weights, LoadCheckpoint(options.model));
  return loaded;
}

EngineOptions EngineOptionsOf(const ReferenceOptions& options) {
  EngineOptions engine;
  engine.page_tokens = options.page_tokens;
  engine.pages = options.pool_tokens / options.page_tokens;
  engine.threads = options.threads;
  engine.max_running = options.requests;
  engine.tenant = options.tenant;
  engine.offload.always_fetch = options.always;
  engine.offload.log = [](const std::string& line) {
    fmt::print(stderr, "aquifer reference: {}\n", line);
  };
  if (!options.no_cache) {
    engine.offload.connect = [options] {
      return Connect({.socket = options.socket, .timeout_nanos = kConnectNanos},
                     {.tenant = options.tenant, .engine = options.engine});
    };
  }
  return engine;
}

Status CheckOptions(const ReferenceOptions& options) {
  if (options.page_tokens == 0) return Status(Code::kInvalid, "--page-tokens is 0");
  if (options.threads == 0) return Status(Code::kInvalid, "--threads is 0");
  if (options.requests == 0) return Status(Code::kInvalid, "--requests is 0");
  return Status();
}

// To compare with another implementation: every token's logits, as float32 in the machine's order.
Status PrintLogits(const ReferenceOptions& options) {
  AQ_ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(options));
  std::ifstream file(options.logits);
  if (!file) return Status(Code::kInvalid, "--logits: cannot read " + options.logits);
  const ModelShape& shape = loaded.weights->shape;
  std::vector<uint32_t> tokens;
  for (uint32_t token = 0; file >> token;) {
    if (token >= shape.vocabulary || tokens.size() == shape.max_positions) {
      return Status(Code::kInvalid, fmt::format("--logits: token {} does not fit", token));
    }
    tokens.push_back(token);
  }
  Model model(loaded.weights, ChosenKernels(), options.threads);
  KvPages pages(shape, static_cast<uint32_t>(tokens.size() / options.page_tokens + 1),
                options.page_tokens);
  std::vector<uint32_t> table(pages.pages());
  std::iota(table.begin(), table.end(), 0);
  constexpr size_t kPiece = 256;
  for (size_t at = 0; at < tokens.size(); at += kPiece) {
    const Chunk chunk{.tokens = std::span(tokens).subspan(at, std::min(kPiece, tokens.size() - at)),
                      .position = static_cast<uint32_t>(at),
                      .page_table = table,
                      .logits = LogitRows::kAll};
    const std::span<const float> logits = model.Forward(std::span(&chunk, 1), &pages);
    std::fwrite(logits.data(), sizeof(float), logits.size(), stdout);
  }
  return std::fflush(stdout) == 0 ? Status() : Status(Code::kUnavailable, "cannot write");
}

Status Serve(const ReferenceOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  AQ_RETURN_IF_ERROR(CheckOptions(options));
  if (!options.logits.empty()) return PrintLogits(options);
  AQ_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options));
  AQ_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      StartEngine(EngineOptionsOf(options), model.weights, model.tokenizer.get()));
  OpenAiOptions api;
  api.model = model.name;
  api.address = {.host = options.host, .port = options.port};
  AQ_ASSIGN_OR_RETURN(const std::unique_ptr<OpenAiServer> server,
                      StartOpenAiServer(api, engine.get(), model.tokenizer.get()));
  fmt::print("model {}: {}\n", model.name, model.weights->shape.ToString());
  fmt::print("serving on http://{}:{}/v1\n", options.host, server->port());
  std::fflush(stdout);
  int signal = 0;
  while (::sigwait(&signals, &signal) != 0) {
  }
  return Status();
}

constexpr const char* kFooter = R"(
A model is one of:
  constructed    looks names up in its context, exactly; no download
  random         any shape, weights from a seed; tokens are bytes
  DIRECTORY      a Llama-architecture checkpoint: config.json and model.safetensors

Examples:
  aquifer serve &
  aquifer reference
  curl -s localhost:8470/v1/completions -d '{"model":"constructed","temperature":0,
    "prompt":"directory Bababa 417 ; Bababe 88 ; ask Bababe . Bababe"}')";

}  // namespace

void AddReferenceCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command = app->add_subcommand(
      "reference", "Run one replica of the reference engine, with OpenAI's API");
  const auto options =
      std::make_shared<ReferenceOptions>();  // The callback's, and CLI11's targets.
  command->add_option("--model", options->model, "constructed, random, or a checkpoint's directory")
      ->type_name("MODEL");
  command
      ->add_option("--shape", options->shape,
                   "Of a random model: hidden,intermediate,layers,heads,kv_heads,head_dim")
      ->delimiter(',')
      ->type_name("N,...");
  command->add_option("--seed", options->seed, "Of a random model's weights")->type_name("N");
  command->add_option("--host", options->host, "Address to serve on")->type_name("ADDRESS");
  command
      ->add_option("--port", options->port, "Port to serve on; 0: any that is free (default: 8470)")
      ->type_name("PORT");
  command
      ->add_option("--socket", options->socket, "The node's socket (default: where nodes put it)")
      ->type_name("PATH");
  command->add_option("--tenant", options->tenant, "Who this engine is to the node")
      ->type_name("NAME");
  command->add_option("--engine", options->engine, "This engine's name to the node")
      ->type_name("NAME");
  command->add_flag("--no-cache", options->no_cache, "Store and recall nothing");
  command->add_flag("--always", options->always, "Recall also what would be computed faster");
  command
      ->add_option("--pool-tokens", options->pool_tokens,
                   "Room for KV (default: one and a half times the longest context)")
      ->type_name("N");
  command->add_option("--page-tokens", options->page_tokens, "Tokens of a page (default: 16)")
      ->type_name("N");
  command->add_option("--threads", options->threads, "Threads that compute (default: 2)")
      ->type_name("N");
  command->add_option("--requests", options->requests, "Requests at a time (default: 8)")
      ->type_name("N");
  command
      ->add_option("--logits", options->logits,
                   "Instead: write the logits of the token numbers in this file, as float32")
      ->type_name("FILE");
  command->footer(kFooter);
  command->callback([options, exit_status] {
    const Status status = Serve(*options);
    if (status.ok()) return;
    fmt::print(stderr, "aquifer reference: {}\n", status.message());
    *exit_status = status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
  });
}

}  // namespace aquifer
