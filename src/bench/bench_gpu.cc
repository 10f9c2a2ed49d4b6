// Blocks between a GPU's pages and pinned slots, against one long copy between the same memories;
// and against what engines do without us: a copy a piece, a batch of copies, PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/text/size_text.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/peer_program.h"
#include "cuda/block_mover.h"
#include "cuda/cuda_device.h"
#include "cuda/host_pins.h"

namespace aquifer {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = kKiB * 1024;
constexpr uint64_t kBlockBytes = 2 * kMiB;  // Llama-3-8B's: 16 tokens.
constexpr uint32_t kBlocks = 512;           // One round moves 1 GiB.
constexpr uint64_t kRoundBytes = kBlocks * kBlockBytes;
constexpr uint64_t kPinBytes = 64 * kMiB;  // As the node's extents.
constexpr size_t kBatchBlocks = 64;

enum class Way : uint8_t { kLoad, kStore, kBoth };

// Every block's pieces, all over the GPU's memory: a page of each plane.
Layout PiecesLayout(uint64_t piece_bytes) {
  return {.tokens_per_block = 16,
          .groups = {{.layers = static_cast<uint32_t>(kBlockBytes / piece_bytes),
                      .kv_heads = 1,
                      .key_dim = 64,
                      .value_dim = 64,
                      .opaque_bytes = kBlockBytes}},
          .kv_format = "bench"};
}

EngineLayout PiecesEngine(uint64_t piece_bytes, std::byte* memory) {
  EngineLayout engine{.planes = {}, .heads = {.begin = 0, .end = 1}, .pages = kBlocks};
  engine.page_tokens = 16;
  engine.opaque_page_bytes = piece_bytes;
  for (uint64_t plane = 0; plane < kBlockBytes / piece_bytes; ++plane) {
    engine.planes.push_back({.base = memory + plane * piece_bytes * kBlocks,
                             .bytes = piece_bytes * kBlocks,
                             .page_stride = piece_bytes});
  }
  return engine;
}

// Llama-3-8B as vLLM keeps it by default: in a page token after token, so that the vectors of a
// head, which are together in a block, lie 2 KiB apart.
Layout LlamaLayout() {
  return {.tokens_per_block = 16,
          .groups = {{.layers = 32, .kv_heads = 8, .key_dim = 128, .value_dim = 128}},
          .kv_format = "bench"};
}

EngineLayout LlamaEngine(std::byte* memory) {
  constexpr uint64_t kVectorBytes = 256;
  constexpr uint64_t kTokenBytes = 8 * kVectorBytes;
  constexpr uint64_t kPageBytes = 16 * kTokenBytes;
  EngineLayout engine{.planes = {}, .heads = {.begin = 0, .end = 8}, .pages = kBlocks};
  engine.page_tokens = 16;
  for (uint64_t plane = 0; plane < 64; ++plane) {
    engine.planes.push_back({.base = memory + plane * kPageBytes * kBlocks,
                             .bytes = kPageBytes * kBlocks,
                             .page_stride = kPageBytes,
                             .head_stride = kVectorBytes,
                             .token_stride = kTokenBytes});
  }
  return engine;
}

// A GPU with KV, and slots for it: one of each for loads and one for stores. Made once and used by
// all rows, since pinning takes long.
class GpuBench {
 public:
  static Result<std::unique_ptr<GpuBench>> New();

  struct Side {
    BenchMemory slots;
    uint64_t pages = 0;  // On the device.
    std::unique_ptr<BlockMover> mover;
    GpuDevice::Queue queue = 0;  // For plain copies.
  };

  GpuDevice* device() { return device_.get(); }
  Side* side(bool load) { return load ? &load_ : &store_; }
  // Scattered, both in the slots' memory and in the pages'.
  const std::vector<uint32_t>& order() const { return order_; }
  const std::vector<uint32_t>& page_table() const { return page_table_; }
  const Checksum& checksum(uint32_t block) const { return checksums_[block]; }
  std::span<std::byte> Slot(Side* side, uint32_t block) const {
    return side->slots.bytes().subspan(order_[block] * kBlockBytes, kBlockBytes);
  }

 private:
  Status Prepare(Side* side);

  std::unique_ptr<GpuDevice> device_;
  HostPins pins_;
  Side load_;
  Side store_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> page_table_;
  std::vector<Checksum> checksums_;
};

// The same on every run.
std::vector<uint32_t> Scattered(uint64_t step) {
  std::vector<uint32_t> order(kBlocks);
  for (uint64_t i = 0; i < kBlocks; ++i) order[i] = static_cast<uint32_t>(i * step % kBlocks);
  return order;
}

Result<std::unique_ptr<GpuBench>> GpuBench::New() {
  auto made = std::make_unique<GpuBench>();
  AQ_ASSIGN_OR_RETURN(made->device_, NewCudaDevice(0));
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<GpuDevice> pinning, NewCudaDevice(0));
  made->pins_.Use(std::move(pinning));
  made->order_ = Scattered(201);  // Odd: every block once.
  made->page_table_ = Scattered(307);
  for (Side* const side : {&made->load_, &made->store_}) AQ_RETURN_IF_ERROR(made->Prepare(side));
  for (uint32_t i = 0; i < kBlocks; ++i) {
    made->checksums_.push_back(ChecksumOf(made->Slot(&made->load_, i)));
  }
  while (made->pins_.counts().waiting > 0) {
  }
  AQ_RETURN_IF_ERROR(made->pins_.failure());
  return made;
}

Status GpuBench::Prepare(Side* side) {
  AQ_ASSIGN_OR_RETURN(side->slots, BenchMemory::New(kRoundBytes));
  FillFromSeed(side->slots.bytes(), 1);
  for (uint64_t at = 0; at < kRoundBytes; at += kPinBytes) {
    pins_.Add(side->slots.bytes().subspan(at, kPinBytes));
  }
  AQ_ASSIGN_OR_RETURN(side->pages, device_->NewDeviceMemory(kRoundBytes));
  AQ_ASSIGN_OR_RETURN(side->queue, device_->NewQueue());
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<GpuDevice> moving, NewCudaDevice(0));
  AQ_ASSIGN_OR_RETURN(side->mover, BlockMover::New(std::move(moving), &pins_));
  return Status();
}

// Rows share it; it is made when the first of them is measured.
class SharedGpuBench {
 public:
  Result<GpuBench*> Get() {
    if (bench_ == nullptr) {
      AQ_ASSIGN_OR_RETURN(bench_, GpuBench::New());
    }
    return bench_.get();
  }
  Result<PeerProgram*> Torch() {
    if (torch_ == nullptr && torch_status_.ok()) {
      Result<std::unique_ptr<PeerProgram>> made = StartTorch();
      if (made.ok()) {
        torch_ = *std::move(made);
      } else {
        torch_status_ = made.status();
        fmt::print(stderr, "aquifer bench: without torch: {}\n", torch_status_.message());
      }
    }
    if (torch_ == nullptr) return torch_status_;
    return torch_.get();
  }

 private:
  std::unique_ptr<GpuBench> bench_;
  std::unique_ptr<PeerProgram> torch_;
  Status torch_status_;
};

struct Shape {
  std::string name;
  uint64_t piece_bytes = 0;  // 0: Llama as vLLM has it.
};

// One direction of a round, in batches as an engine's requests come.
class MovingSide {
 public:
  MovingSide(GpuBench* bench, bool load, const Shape& shape) : bench_(bench), load_(load) {
    auto* const memory = reinterpret_cast<std::byte*>(bench->side(load)->pages);
    const bool llama = shape.piece_bytes == 0;
    Result<EngineMap> map =
        CompileEngineLayout(llama ? LlamaLayout() : PiecesLayout(shape.piece_bytes), 0,
                            llama ? LlamaEngine(memory) : PiecesEngine(shape.piece_bytes, memory));
    AQ_CHECK(map.ok());
    tables_ = MakeMoveTables(*map);
  }

  void Begin(bool summed) {
    const size_t batches = kBlocks / kBatchBlocks;
    gathers_.assign(load_ ? 0 : kBlocks, {});
    scatters_.assign(load_ ? kBlocks : 0, {});
    batches_.assign(batches, {});
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const BlockPlace place{.page_table = bench_->page_table(), .index = i};
      const std::span<std::byte> slot = bench_->Slot(side(), i);
      if (load_) {
        scatters_[i].place = place;
        scatters_[i].slot = slot;
        scatters_[i].checksum = bench_->checksum(i);
      } else {
        gathers_[i].place = place;
        gathers_[i].slot = slot;
      }
    }
    for (size_t i = 0; i < batches; ++i) {
      MoveBatch& batch = batches_[i];
      batch.tables = &tables_;
      batch.summed = summed;
      batch.verify = summed ? Verify::kWhileCopying : Verify::kNever;
      const size_t first = i * kBatchBlocks;
      if (load_) {
        batch.scatters = std::span(scatters_).subspan(first, kBatchBlocks);
      } else {
        batch.gathers = std::span(gathers_).subspan(first, kBatchBlocks);
      }
      side()->mover->Begin(&batch);
    }
  }

  bool Poll() {
    side()->mover->Poll();
    return batches_.back().done();
  }

  Status Check() const {
    for (const ScatterOp& op : scatters_) AQ_RETURN_IF_ERROR(op.status);
    for (const GatherOp& op : gathers_) AQ_RETURN_IF_ERROR(op.status);
    return Status();
  }

  // The same pieces as single copies.
  void ListCopies(std::vector<GpuCopy>* copies) const {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const auto slot = reinterpret_cast<uint64_t>(bench_->Slot(side(), i).data());
      for (const Piece& piece : tables_.map.pieces) {
        uint64_t host = slot + piece.block_offset;
        const uint64_t page =
            reinterpret_cast<uint64_t>(piece.base) + bench_->page_table()[i] * piece.page_stride;
        for (uint32_t head = 0; head < piece.heads; ++head) {
          for (uint32_t run = 0; run < piece.runs; ++run) {
            const uint64_t engine = page + head * piece.head_stride + run * piece.run_stride;
            copies->push_back({.to = load_ ? engine : host,
                               .from = load_ ? host : engine,
                               .bytes = piece.run_bytes});
            host += piece.run_bytes;
          }
        }
      }
    }
  }

  // As one copy would be, but for the borders of what is pinned.
  Status CopyLong() const {
    const auto host = reinterpret_cast<uint64_t>(side()->slots.data());
    for (uint64_t at = 0; at < kRoundBytes; at += kPinBytes) {
      const GpuCopy copy{.to = load_ ? side()->pages + at : host + at,
                         .from = load_ ? host + at : side()->pages + at,
                         .bytes = kPinBytes};
      AQ_RETURN_IF_ERROR(bench_->device()->Copy(side()->queue, std::span(&copy, 1)));
    }
    return Status();
  }

  GpuBench::Side* side() const { return bench_->side(load_); }

 private:
  GpuBench* const bench_;
  const bool load_;
  MoveTables tables_;
  std::vector<GatherOp> gathers_;
  std::vector<ScatterOp> scatters_;
  std::vector<MoveBatch> batches_;
};

class MoveContest final : public Contest {
 public:
  MoveContest(GpuBench* bench, Way way, const Shape& shape, PeerProgram* torch)
      : bench_(bench), torch_(torch), piece_bytes_(shape.piece_bytes) {
    if (way != Way::kStore) sides_.push_back(std::make_unique<MovingSide>(bench, true, shape));
    if (way != Way::kLoad) sides_.push_back(std::make_unique<MovingSide>(bench, false, shape));
    load_ = way == Way::kLoad;
    // Copies of 256 bytes each would take a minute a round.
    if (way != Way::kBoth && piece_bytes_ != 0) sides_[0]->ListCopies(&copies_);
  }

  Result<double> Limit() override {
    const Stopwatch watch;
    for (const auto& side : sides_) AQ_RETURN_IF_ERROR(side->CopyLong());
    bench_->device()->Drain();
    return Rate(watch);
  }

  Result<double> Ours() override { return Move(/*summed=*/true); }

  Result<double> Move(bool summed) {
    const Stopwatch watch;
    for (const auto& side : sides_) side->Begin(summed);
    bool done = false;
    while (!done) {
      done = true;
      for (const auto& side : sides_) done = side->Poll() && done;
    }
    const double rate = Rate(watch);
    for (const auto& side : sides_) AQ_RETURN_IF_ERROR(side->Check());
    return rate;
  }

  std::vector<std::string> PeerNames() const override {
    if (copies_.empty()) return {};
    std::vector<std::string> names = {"cudaMemcpyAsync", "cudaMemcpyBatchAsync"};
    if (torch_ != nullptr) names.emplace_back("torch index_select");
    return names;
  }

  Result<double> Peer(size_t peer) override {
    if (peer == 2) return torch_->Ask(fmt::format("{} {}", load_ ? "load" : "store", piece_bytes_));
    const Stopwatch watch;
    const size_t each = peer == 0 ? 1 : copies_.size() / kBlocks * kBatchBlocks;
    for (size_t at = 0; at < copies_.size(); at += each) {
      AQ_RETURN_IF_ERROR(
          bench_->device()->Copy(sides_[0]->side()->queue, std::span(copies_).subspan(at, each)));
    }
    bench_->device()->Drain();
    return Rate(watch);
  }

 private:
  double Rate(const Stopwatch& watch) const {
    return GigabytesPerSecond(kRoundBytes * sides_.size(), watch.Seconds());
  }

  GpuBench* const bench_;
  PeerProgram* const torch_;
  const uint64_t piece_bytes_;
  bool load_ = false;
  std::vector<std::unique_ptr<MovingSide>> sides_;
  std::vector<GpuCopy> copies_;
};

// With sums against without.
class SumsContest final : public Contest {
 public:
  SumsContest(GpuBench* bench, Way way) : moves_(bench, way, {}, nullptr) {}

  Result<double> Limit() override { return moves_.Move(/*summed=*/false); }
  Result<double> Ours() override { return moves_.Move(/*summed=*/true); }

 private:
  MoveContest moves_;
};

constexpr const char* kWayNames[] = {"load", "store", "both"};
constexpr const char* kLimits[] = {
    "one long copy from pinned memory to the GPU",
    "one long copy from the GPU to pinned memory",
    "two long copies at once, one each way",
};
constexpr double kGoals[] = {0.93, 0.93, 0.90};

}  // namespace

void AddGpuRows(std::vector<Row>* rows) {
  if (!DescribeCudaDevice(0).ok()) return;
  const auto shared = std::make_shared<SharedGpuBench>();  // The rows' own.
  std::vector<Shape> shapes;
  for (const uint64_t kib : {16, 32, 64, 256, 2048}) {
    shapes.push_back({.name = SizeText(kib * kKiB), .piece_bytes = kib * kKiB});
  }
  shapes.push_back({.name = "vllm-8b", .piece_bytes = 0});
  for (const Way way : {Way::kLoad, Way::kStore, Way::kBoth}) {
    const auto index = static_cast<size_t>(way);
    for (const Shape& shape : shapes) {
      rows->push_back({.name = fmt::format("gpu.{}/{}", kWayNames[index], shape.name),
                       .unit = "GB/s",
                       .limit_is = kLimits[index],
                       .goal = kGoals[index],
                       .prepare = [=](const BenchEnvironment& /*environment*/)
                           -> Result<std::unique_ptr<Contest>> {
                         AQ_ASSIGN_OR_RETURN(GpuBench* const bench, shared->Get());
                         const Result<PeerProgram*> torch = shared->Torch();
                         return std::unique_ptr<Contest>(std::make_unique<MoveContest>(
                             bench, way, shape, torch.ok() ? *torch : nullptr));
                       },
                       .rounds = 7,
                       .quick_rounds = 3});
    }
  }
  for (const Way way : {Way::kLoad, Way::kStore}) {
    rows->push_back({.name = fmt::format("gpu.sums/{}", kWayNames[static_cast<size_t>(way)]),
                     .unit = "GB/s",
                     .limit_is = "the same without checksums",
                     .goal = 0.98,
                     .prepare = [=](const BenchEnvironment& /*environment*/)
                         -> Result<std::unique_ptr<Contest>> {
                       AQ_ASSIGN_OR_RETURN(GpuBench* const bench, shared->Get());
                       return std::unique_ptr<Contest>(std::make_unique<SumsContest>(bench, way));
                     },
                     .rounds = 7,
                     .quick_rounds = 3});
  }
}

}  // namespace aquifer
