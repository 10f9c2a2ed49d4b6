#include "cli/other_codec.h"

namespace aquifer {

void AddZstdCodecs(OtherCodecs* /*codecs*/) {}

}  // namespace aquifer
