#include "cli/doctor/doctor_checks.h"
#include "io/disk/disk.h"

namespace aquifer {

UringFacts GatherUringFacts() {
  UringFacts facts;
  facts.usable = ProbeUring();
  return facts;
}

}  // namespace aquifer
