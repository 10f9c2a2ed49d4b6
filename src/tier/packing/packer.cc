#include "tier/packing/packer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "aquifer/checksum.h"
#include "base/check.h"
#include "block/codec/lossless_codec.h"
#include "block/seal.h"
#include "io/disk/disk.h"
#include "io/memory/bus_guard.h"

namespace aquifer {
namespace {

constexpr uint64_t kTryAgainAfter = 64;  // Blocks that were not tried, because it does not pay.

// An average that forgets; the first value counts whole.
void Learn(double* average, double value) {
  *average = *average == 0 ? value : *average + (value - *average) / 8;
}

double PerSecond(uint64_t bytes, int64_t nanos) {
  return static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<int64_t>(nanos, 1));
}

}  // namespace

// Nothing of it is freed between blocks.
struct Packer::Tools {
  explicit Tools(Random* random) : sealer(random) {}

  LosslessEncoder encoder;
  Sealer sealer;
  std::vector<std::byte> encoded;  // What is decoded from; as long as the longest so far.
};

Packer::Packer(const PackerOptions& options, Clock* clock, Random* random)
    : options_(options), clock_(clock), random_(random), budget_(options.codec_cores) {}

Packer::~Packer() = default;

std::unique_ptr<Packer::Tools> Packer::TakeTools() {
  {
    const MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Tools> tools = std::move(idle_.back());
      idle_.pop_back();
      return tools;
    }
  }
  return std::make_unique<Tools>(random_);
}

void Packer::GiveBack(std::unique_ptr<Tools> tools) {
  const MutexLock lock(&mutex_);
  idle_.push_back(std::move(tools));
}

bool Packer::ShouldTryLossless(LosslessUse use, double store_bytes_per_second, DType dtype) {
  if (use == LosslessUse::kNever) return false;
  const bool always = use == LosslessUse::kAlways;
  if (!always && dtype != DType::kBFloat16 && dtype != DType::kFloat16) return false;
  const MutexLock lock(&mutex_);
  CodecPace pace = pace_;
  pace.store_bytes_per_second = store_bytes_per_second;
  const bool pays = always || LosslessPays(pace);
  if (!pays && ++not_tried_ < kTryAgainAfter) return false;
  if (!budget_.MaySpend(clock_->NowNanos())) return false;
  not_tried_ = 0;
  return true;
}

CodecPace Packer::pace() const {
  const MutexLock lock(&mutex_);
  return pace_;
}

size_t Packer::ScratchBytes(uint64_t raw_bytes, bool lossless, bool sealed) {
  if (lossless) return RoundUpToPage(MaxLosslessBytes(raw_bytes));
  return sealed ? RoundUpToPage(raw_bytes) : 0;
}

// ---- Out ----

void Packer::Pack(PackJob* job) {
  AQ_CHECK(job->scratch.size() >=
           ScratchBytes(job->meta.raw_bytes, job->lossless, job->key != nullptr));
  std::unique_ptr<Tools> tools = TakeTools();
  job->status = Status();
  bool good = false;
  // An engine that takes its memory away ends the work in the middle of it; the tools begin
  // afresh with each block.
  const auto work = [&] {
    good = ChecksumOf(job->source.first(job->meta.raw_bytes)) == job->meta.checksum;
    if (good) PackWith(tools.get(), job);
  };
  const Status touched = GuardBusErrors(std::ref(work));
  if (!touched.ok()) {
    job->status = touched;
  } else if (!good) {
    job->status = Status(Code::kCorrupt, "the bytes do not match their checksum");
  }
  GiveBack(std::move(tools));
}

void Packer::PackWith(Tools* tools, PackJob* job) {
  BlockMeta& meta = job->meta;
  meta.codec = Codec::kNone;
  meta.stored_bytes = meta.raw_bytes;
  meta.data_key_id = {};
  meta.nonce = {};
  meta.tag = {};
  job->stored = job->source;
  if (job->lossless) Encode(tools, job);
  const size_t pages = RoundUpToPage(meta.stored_bytes);
  if (job->key != nullptr) {
    SealOp op{.meta = &meta,
              .plain = job->stored.first(meta.stored_bytes),
              .sealed = job->scratch.first(meta.stored_bytes)};
    tools->sealer.Seal(*job->key, {&op, 1});
    job->stored = job->scratch.first(pages);
  }
  if (job->stored.data() == job->scratch.data()) {
    std::memset(job->scratch.data() + meta.stored_bytes, 0, pages - meta.stored_bytes);
  }
}

// What saves no page is stored as it is.
void Packer::Encode(Tools* tools, PackJob* job) {
  BlockMeta& meta = job->meta;
  const int64_t begin = clock_->NowNanos();
  const size_t encoded =
      tools->encoder.Encode(job->dtype, job->source.first(meta.raw_bytes), job->scratch);
  const int64_t nanos = clock_->NowNanos() - begin;
  {
    const MutexLock lock(&mutex_);
    budget_.Spend(nanos);
    Learn(&pace_.encode_bytes_per_second, PerSecond(meta.raw_bytes, nanos));
    Learn(&pace_.ratio,
          std::min(1.0, static_cast<double>(encoded) / static_cast<double>(meta.raw_bytes)));
  }
  if (RoundUpToPage(encoded) >= RoundUpToPage(meta.raw_bytes)) return;
  meta.codec = Codec::kLossless;
  meta.stored_bytes = encoded;
  job->stored = job->scratch.first(RoundUpToPage(encoded));
}

// ---- Back ----

void Packer::Unpack(UnpackJob* job) {
  AQ_CHECK(job->target.size() >= RoundUpToPage(job->meta.raw_bytes));
  std::unique_ptr<Tools> tools = TakeTools();
  if (job->meta.codec == Codec::kLossless && tools->encoded.size() < job->meta.stored_bytes) {
    tools->encoded.resize(job->meta.stored_bytes);
  }
  job->status = Status();
  const auto work = [&] { UnpackWith(tools.get(), job); };
  const Status touched = GuardBusErrors(std::ref(work));
  if (!touched.ok()) {
    job->status = touched;
    job->target_gone = true;
  }
  GiveBack(std::move(tools));
}

void Packer::UnpackWith(Tools* tools, UnpackJob* job) {
  const BlockMeta& meta = job->meta;
  const bool encoded = meta.codec == Codec::kLossless;
  const std::span<std::byte> stored = job->target.first(meta.stored_bytes);
  const std::span<std::byte> raw = job->target.first(meta.raw_bytes);
  const std::span<std::byte> plain =
      encoded ? std::span(tools->encoded).first(meta.stored_bytes) : stored;
  if (job->key != nullptr) {
    OpenOp op{.meta = &meta, .sealed = stored, .plain = plain, .status = {}};
    tools->sealer.Open(*job->key, {&op, 1});
    if (!op.status.ok()) {
      job->status = op.status;
      job->refused_seal = true;
      return;
    }
  } else if (encoded) {
    std::memcpy(plain.data(), stored.data(), stored.size());
  }
  if (encoded) {
    const int64_t begin = clock_->NowNanos();
    job->status = DecodeLossless(plain, raw);
    if (!job->status.ok()) return;
    const int64_t nanos = clock_->NowNanos() - begin;
    const MutexLock lock(&mutex_);
    Learn(&pace_.decode_bytes_per_second, PerSecond(raw.size(), nanos));
  }
  if (ChecksumOf(raw) != meta.checksum) {
    job->status = Status(Code::kCorrupt, "the checksum does not match what was stored");
  }
}

}  // namespace aquifer
