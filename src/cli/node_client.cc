#include "cli/node_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "client/find_node.h"
#include "net/http/http_server.h"
#include "net/local/default_socket.h"
#include "net/local/frame_socket.h"
#include "net/stream/host_port.h"
#include "node/api/http_routes.h"
#include "node/config/admin_socket.h"

namespace aquifer {
namespace {

using nlohmann::json;

constexpr auto kReadLimit = std::chrono::seconds(15);
constexpr size_t kMaxTokenBytes = 4096;

std::string AdminSocketOf(const std::string& socket) {
  return socket.ends_with(".admin.sock") ? socket : AdminSocketBeside(socket);
}

// The same places as a client of the cache looks at.
Result<std::string> FindSocket(const std::string& given) {
  const std::vector<std::string> places = NodeSockets(given);
  if (places.size() == 1) return AdminSocketOf(places.front());
  for (const std::string& place : places) {
    std::string admin = AdminSocketOf(place);
    if (IsSafePlace(admin, ::geteuid()) && ConnectTo(admin).ok()) return admin;
  }
  return Status(Code::kNotFound,
                fmt::format("there is no node on this host, or it belongs to another user (looked "
                            "beside {}); start one with `aquifer serve`, or name its socket with "
                            "--socket",
                            fmt::join(places, ", ")));
}

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::string token((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
  if (!file.is_open() || token.empty() || token.size() > kMaxTokenBytes ||
      token.find_first_of("\r\n") != std::string::npos) {
    return Status(Code::kInvalid,
                  fmt::format("--token-file: {} is not a file with one line, the token", path));
  }
  return token;
}

Result<HostPort> ParseAddress(const std::string& text) {
  const std::optional<HostPort> address = ParseHostPort(text);
  if (address.has_value() && address->port != 0) return *address;
  return Status(
      Code::kInvalid,
      fmt::format("--http: '{}' is not an address; write it like 127.0.0.1:9470 or [::1]:9470",
                  text));
}

Code CodeOf(unsigned status) {
  switch (status) {
    case 400:
    case 401:
    case 403:
    case 405:
    case 413:
    case 415:
    case 431:
      return Code::kInvalid;
    case 404:
      return Code::kNotFound;
    case 504:
      return Code::kLate;
    case 507:
      return Code::kNoSpace;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

std::string PercentEncoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

Result<NodeClient> NodeClient::New(const NodeClientOptions& options) {
  NodeClient client;
  if (options.http.empty()) {
    if (!options.token_file.empty()) {
      return Status(Code::kInvalid, "--token-file is for --http; the socket needs no token");
    }
    AQ_ASSIGN_OR_RETURN(client.place_.socket, FindSocket(options.socket));
    client.where_ = client.place_.socket;
    client.http_ = HttpClient(client.place_);
    return client;
  }
  if (!options.socket.empty()) {
    return Status(Code::kInvalid, "give either --socket or --http");
  }
  AQ_ASSIGN_OR_RETURN(const HostPort address, ParseAddress(options.http));
  client.place_ = {.host = address.host, .port = std::to_string(address.port)};
  client.http_ = HttpClient(client.place_);
  client.where_ = options.http;
  if (!options.token_file.empty()) {
    AQ_ASSIGN_OR_RETURN(client.token_, ReadToken(options.token_file));
  }
  return client;
}

Result<HttpReceived> NodeClient::Exchange(const std::string& method, const std::string& target,
                                          const std::string& body,
                                          std::chrono::milliseconds limit) {
  HttpCall call{.method = method, .target = target, .body = body, .limit = limit};
  if (!token_.empty()) call.headers.emplace_back("Authorization", "Bearer " + token_);
  if (method == "POST") call.headers.emplace_back("Content-Type", "application/json");
  Result<HttpReceived> received = http_.Ask(call);
  if (received.ok() || !HttpIsBuilt()) return received;
  const std::string& why = received.status().message();
  if (received.status().code() == Code::kInvalid) {
    return Status(
        Code::kUnavailable,
        fmt::format("{} belongs to another user; run this as that user or as root, or use "
                    "--http with --token-file",
                    where_));
  }
  if (received.status().code() != Code::kNotFound) {
    return Status(Code::kUnavailable,
                  fmt::format("the node at {} did not answer: {}; look at its log, and ask again",
                              where_, why));
  }
  if (!place_.socket.empty()) {
    return Status(Code::kUnavailable,
                  fmt::format("no node answers on {} ({}); start one with `aquifer serve`, or name "
                              "its socket with --socket",
                              where_, why));
  }
  return Status(Code::kUnavailable,
                fmt::format("no node answers at {} port {} ({}); start one with `aquifer serve "
                            "--http`, or correct the address",
                            place_.host, place_.port, why));
}

Result<json> NodeClient::Understand(const HttpReceived& answer, json* partial) {
  json parsed = json::parse(answer.body, nullptr, false);
  if (!parsed.is_object()) {
    return Status(
        Code::kUnavailable,
        "what answers there is not an Aquifer node; name another with --socket or --http");
  }
  if (answer.status == 200) return parsed;
  const json error = parsed.value("error", json::object());
  const std::string message =
      error.is_object() && error.contains("message") && error["message"].is_string()
          ? error["message"].get<std::string>()
          : fmt::format("the node answered {}", answer.status);
  parsed.erase("error");
  if (partial != nullptr) *partial = std::move(parsed);
  return Status(CodeOf(answer.status), message);
}

Result<json> NodeClient::Get(const std::string& target) {
  AQ_ASSIGN_OR_RETURN(const HttpReceived answer, Exchange("GET", target, "", kReadLimit));
  return Understand(answer, nullptr);
}

Result<json> NodeClient::Post(const std::string& target, const json& body,
                              std::chrono::milliseconds limit, json* partial) {
  AQ_ASSIGN_OR_RETURN(
      const HttpReceived answer,
      Exchange("POST", target, body.dump(-1, ' ', false, json::error_handler_t::replace), limit));
  return Understand(answer, partial);
}

Result<json> AllTenants(NodeClient* node) {
  json all = {{"tenants", json::array()}, {"next", ""}};
  std::string after;
  do {
    AQ_ASSIGN_OR_RETURN(const json page,
                        node->Get(fmt::format("/v1/tenants?limit={}&after={}", kMaxHttpPage,
                                              PercentEncoded(after))));
    for (const json& tenant : page.at("tenants")) all["tenants"].push_back(tenant);
    after = page.at("next").get<std::string>();
  } while (!after.empty());
  return all;
}

}  // namespace aquifer
