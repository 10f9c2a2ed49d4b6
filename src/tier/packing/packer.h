// What lies between a block and the bytes that a tier stores: codec and seal. On its way out a
// block is verified against its checksum, made smaller where that was asked for and helps, and
// sealed with its tenant's key; on its way back all of that is undone and the raw bytes are
// verified. Where there is neither codec nor key nothing is copied: the bytes stay where they are.
//
// Pack() and Unpack() are CPU work for workers: any number of threads at once. Each takes an
// encoder and a sealer for itself, which are kept, so that nothing is allocated once as many were
// made as run side by side. All who are given outlive the packer, which outlives the workers'
// tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aquifer/layout.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/mutex.h"
#include "block/block_meta.h"
#include "block/key_source.h"
#include "tier/packing/codec_choice.h"

namespace aquifer {

struct PackerOptions {
  KeySource* keys = nullptr;  // Null: nothing is sealed.
  // How much processor time the codec may take, in cores, over all tiers that share the packer.
  // What comes while it is used up is stored as it is.
  double codec_cores = 1.0;
};

struct PackJob {
  BlockMeta meta;  // codec, stored_bytes, data_key_id, nonce and tag are set.
  std::span<const std::byte> source;
  DType dtype = DType::kUInt8;
  bool lossless = false;  // Try to make it smaller.
  SharedDataKey key;      // Null: not sealed.
  // Needed where it is made smaller or sealed: Packer::ScratchBytes() long.
  std::span<std::byte> scratch;

  // Set by Pack(). kCorrupt: the source does not match its checksum, or its memory is gone.
  Status status;
  // In `source` or in `scratch`: whole pages, with zeros behind stored_bytes where it is scratch.
  std::span<const std::byte> stored;
};

struct UnpackJob {
  BlockMeta meta;               // As its header says.
  std::span<std::byte> target;  // Whole pages; begins with the stored bytes, and then the raw ones.
  SharedDataKey key;            // Null: it is not sealed.

  // Set by Unpack(). kCorrupt: not what was stored. Where the seal did not hold, `target` has
  // nothing of what it would have opened to.
  Status status;
  bool refused_seal = false;  // It was the seal that did not hold.
  bool target_gone = false;   // It was the target's memory; what is stored may be well.
};

class Packer {
 public:
  Packer(const PackerOptions& options, Clock* clock, Random* random);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  bool seals() const { return options_.keys != nullptr; }
  SharedDataKey KeyOf(const TenantId& tenant) const {
    return seals() ? options_.keys->KeyOf(tenant) : nullptr;
  }
  KeySource* keys() const { return options_.keys; }

  // Whether the next block should be tried, for a store that moves so much (0: not known yet): if
  // the budget allows it, always or where LosslessPays(); now and then also where it does not pay,
  // to learn if it still does not. Any thread.
  bool ShouldTryLossless(LosslessUse use, double store_bytes_per_second, DType dtype)
      AQ_EXCLUDES(mutex_);

  // How much scratch a job needs.
  static size_t ScratchBytes(uint64_t raw_bytes, bool lossless, bool sealed);

  void Pack(PackJob* job) AQ_EXCLUDES(mutex_);
  void Unpack(UnpackJob* job) AQ_EXCLUDES(mutex_);

  // What has been measured so far; of no store.
  CodecPace pace() const AQ_EXCLUDES(mutex_);

 private:
  struct Tools;  // Of one thread at a time.

  std::unique_ptr<Tools> TakeTools() AQ_EXCLUDES(mutex_);
  void GiveBack(std::unique_ptr<Tools> tools) AQ_EXCLUDES(mutex_);
  void PackWith(Tools* tools, PackJob* job);
  void Encode(Tools* tools, PackJob* job) AQ_EXCLUDES(mutex_);
  void UnpackWith(Tools* tools, UnpackJob* job);

  const PackerOptions options_;
  Clock* const clock_;
  Random* const random_;

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Tools>> idle_ AQ_GUARDED_BY(mutex_);
  CodecPace pace_ AQ_GUARDED_BY(mutex_);
  CpuBudget budget_ AQ_GUARDED_BY(mutex_);
  uint64_t not_tried_ AQ_GUARDED_BY(mutex_) = 0;  // In a row, because it does not pay.
};

}  // namespace aquifer
