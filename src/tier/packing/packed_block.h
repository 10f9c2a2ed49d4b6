// A block on its way out of a tier, and the memory that it is packed into. Shared by the operation
// and by whatever may outlive it: a worker's task, a request at a device.
#pragma once

#include "tier/packing/packer.h"
#include "tier/packing/scratch_pool.h"
#include "tier/tier.h"

namespace aquifer {

struct PackedBlock {
  PackJob job;
  ScratchPool::Buffer scratch;

  // What is to be made of a block for a tier that uses the codec so, and takes so many bytes a
  // second.
  void Describe(const WriteOp& op, const SharedDataKey& key, LosslessUse lossless, Packer* packer,
                double bytes_per_second) {
    job.meta = op.meta;
    job.source = op.source;
    job.dtype = op.dtype;
    job.key = key;
    job.lossless = packer->ShouldTryLossless(lossless, bytes_per_second, op.dtype);
  }

  // Takes the memory that the job needs; false: there is none now.
  bool TakeScratch(ScratchPool* pool) {
    const size_t bytes = Packer::ScratchBytes(job.meta.raw_bytes, job.lossless, job.key != nullptr);
    if (bytes == 0) return true;
    scratch = pool->Take(bytes);
    job.scratch = scratch.bytes();
    return !job.scratch.empty();
  }

  // What is stored lies in memory of its own, not in the source.
  bool apart() const { return job.stored.data() != job.source.data(); }
};

}  // namespace aquifer
