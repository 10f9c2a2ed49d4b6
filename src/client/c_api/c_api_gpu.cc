// The C ABI's GPUs: what moves blocks between their memory and slots, one for each cache and
// device.
#include <cstdio>
#include <utility>

#include "client/c_api/c_api.h"
#include "cuda/cuda_device.h"
#include "cuda/host_pins.h"

namespace {

// Nothing fails by it, so that no answer could say it.
void TellNotPinned(const aquifer::Status& why) {
  std::fprintf(
      stderr,
      "aquifer: the node's memory cannot be pinned for the GPU; copies are slower, through "
      "a buffer: %s\n",
      why.message().c_str());
}

aquifer::Result<std::unique_ptr<aquifer::BlockMover>> NewMover(int device) {
  aquifer::HostPins* const pins = aquifer::HostPins::OfProcess();
  if (!pins->in_use()) {
    AQ_ASSIGN_OR_RETURN(std::unique_ptr<aquifer::GpuDevice> pinning,
                        aquifer::NewCudaDevice(device));
    pins->Use(std::move(pinning), &TellNotPinned);
  }
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<aquifer::GpuDevice> moving, aquifer::NewCudaDevice(device));
  return aquifer::BlockMover::New(std::move(moving), pins);
}

}  // namespace

aquifer::Result<aquifer::BlockMover*> aquifer_cache::MoverFor(int device) {
  const auto found = movers.find(device);
  if (found != movers.end()) {
    AQ_RETURN_IF_ERROR(found->second->status());
    return found->second.get();
  }
  const auto failed = no_movers.find(device);
  if (failed != no_movers.end()) return failed->second;
  aquifer::Result<std::unique_ptr<aquifer::BlockMover>> mover = NewMover(device);
  if (!mover.ok()) {
    const aquifer::Status why(aquifer::Code::kUnavailable,
                              "the GPU path is off: " + mover.status().message());
    no_movers.emplace(device, why);
    return why;
  }
  return movers.emplace(device, *std::move(mover)).first->second.get();
}
