#include "bench/peers/other_codec.h"

namespace aquifer {

void AddZstdCodecs(OtherCodecs* /*codecs*/) {}

}  // namespace aquifer
