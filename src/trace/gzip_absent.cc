// Where zlib was missing when this was built.
#include "trace/byte_source.h"

namespace aquifer {

Result<std::unique_ptr<ByteSource>> Gunzip(std::unique_ptr<ByteSource>) {
  return Status(Code::kInvalid,
                "it is a gzip file, and this program was built without zlib. Next step: unpack it "
                "with gunzip, or install zlib1g-dev and build again");
}

}  // namespace aquifer
