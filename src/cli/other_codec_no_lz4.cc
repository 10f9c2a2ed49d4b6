#include "cli/other_codec.h"

namespace aquifer {

void AddLz4Codec(OtherCodecs* /*codecs*/) {}

}  // namespace aquifer
