// How fast a block is summed, against reading it at all.
#include <fmt/format.h>

#include <memory>

#include "aquifer/checksum.h"
#include "base/text/size_text.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/other_checksum.h"
#include "bench/peers/plain_read.h"

namespace aquifer {
namespace {

class ChecksumContest final : public Contest {
 public:
  ChecksumContest(uint64_t block_bytes, BenchMemory memory)
      : block_bytes_(block_bytes), memory_(std::move(memory)) {}

  Result<double> Limit() override {
    return Measure([](std::span<const std::byte> block) { return PlainRead(block); });
  }
  Result<double> Ours() override {
    return Measure([](std::span<const std::byte> block) { return ChecksumOf(block).low; });
  }

  std::vector<std::string> PeerNames() const override {
    if (OtherChecksumName().empty()) return {};
    return {std::string(OtherChecksumName())};
  }
  Result<double> Peer(size_t /*peer*/) override {
    return Measure([](std::span<const std::byte> block) { return OtherChecksum(block); });
  }

 private:
  template <class Read>
  double Measure(Read read) const {
    const std::span<const std::byte> all = memory_.bytes();
    uint64_t mixture = 0;
    const Stopwatch watch;
    for (uint64_t at = 0; at < all.size(); at += block_bytes_) {
      mixture += read(all.subspan(at, block_bytes_));
    }
    KeepValue(mixture);
    return GigabytesPerSecond(all.size(), watch.Seconds());
  }

  const uint64_t block_bytes_;
  const BenchMemory memory_;
};

}  // namespace

void AddChecksumRows(std::vector<Row>* rows) {
  for (const uint64_t block_bytes : kBenchBlockBytes) {
    rows->push_back(
        {.name = "checksum/" + SizeText(block_bytes),
         .unit = "GB/s",
         .limit_is = fmt::format("a plain read of the same memory, by {} loads", PlainReadName()),
         .goal = 0.90,
         .prepare = [block_bytes](
                        const BenchEnvironment& environment) -> Result<std::unique_ptr<Contest>> {
           AQ_ASSIGN_OR_RETURN(
               BenchMemory memory,
               BenchMemory::New(WorkingSetBytes(block_bytes, environment.memory_available_bytes)));
           FillFromSeed(memory.bytes(), block_bytes);
           return std::unique_ptr<Contest>(
               std::make_unique<ChecksumContest>(block_bytes, std::move(memory)));
         },
         .rounds = 31,
         .quick_rounds = 9});
  }
}

}  // namespace aquifer
