// Measures the cost of a frame through a ring, beside one copy of the same bytes.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "net/local/byte_ring.h"
#include "net/protocol/frame.h"

namespace aquifer {
namespace {

constexpr size_t kDataBytes = size_t{1} << 20;

void BM_WriteAndRead(benchmark::State& state) {
  std::unique_ptr<std::byte[]> memory(new (std::align_val_t{4096})
                                          std::byte[RingBytes(kDataBytes)]);
  const std::span<std::byte> bytes(memory.get(), RingBytes(kDataBytes));
  FormatRing(bytes, kDataBytes);
  RingWriter writer(bytes);
  RingReader reader(bytes);
  FrameWriter frame;
  frame.Begin(1, 1);
  for (int64_t i = 0; i < state.range(0) / 8; ++i) frame.U64(0);
  const std::span<const std::byte> sent = frame.Finish();
  std::vector<std::byte> got;
  for (auto _ : state) {
    benchmark::DoNotOptimize(writer.Write(sent).ok() && reader.Read(&got).ok());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * sent.size()));
  ::operator delete[](memory.release(), std::align_val_t{4096});
}
BENCHMARK(BM_WriteAndRead)->Arg(0)->Arg(1 << 10)->Arg(32 << 10);

void BM_Copy(benchmark::State& state) {
  const std::vector<std::byte> from(static_cast<size_t>(state.range(0)) + kFrameHeaderBytes);
  std::vector<std::byte> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * from.size()));
}
BENCHMARK(BM_Copy)->Arg(0)->Arg(1 << 10)->Arg(32 << 10);

}  // namespace
}  // namespace aquifer
