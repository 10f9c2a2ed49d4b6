// How fast blocks become smaller and whole again, against copying them, and how much smaller.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "bench/bench_row.h"
#include "bench/kv_values.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/other_codec.h"
#include "block/codec/lossless_codec.h"
#include "block/codec/lossless_kernel.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;
constexpr size_t kBlocks = 64;          // Beyond the caches.
constexpr size_t kDifferentBlocks = 8;  // Making values is slow.

class OurCodec final : public OtherCodec {
 public:
  std::string name() const override { return "ours"; }
  size_t MaxBytes(size_t raw_bytes) const override { return MaxLosslessBytes(raw_bytes); }
  size_t Encode(std::span<const std::byte> raw, std::span<std::byte> stored) override {
    return encoder_.Encode(DType::kBFloat16, raw, stored);
  }
  bool Decode(std::span<const std::byte> stored, std::span<std::byte> raw) override {
    return DecodeLossless(stored, raw).ok();
  }

 private:
  LosslessEncoder encoder_;
};

// One codec, and what it made of the blocks the last time.
struct Contender {
  std::unique_ptr<OtherCodec> codec;
  BenchMemory stored{};
  uint64_t slot_bytes = 0;
  std::vector<size_t> stored_bytes{};

  std::span<std::byte> Slot(size_t block) const {
    return stored.bytes().subspan(block * slot_bytes, slot_bytes);
  }
  double Ratio() const {
    uint64_t total = 0;
    for (const size_t bytes : stored_bytes) total += bytes;
    return static_cast<double>(kBlocks * kBlockBytes) / static_cast<double>(total);
  }
};

class CodecContest final : public Contest {
 public:
  static Result<std::unique_ptr<Contest>> New(bool decodes) {
    auto contest = std::make_unique<CodecContest>(decodes);
    AQ_ASSIGN_OR_RETURN(contest->raw_, BenchMemory::New(kBlocks * kBlockBytes));
    AQ_ASSIGN_OR_RETURN(contest->target_, BenchMemory::New(kBlocks * kBlockBytes));
    const std::span<std::byte> raw = contest->raw_.bytes();
    for (size_t i = 0; i < kBlocks; ++i) {
      const std::span<std::byte> block = raw.subspan(i * kBlockBytes, kBlockBytes);
      if (i < kDifferentBlocks) {
        FillLikeKv(block, i + 1);
      } else {
        std::memcpy(block.data(), raw.data() + i % kDifferentBlocks * kBlockBytes, kBlockBytes);
      }
    }
    OtherCodecs codecs;
    codecs.push_back(std::make_unique<OurCodec>());
    AddZstdCodecs(&codecs);
    AddLz4Codec(&codecs);
    for (auto& codec : codecs) {
      Contender contender{.codec = std::move(codec)};
      contender.slot_bytes = (contender.codec->MaxBytes(kBlockBytes) + 63) / 64 * 64;
      contender.stored_bytes.resize(kBlocks);
      AQ_ASSIGN_OR_RETURN(contender.stored, BenchMemory::New(kBlocks * contender.slot_bytes));
      contest->contenders_.push_back(std::move(contender));
      AQ_RETURN_IF_ERROR(contest->EncodeAll(&contest->contenders_.back()));
      AQ_RETURN_IF_ERROR(contest->Prove(contest->contenders_.back()));
    }
    return std::unique_ptr<Contest>(std::move(contest));
  }

  explicit CodecContest(bool decodes) : decodes_(decodes) {}

  Result<double> Limit() override {
    const Stopwatch watch;
    for (size_t i = 0; i < kBlocks; ++i) {
      std::memcpy(Target(i).data(), Raw(i).data(), kBlockBytes);
    }
    return GigabytesPerSecond(kBlocks * kBlockBytes, watch.Seconds());
  }

  Result<double> Ours() override { return Measure(&contenders_.front()); }

  std::vector<std::string> PeerNames() const override {
    std::vector<std::string> names;
    for (size_t i = 1; i < contenders_.size(); ++i) names.push_back(contenders_[i].codec->name());
    return names;
  }
  Result<double> Peer(size_t peer) override { return Measure(&contenders_[peer + 1]); }

  std::string Note() const override {
    std::string note =
        fmt::format("bf16 with the statistics of KV; with the {} loops; times smaller:",
                    CurrentLosslessKernel().name);
    for (const Contender& contender : contenders_) {
      note += fmt::format("{} {} {:.3f}", &contender == contenders_.data() ? "" : ",",
                          contender.codec->name(), contender.Ratio());
    }
    return note;
  }

 private:
  std::span<const std::byte> Raw(size_t block) const {
    return raw_.bytes().subspan(block * kBlockBytes, kBlockBytes);
  }
  std::span<std::byte> Target(size_t block) const {
    return target_.bytes().subspan(block * kBlockBytes, kBlockBytes);
  }

  Status EncodeAll(Contender* contender) const {
    for (size_t i = 0; i < kBlocks; ++i) {
      contender->stored_bytes[i] = contender->codec->Encode(Raw(i), contender->Slot(i));
      if (contender->stored_bytes[i] == 0) {
        return Status(Code::kInvalid, contender->codec->name() + " could not encode a block");
      }
    }
    return Status();
  }

  Status DecodeAll(const Contender& contender) const {
    for (size_t i = 0; i < kBlocks; ++i) {
      if (!contender.codec->Decode(contender.Slot(i).first(contender.stored_bytes[i]), Target(i))) {
        return Status(Code::kCorrupt, contender.codec->name() + " could not decode a block");
      }
    }
    return Status();
  }

  // Nobody is measured whose bytes do not come back.
  Status Prove(const Contender& contender) const {
    AQ_RETURN_IF_ERROR(DecodeAll(contender));
    if (std::memcmp(raw_.data(), target_.data(), kBlocks * kBlockBytes) == 0) return Status();
    return Status(Code::kCorrupt, contender.codec->name() + " gave back other bytes");
  }

  Result<double> Measure(Contender* contender) {
    const Stopwatch watch;
    AQ_RETURN_IF_ERROR(decodes_ ? DecodeAll(*contender) : EncodeAll(contender));
    return GigabytesPerSecond(kBlocks * kBlockBytes, watch.Seconds());
  }

  const bool decodes_;
  BenchMemory raw_;
  BenchMemory target_;
  std::vector<Contender> contenders_;  // Ours is the first.
};

Row CodecRow(const std::string& name, double goal, bool decodes) {
  return {.name = name,
          .unit = "GB/s",
          .limit_is =
              "one memcpy of the raw blocks of 2 MiB; all figures are of raw bytes, on one core",
          .goal = goal,
          .prepare = [decodes](const BenchEnvironment&) { return CodecContest::New(decodes); },
          .rounds = 15,
          .quick_rounds = 5};
}

}  // namespace

void AddCodecRows(std::vector<Row>* rows) {
  rows->push_back(CodecRow("codec.lossless", 0.25, false));
  rows->push_back(CodecRow("codec.lossless.decode", 0.60, true));
}

}  // namespace aquifer
