#include "store/s3/http_loop.h"

namespace aquifer {

Result<std::unique_ptr<HttpLoop>> NewHttpLoop(const HttpLoopOptions& /*options*/,
                                              Clock* /*clock*/) {
  return Status(Code::kUnavailable,
                "this build has no S3 support, because it was made without libcurl; next step: "
                "apt-get install libcurl4-openssl-dev and build again");
}

}  // namespace aquifer
