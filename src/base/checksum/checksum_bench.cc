// How fast blocks are summed and copied, beside the limits of the same run: a plain read and a
// memcpy. "Cached" works on one block again and again; "Memory" walks over more memory than any
// cache holds, as blocks coming from DRAM do.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>
#include <string>

#include "base/check.h"
#include "base/checksum/checksum_kernel.h"

namespace aquifer {
namespace {

constexpr size_t kPoolBytes = size_t{256} << 20;

// Filled at first use, so that no run pays for page faults.
std::byte* Pool(int which) {
  static std::byte* pools[2] = {};
  if (pools[which] == nullptr) {
    void* memory =
        mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    AQ_CHECK(memory != MAP_FAILED);
    pools[which] = static_cast<std::byte*>(memory);
    for (size_t i = 0; i < kPoolBytes; ++i) pools[which][i] = static_cast<std::byte>(i * 37 >> 3);
  }
  return pools[which];
}

template <class Work>
void Walk(benchmark::State& state, bool cached, const Work& work) {
  const auto block_bytes = static_cast<size_t>(state.range(0));
  const std::byte* source = Pool(0);
  std::byte* target = Pool(1);
  size_t at = 0;
  for (auto _ : state) {
    work(std::span(source + at, block_bytes), target + at);
    if (!cached) at = at + 2 * block_bytes <= kPoolBytes ? at + block_bytes : 0;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}

void Read(std::span<const std::byte> block, std::byte*) {
  using Words = uint64_t __attribute__((vector_size(64)));
  const auto* words = reinterpret_cast<const Words*>(block.data());
  Words sums[4] = {};
  for (size_t i = 0; i < block.size() / sizeof(Words); i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j] ^= words[i + j];
  }
  benchmark::DoNotOptimize(sums);
}

void Copy(std::span<const std::byte> block, std::byte* target) {
  std::memcpy(target, block.data(), block.size());
  benchmark::ClobberMemory();
}

void Register(const std::string& name, void (*work)(std::span<const std::byte>, std::byte*)) {
  for (const bool cached : {true, false}) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}", name, cached ? "Cached" : "Memory").c_str(),
                                 [=](benchmark::State& state) { Walk(state, cached, work); })
        ->Arg(4 << 10)
        ->Arg(16 << 10)
        ->Arg(64 << 10)
        ->Arg(2 << 20);
  }
}

void RegisterKernel(const ChecksumKernel& kernel) {
  for (const bool cached : {true, false}) {
    const auto add = [&](const char* verb, auto work) {
      benchmark::RegisterBenchmark(
          fmt::format("{}_{}/{}", verb, kernel.name, cached ? "Cached" : "Memory").c_str(),
          [=](benchmark::State& state) { Walk(state, cached, work); })
          ->Arg(4 << 10)
          ->Arg(16 << 10)
          ->Arg(64 << 10)
          ->Arg(2 << 20);
    };
    add("Sum", [kernel](std::span<const std::byte> block, std::byte*) {
      benchmark::DoNotOptimize(kernel.sum(block.data(), block.size() / kChecksumUnitBytes, 0));
    });
    add("CopyAndSum", [kernel](std::span<const std::byte> block, std::byte* target) {
      benchmark::DoNotOptimize(
          kernel.copy(block.data(), block.size() / kChecksumUnitBytes, 0, target));
    });
  }
}

const bool kRegistered = [] {
  Register("Read", Read);
  Register("Memcpy", Copy);
  for (const ChecksumKernel& kernel : ChecksumKernels()) RegisterKernel(kernel);
  return true;
}();

}  // namespace
}  // namespace aquifer
