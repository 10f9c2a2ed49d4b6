#include "bench/peers/raw_disk.h"

namespace aquifer {

Result<std::unique_ptr<RawEngine>> NewUringRawEngine(const RawTransfer& /*transfer*/) {
  return Status(Code::kUnavailable, "built without io_uring");
}

}  // namespace aquifer
