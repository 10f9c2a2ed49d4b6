#include "store/s3/http_loop.h"

namespace aquifer {

Result<std::unique_ptr<HttpLoop>> NewHttpLoop(const HttpLoopOptions& /*options*/,
                                              Clock* /*clock*/) {
  return Status(Code::kUnavailable,
                "this build speaks to no S3 server, for it was made without libcurl; next step: "
                "apt-get install libcurl4-openssl-dev and build again");
}

}  // namespace aquifer
