// OpenAI's HTTP API over an engine: /v1/completions, /v1/chat/completions, /v1/models, and beside
// them /health and /metrics (Prometheus). Answers are streamed as server-sent events where that is
// asked for. A client that hangs up frees its pages.
//
// `usage.prompt_tokens_details.cached_tokens` counts what did not have to be computed; an object
// `aquifer` in the usage says where it came from. A request may have an object `aquifer`, too:
// docs/engines/reference.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aquifer/status.h"
#include "reference/engine/engine.h"
#include "reference/model/tokenizer.h"
#include "reference/server/http_stream.h"

namespace aquifer::reference {

struct OpenAiOptions {
  std::string model{};  // Its name to clients.
  HttpStreamOptions http{};
};

class OpenAiServer {
 public:
  virtual ~OpenAiServer() = default;  // Before the engine.
  virtual uint16_t port() const = 0;
};

Result<std::unique_ptr<OpenAiServer>> StartOpenAiServer(const OpenAiOptions& options,
                                                        Engine* engine, const Tokenizer* tokenizer);

}  // namespace aquifer::reference
