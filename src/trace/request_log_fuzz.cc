// Whatever a log holds, reading it ends, and what is read is within its limits.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.h"
#include "trace/request_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aquifer;
  const std::span bytes(reinterpret_cast<const char*>(data), size);
  RequestLog log(
      std::make_unique<LineSource>(LineSourceOptions{.max_line_bytes = 4096}, BytesInMemory(bytes)),
      "fuzz");
  TraceRequest request;
  uint64_t last_ms = 0;
  while (true) {
    const Result<bool> more = log.Next(&request);
    if (!more.ok() || !*more) return 0;
    AQ_CHECK(request.timestamp_ms >= last_ms && request.input_tokens <= uint64_t{1} << 40);
    AQ_CHECK(request.block_ids.size() <= size);
    last_ms = request.timestamp_ms;
  }
}
