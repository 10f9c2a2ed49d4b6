// Another store of blocks on this host, as a peer to compare with.
#pragma once

#include "aquifer/status.h"

namespace aquifer {

class MeasuredPeer {
 public:
  virtual ~MeasuredPeer() = default;

  // Gets every block, in the best way that it has; GB/s.
  virtual Result<double> Get() = 0;
};

}  // namespace aquifer
