// A request and a response of HTTP, as far as our servers look at them. http_server.h reads and
// writes them on a socket.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

struct HttpRequest {
  std::string method{};  // "GET"
  std::string path{};    // "/v1/status", decoded.
  std::map<std::string, std::string> query{};
  std::string host{};  // Empty: none was given.
  std::optional<std::string> origin{};
  std::optional<std::string>
      fetch_site{};  // Sec-Fetch-Site: a browser says where it was sent from.
  std::optional<std::string> content_type{};
  std::optional<std::string> authorization{};
  std::string accept{};  // Empty: none was given.
  // All of them, with their names as they came: for who passes a request on.
  std::vector<std::pair<std::string, std::string>> headers{};
  bool repeated_header = false;  // One of these was there twice: somebody plays with parsers.
  std::string body{};

  bool on_socket = false;  // The administrator's Unix socket: the peer is the node's user or root.
  std::string peer{};      // For the audit log: "127.0.0.1:51234", "process 77 of user 0".
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body{};
  std::string allow{};         // With 405.
  bool ask_for_token = false;  // With 401.
};

// Splits "/v1/sessions?limit=5" into path and query. kInvalid: it is no path, or badly encoded.
Status ParseTarget(std::string_view target, HttpRequest* request);

}  // namespace aquifer
