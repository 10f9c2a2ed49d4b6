// A trace is anybody's file. Whatever is in it, reading ends, in the memory that the limit allows,
// and what it says is in range.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "trace/byte_source.h"
#include "trace/line_source.h"
#include "trace/trace_reader.h"

namespace {

constexpr size_t kMaxLineBytes = 512;

void ReadAll(std::unique_ptr<aquifer::ByteSource> bytes) {
  using namespace aquifer;
  TraceReader reader(std::make_unique<LineSource>(
                         LineSourceOptions{.max_line_bytes = kMaxLineBytes}, std::move(bytes)),
                     "fuzz");
  TraceRequest request;
  uint64_t last_ms = 0;
  while (true) {
    const Result<bool> more = reader.Next(&request);
    if (!more.ok()) {
      AQ_CHECK(more.status().message().starts_with("fuzz:"));
      AQ_CHECK(more.status().message().find("Next step") != std::string::npos);
      return;
    }
    if (!*more) return;
    AQ_CHECK(request.timestamp_ms >= last_ms);
    AQ_CHECK(request.block_ids.size() <= kMaxLineBytes / 2);
    last_ms = request.timestamp_ms;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const char> bytes(reinterpret_cast<const char*>(data), size);
  ReadAll(aquifer::BytesInMemory(bytes));
  auto unpacked = aquifer::Gunzip(aquifer::BytesInMemory(bytes));
  if (unpacked.ok()) ReadAll(*std::move(unpacked));
  return 0;
}
