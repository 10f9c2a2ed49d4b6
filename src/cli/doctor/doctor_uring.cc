#include <liburing.h>

#include "cli/doctor/doctor_checks.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

constexpr unsigned kEntries = 8;

bool CanSetUp(unsigned flags) {
  io_uring ring;
  if (io_uring_queue_init(kEntries, &ring, flags) != 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

}  // namespace

UringFacts GatherUringFacts() {
  UringFacts facts;
  facts.usable = ProbeUring();
  if (!facts.usable.ok()) return facts;
  facts.defer_taskrun = CanSetUp(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  facts.coop_taskrun = CanSetUp(IORING_SETUP_COOP_TASKRUN);
  io_uring ring;
  if (io_uring_queue_init(kEntries, &ring, 0) != 0) return facts;
  facts.file_table = io_uring_register_files_sparse(&ring, kEntries) == 0;
  facts.buffer_table = io_uring_register_buffers_sparse(&ring, kEntries) == 0;
  io_uring_queue_exit(&ring);
  return facts;
}

}  // namespace aquifer
