// OpenAI's HTTP API over an engine: /v1/completions, /v1/chat/completions, /v1/models, and beside
// them /health and /metrics (Prometheus). If the request asks for it, the answer is streamed as
// server-sent events. A client that hangs up frees its pages.
//
// `usage.prompt_tokens_details.cached_tokens` counts tokens that did not have to be computed. An
// object `aquifer` in the usage says where they came from. A request may have an object `aquifer`,
// too: docs/engines/reference.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "aquifer/status.h"
#include "net/http/http_server.h"
#include "reference/engine/engine.h"
#include "reference/model/tokenizer.h"

namespace aquifer::reference {

struct OpenAiOptions {
  std::string model{};  // Its name to clients.
  HttpAddress address{.host = "127.0.0.1", .port = 0};
  HttpLimits limits{.max_connections = 256,
                    .max_header_bytes = 16 << 10,
                    .max_body_bytes = 16 << 20,
                    .idle = std::chrono::seconds(120),
                    .header = std::chrono::seconds(30),
                    .write = std::chrono::seconds(30)};
};

class OpenAiServer {
 public:
  virtual ~OpenAiServer() = default;  // Destroy the server before the engine.
  virtual uint16_t port() const = 0;
};

Result<std::unique_ptr<OpenAiServer>> StartOpenAiServer(const OpenAiOptions& options,
                                                        Engine* engine, const Tokenizer* tokenizer);

}  // namespace aquifer::reference
