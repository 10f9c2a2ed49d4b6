// For builds without Boost.
#include "net/http/http_client.h"
#include "net/http/http_server.h"

namespace aquifer {
namespace {

Status NotBuilt() {
  return Status(Code::kUnavailable,
                "this aquifer was built without HTTP; install libboost-dev and build it again");
}

}  // namespace

class HttpClient::Connection {};

HttpClient::HttpClient(HttpServerPlace place) : place_(std::move(place)) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

Result<HttpReceived> HttpClient::Ask(const HttpCall&) { return NotBuilt(); }

Result<std::unique_ptr<HttpServer>> StartHttpServer(const HttpServerOptions&, HttpHandler*) {
  return NotBuilt();
}

bool HttpIsBuilt() { return false; }

}  // namespace aquifer
