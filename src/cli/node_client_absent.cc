// For builds without Boost.
#include "cli/node_client.h"

namespace aquifer {

Result<NodeClient::Answer> NodeClient::Exchange(const std::string&, const std::string&,
                                                const std::string&,
                                                std::chrono::milliseconds) const {
  return Status(Code::kUnavailable,
                "this aquifer was built without HTTP, which this needs; install libboost-dev and "
                "build it again");
}

}  // namespace aquifer
