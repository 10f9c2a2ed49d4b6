// For builds without Boost.
#include "node/api/http_server.h"

namespace aquifer {

Result<std::unique_ptr<HttpServer>> StartHttpServer(const HttpServerOptions&, HttpHandler*) {
  return Status(Code::kUnavailable,
                "this aquifer was built without HTTP; install libboost-dev and build it again");
}

bool HttpIsBuilt() { return false; }

}  // namespace aquifer
