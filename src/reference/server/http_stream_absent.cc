// For builds without Boost.Beast.
#include "reference/server/http_stream.h"

namespace aquifer::reference {

Result<std::unique_ptr<HttpStreamServer>> StartHttpStreamServer(const HttpStreamOptions&,
                                                                HttpStreamHandler) {
  return Status(Code::kUnavailable,
                "this aquifer was built without HTTP: install libboost-dev and build it again");
}

}  // namespace aquifer::reference
