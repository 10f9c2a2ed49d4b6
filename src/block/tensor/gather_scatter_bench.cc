// How fast blocks are copied and summed between pages and slots, beside one memcpy of the same
// bytes in the same run: `of_memcpy` is memcpy's time over ours. Llama 8B, bf16: 128 KiB a token,
// blocks of 64 tokens and 8 MiB. Pages lie in any order and, like the slots, in more memory than
// caches hold. Ratios above 1 are real: copies of 16 KiB and more write around the caches, which a
// memcpy of 8 MiB does not.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>

#include "base/check.h"
#include "block/tensor/engine_families.h"
#include "block/tensor/gather_scatter.h"

namespace aquifer {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{256} << 20;
constexpr uint32_t kLayers = 32;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;
constexpr uint32_t kElementBytes = 2;
constexpr uint64_t kTokenBytes = uint64_t{kLayers} * 2 * kHeads * kDim * kElementBytes;

// Filled at first use, so that no run pays for page faults.
std::span<std::byte> Pool(int which) {
  static std::byte* pools[3] = {};
  if (pools[which] == nullptr) {
    void* memory =
        mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    AQ_CHECK(memory != MAP_FAILED);
    madvise(memory, kPoolBytes, MADV_HUGEPAGE);
    pools[which] = static_cast<std::byte*>(memory);
    for (uint64_t i = 0; i < kPoolBytes; ++i) pools[which][i] = static_cast<std::byte>(i * 37 >> 3);
  }
  return {pools[which], kPoolBytes};
}

// Strides of a tensor whose dimensions lie in memory in `order`, outermost first.
EngineTensor Tensor(const std::vector<uint64_t>& shape, const std::vector<size_t>& order) {
  EngineTensor tensor{.memory = Pool(0),
                      .shape = shape,
                      .strides = std::vector<uint64_t>(shape.size()),
                      .element_bytes = kElementBytes};
  uint64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    tensor.strides[order[i]] = stride;
    stride *= shape[order[i]];
  }
  AQ_CHECK(stride * kElementBytes <= kPoolBytes);
  return tensor;
}

struct Subject {
  Layout layout;
  EngineMap map;
  std::vector<uint32_t> page_table;
};

enum Family { kNhd, kHnd, kFusedHnd, kFusedNhd, kCrossLayer, kPacked };

Result<EngineLayout> Describe(const EngineGroup& group, Family family, uint64_t pages,
                              uint64_t page_tokens) {
  const std::vector<uint64_t> five = {kLayers, pages, kHeads, page_tokens, uint64_t{2} * kDim};
  const std::vector<uint64_t> six = {kLayers, pages, 2, page_tokens, kHeads, kDim};
  const auto layers = [](const EngineTensor& all) { return *LayersOf(all); };
  switch (family) {
    case kNhd:
      return VllmPageFirst(group, layers(Tensor(six, {0, 1, 2, 3, 4, 5})));
    case kHnd:
      return VllmPageFirst(group, layers(Tensor(six, {0, 1, 2, 4, 3, 5})));
    case kFusedHnd:
      return VllmFused(group, layers(Tensor(five, {0, 1, 2, 3, 4})));
    case kFusedNhd:
      return VllmFused(group, layers(Tensor(five, {0, 1, 3, 2, 4})));
    case kCrossLayer:
      return VllmPageFirst(group, layers(Tensor(six, {1, 0, 2, 4, 3, 5})));
    case kPacked:
      return VllmCpuPacked(group, layers(Tensor(five, {0, 1, 2, 3, 4})));
  }
  return Status(Code::kInvalid);
}

Subject MakeSubject(Family family, const benchmark::State& state) {
  const auto page_tokens = static_cast<uint64_t>(state.range(0));
  for (const int which : {0, 1, 2}) Pool(which);
  Subject subject;
  subject.layout.kv_format = "bench";
  subject.layout.tokens_per_block = static_cast<uint32_t>(std::max<uint64_t>(64, page_tokens));
  KvGroup group;
  group.layers = kLayers;
  group.kv_heads = kHeads;
  group.key_dim = group.value_dim = kDim;
  subject.layout.groups = {group};
  const uint64_t pages = kPoolBytes / (page_tokens * kTokenBytes);
  const auto engine = Describe({.layout = &subject.layout, .group = 0, .heads = {0, kHeads}},
                               family, pages, page_tokens);
  AQ_CHECK(engine.ok());
  auto map = CompileEngineLayout(subject.layout, 0, *engine);
  AQ_CHECK(map.ok());
  subject.map = *std::move(map);
  subject.page_table.resize(pages);
  std::iota(subject.page_table.begin(), subject.page_table.end(), 0u);
  std::shuffle(subject.page_table.begin(), subject.page_table.end(), std::mt19937(7));
  return subject;
}

// This thread's own, so that what else runs on the machine counts less.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// `work` on one block after the other, each time next to a memcpy of as many bytes.
template <class Work>
void Compare(benchmark::State& state, const Subject& subject, const Work& work) {
  const uint64_t block_bytes = subject.map.block_bytes;
  const uint64_t blocks = kPoolBytes / block_bytes;
  double ours = 0;
  double limit = 0;
  uint64_t at = 0;
  for (auto _ : state) {
    const double begin = CpuSeconds();
    work(BlockPlace{subject.page_table, at}, Pool(1).subspan(at * block_bytes, block_bytes));
    const double seconds = CpuSeconds() - begin;
    state.SetIterationTime(seconds);
    ours += seconds;
    const double copy_begin = CpuSeconds();
    const uint64_t other = (at + blocks / 2) % blocks;
    std::memcpy(Pool(2).data() + other * block_bytes, Pool(0).data() + other * block_bytes,
                block_bytes);
    benchmark::ClobberMemory();
    limit += CpuSeconds() - copy_begin;
    at = (at + 1) % blocks;
  }
  const auto bytes = static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(block_bytes);
  state.SetBytesProcessed(bytes);
  state.counters["memcpy_gb_s"] = static_cast<double>(bytes) / limit / 1e9;
  state.counters["of_memcpy"] = limit / ours;
  uint64_t run_bytes = UINT64_MAX;
  for (const Piece& piece : subject.map.pieces) run_bytes = std::min(run_bytes, piece.run_bytes);
  state.counters["run_bytes"] = static_cast<double>(run_bytes);
  state.counters["pieces"] = static_cast<double>(subject.map.pieces.size());
}

void GatherBench(benchmark::State& state, Family family) {
  const Subject subject = MakeSubject(family, state);
  Compare(state, subject, [&](const BlockPlace& place, std::span<std::byte> slot) {
    GatherOp op;
    op.place = place;
    op.slot = slot;
    Gather(subject.map, {&op, 1});
    benchmark::DoNotOptimize(op.sums);
  });
}

void ScatterBench(benchmark::State& state, Family family) {
  const Subject subject = MakeSubject(family, state);
  Compare(state, subject, [&](const BlockPlace& place, std::span<std::byte> slot) {
    ScatterOp op;
    op.place = place;
    op.slot = slot;
    Scatter(subject.map, Verify::kWhileCopying, {&op, 1});
    benchmark::DoNotOptimize(op.sums);
  });
}

// The argument is the tokens of a page.
#define AQ_FAMILY(name, family, ...)            \
  BENCHMARK_CAPTURE(GatherBench, name, family)  \
      ->ArgsProduct({{__VA_ARGS__}})            \
      ->UseManualTime()                         \
      ->Unit(benchmark::kMicrosecond);          \
  BENCHMARK_CAPTURE(ScatterBench, name, family) \
      ->ArgsProduct({{__VA_ARGS__}})            \
      ->UseManualTime()                         \
      ->Unit(benchmark::kMicrosecond)

AQ_FAMILY(Nhd, kNhd, 16, 64);
AQ_FAMILY(FusedNhd, kFusedNhd, 16);
AQ_FAMILY(FusedHnd, kFusedHnd, 16);
AQ_FAMILY(Hnd, kHnd, 4, 8, 16, 32, 64);
AQ_FAMILY(CrossLayerHnd, kCrossLayer, 16, 64);
AQ_FAMILY(CpuPacked, kPacked, 32, 64, 128);

}  // namespace
}  // namespace aquifer
