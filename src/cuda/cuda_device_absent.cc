// For builds without a CUDA compiler.
#include "cuda/cuda_device.h"

namespace aquifer {
namespace {

const Status kAbsent(Code::kUnavailable, "this build of Aquifer has no CUDA code");

}  // namespace

Result<std::unique_ptr<GpuDevice>> NewCudaDevice(int /*ordinal*/, const CudaOptions& /*options*/) {
  return kAbsent;
}

Result<std::string> DescribeCudaDevice(int /*ordinal*/) { return kAbsent; }

}  // namespace aquifer
