#include "bench/peers/other_codec.h"

namespace aquifer {

void AddLz4Codec(OtherCodecs* /*codecs*/) {}

}  // namespace aquifer
