// Asks a node over HTTP, for `aquifer ctl` and `aquifer top`: on its administrator's socket, or at
// an address with a token. Each call waits for the answer.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "aquifer/status.h"
#include "net/http/http_client.h"

namespace aquifer {

struct NodeClientOptions {
  std::string socket{};      // The node's, or its administrator's; empty: where nodes usually are.
  std::string http{};        // "127.0.0.1:9470"; empty: the socket.
  std::string token_file{};  // Holds the administrator's token; for http.
};

class NodeClient {
 public:
  // kInvalid: the options are wrong. kNotFound: there is no node in the usual places.
  static Result<NodeClient> New(const NodeClientOptions& options);

  // The JSON that the node answered. kUnavailable: nobody answers, and what to do about that.
  // Otherwise what the node said, with its message; then `partial` gets what was done all the same.
  Result<nlohmann::json> Get(const std::string& target);
  Result<nlohmann::json> Post(const std::string& target, const nlohmann::json& body,
                              std::chrono::milliseconds limit, nlohmann::json* partial);

  const std::string& where() const { return where_; }  // For people.

 private:
  NodeClient() : http_(HttpServerPlace{}) {}
  Result<HttpReceived> Exchange(const std::string& method, const std::string& target,
                                const std::string& body, std::chrono::milliseconds limit);
  static Result<nlohmann::json> Understand(const HttpReceived& answer, nlohmann::json* partial);

  std::string where_;
  HttpServerPlace place_;
  HttpClient http_;
  std::string token_;
};

// The answer of /v1/tenants, all pages at once: there are a few thousand tenants at most.
Result<nlohmann::json> AllTenants(NodeClient* node);

// A name as it stands in a query: "a b" becomes "a%20b".
std::string PercentEncoded(std::string_view text);

}  // namespace aquifer
