// How fast a trace is read: what a planner over a billion requests waits for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "trace/trace_reader.h"

namespace aquifer {
namespace {

// Requests of 24 blocks, as in the public conversation trace.
void BM_ReadTrace(benchmark::State& state) {
  constexpr uint64_t kRequests = 10'000;
  std::string text;
  for (uint64_t i = 0; i < kRequests; ++i) {
    std::vector<uint64_t> ids;
    for (uint64_t block = 0; block < 24; ++block) ids.push_back(100'000 + i * 24 + block);
    text += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": 12000, \"output_length\": 350, \"hash_ids\": "
        "[{}]}}\n",
        i * 300, fmt::join(ids, ", "));
  }
  for (auto unused : state) {
    TraceReader reader(std::make_unique<LineSource>(LineSourceOptions{}, BytesInMemory(text)),
                       "bench");
    TraceRequest request;
    uint64_t blocks = 0;
    for (auto more = reader.Next(&request); more.ok() && *more; more = reader.Next(&request)) {
      blocks += request.block_ids.size();
    }
    benchmark::DoNotOptimize(blocks);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kRequests));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(BM_ReadTrace);

}  // namespace
}  // namespace aquifer
